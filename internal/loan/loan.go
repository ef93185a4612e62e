// Package loan has what a ctx knows of a hold that it runs under: that of Do, or of an Elector's lead. It knows nothing
// of locks.
package loan

import (
	"context"
	"strings"
	"sync/atomic"
)

// A Loan is a hold that a ctx runs under.
type Loan[H any] struct {
	Hold H
	Lead bool // nothing runs inside the hold
	over atomic.Bool
}

// End is for when Do, or Run, returns: what has the ctx still is a stranger to the hold.
func (n *Loan[H]) End() { n.over.Store(true) }

// key finds a loan in a ctx.
type key struct {
	from any
	name string
}

// lent is in the values of a ctx that has loans, and ending of one that ends with a hold. Most ctxs have neither, and to look
// for these keys makes no allocation.
type (
	lent   struct{}
	ending struct{}
)

// Lend returns ctx with the hold of these names, to be found by what it is from.
func Lend[H any](ctx context.Context, hold H, lead bool, names []string, from any) (context.Context, *Loan[H]) {
	n := &Loan[H]{Hold: hold, Lead: lead}
	ctx = context.WithValue(ctx, lent{}, true)
	for _, name := range names {
		ctx = context.WithValue(ctx, key{from, name}, n)
	}
	return ctx, n
}

// endsWith is a key in the values of a ctx that ends with a hold.
type endsWith struct{ hold any }

// Ending returns ctx, which ends with the hold, so that EndsWith returns outer for it and for what is derived from it.
func Ending(ctx, outer context.Context, hold any) context.Context {
	return context.WithValue(context.WithValue(ctx, ending{}, true), endsWith{hold}, outer)
}

// EndsWith returns the outer that Ending was called with, if ctx ends with the hold and has not ended; else nil.
func EndsWith(ctx context.Context, hold any) context.Context {
	if ctx.Value(ending{}) == nil || ctx.Err() != nil {
		return nil
	}
	outer, _ := ctx.Value(endsWith{hold}).(context.Context)
	return outer
}

// In returns the loan of one of the names that ctx runs under, if it has not ended and its hold lasts; else nil.
func In[H any](ctx context.Context, from any, names func() []string, lasts func(H) bool) *Loan[H] {
	if ctx.Value(lent{}) == nil {
		return nil
	}
	for _, name := range names() {
		if n, _ := ctx.Value(key{from, name}).(*Loan[H]); n != nil && !n.over.Load() && lasts(n.Hold) {
			return n
		}
	}
	return nil
}

// Join returns the error of a Do whose hold has failed, and of its fn if that has: in one line, with one prefix.
func Join(hold, fn error) error {
	if fn == nil {
		return hold
	}
	return &joined{hold, fn}
}

type joined struct{ hold, fn error }

func (j *joined) Error() string {
	return j.hold.Error() + " (in it: " + strings.TrimPrefix(j.fn.Error(), "etcdlock: ") + ")"
}
func (j *joined) Unwrap() []error { return []error{j.hold, j.fn} }

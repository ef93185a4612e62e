package history

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// SetSize is how many elements a set can have: 0 to SetSize-1. A run fills one
// after the other, so that each has a short history.
const SetSize = 64

// A Set has the bits of its elements.
type Set uint64

// With is the set and element i.
func (s Set) With(i int) Set { return s | 1<<i }

func (s Set) String() string {
	var elements []string
	for ; s != 0; s &= s - 1 {
		elements = append(elements, fmt.Sprint(bits.TrailingZeros64(uint64(s))))
	}
	return "{" + strings.Join(elements, " ") + "}"
}

// A SetValue is a set as it is kept in etcd, in JSON, and what guarded the
// transaction that wrote it.
type SetValue struct {
	Elements Set    `json:"elements"`
	Worker   int    `json:"worker"`
	Key      string `json:"key"`
	Token    int64  `json:"token"`
}

// A SetOp is something that was done to a set. What certainly was not done is none.
type SetOp struct {
	Worker       int
	Set          string // its key
	Call, Return time.Time
	// Add: Element was added, reading the set and writing it back. Otherwise the
	// set was read, and was Elements.
	Add      bool
	Element  int
	Elements Set
	// Unknown: nobody knows whether it was added, nor whether it will be yet.
	Unknown bool
}

func (o SetOp) String() string {
	switch {
	case o.Unknown:
		return fmt.Sprintf("add(%d)?", o.Element)
	case o.Add:
		return fmt.Sprintf("add(%d)", o.Element)
	}
	return o.Elements.String()
}

// setModel is a set, for porcupine. All of an operation is in its input.
var setModel = porcupine.Model{
	Init: func() any { return Set(0) },
	Step: func(state, input, _ any) (bool, any) {
		s, o := state.(Set), input.(SetOp)
		if o.Add {
			return true, s.With(o.Element)
		}
		return s == o.Elements, s
	},
	Hash:              func(state any) uint64 { return uint64(state.(Set)) * 0x9e3779b97f4a7c15 },
	DescribeOperation: func(input, _ any) string { return input.(SetOp).String() },
	DescribeState:     func(state any) string { return state.(Set).String() },
}

// CheckSets looks for sets whose history is not linearizable: there is no order
// of their operations in which each takes effect at once, between its call and its
// return, and each read sees what was added before.
func CheckSets(ops []SetOp) (broken []Broken) {
	bySet := map[string][]SetOp{}
	for _, o := range ops {
		bySet[o.Set] = append(bySet[o.Set], o)
	}
	for set, ops := range bySet {
		epoch := slices.MinFunc(ops, func(a, b SetOp) int { return a.Call.Compare(b.Call) }).Call
		broken = append(broken, check(Broken{What: set, model: setModel, epoch: epoch}, operations(ops, epoch))...)
	}
	slices.SortFunc(broken, func(a, b Broken) int { return cmp.Compare(a.What, b.What) })
	return broken
}

// operations is the history of one set as porcupine takes it.
//
// An addition whose outcome is unknown may have been carried out at any time after
// its call, or be carried out yet. Porcupine would have to try all of that, for all
// of them together. There is no need to: what no read has seen may as well come
// after all reads, and is left out; and what was seen was added before the first
// read that saw it returned, and, since nothing is ever removed, after each read
// that did not was called. This makes no wrong history right, nor a right one wrong.
func operations(ops []SetOp, epoch time.Time) []porcupine.Operation {
	var history []porcupine.Operation
	for _, o := range ops {
		if o.Unknown {
			seen := false
			for _, r := range ops {
				switch {
				case r.Add:
				case r.Elements&Set(0).With(o.Element) == 0:
					if r.Call.After(o.Call) {
						o.Call = r.Call
					}
				case !seen || r.Return.Before(o.Return):
					seen, o.Return = true, r.Return
				}
			}
			if !seen {
				continue
			}
			if o.Return.Before(o.Call) {
				o.Return = o.Call // no order will do
			}
		}
		history = append(history, porcupine.Operation{
			ClientId: o.Worker, Input: o, Call: int64(o.Call.Sub(epoch)), Return: int64(o.Return.Sub(epoch)),
		})
	}
	return history
}

// Package lead runs a function that leads, term after term, and keeps what is known of it: whether the term lasts, and
// whether the function goes on although its term was lost. It knows nothing of locks.
package lead

import (
	"context"
	"errors"
	"sync"
	"time"
)

// A Term is what a function leads in.
type Term interface {
	comparable
	Context() context.Context // ends with the term
	Err() error               // why the term has ended
	Valid() bool
	Deadline() time.Time
	Token() int64 // for the log
}

// A Lead is a function that leads now and then. It is safe for concurrent use. Its fields are set before.
type Lead[T Term] struct {
	Lost, Released error         // what Err of a term is that was lost, or that ended as its leader wanted
	Grace          time.Duration // how long a lead may go on after a loss until Overrun is called
	Overrun        func(term T)  // nil: nobody is told

	Campaign func(ctx context.Context) (T, error)          // waits for a term
	Resign   func(ctx context.Context, term T) (lost bool) // ends a term, and reports whether it was lost before
	TTL      func(term T) time.Duration                    // how long Resign may take; a term that lasts longer is not short

	mu   sync.Mutex
	term T         // zero if nothing leads
	lost time.Time // when the term was lost, as far as this process knows, zero before
}

// Begin says that the function leads for a term. The caller calls end when the function has returned: from then on nothing
// leads. end waits for a call of Overrun.
func (l *Lead[T]) Begin(term T) (end func()) {
	l.set(term)
	returned := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() { l.watch(term, returned) })
	return func() {
		close(returned)
		var none T
		l.set(none) // before Overrun has returned, which may take its time
		watching.Wait()
	}
}

func (l *Lead[T]) set(term T) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.term, l.lost = term, time.Time{}
}

// watch waits for the end of the term, and then for the function to return.
func (l *Lead[T]) watch(term T, returned <-chan struct{}) {
	select {
	case <-term.Context().Done():
	case <-returned:
		return
	}
	if !errors.Is(term.Err(), l.Lost) {
		return // the function has ended the term, and knows it
	}
	lost := time.Now()
	if d := term.Deadline(); d.Before(lost) { // the process was asleep: others may have led since
		lost = d
	}
	l.mu.Lock()
	l.lost = lost
	l.mu.Unlock()
	if l.Overrun == nil {
		return
	}
	grace := time.NewTimer(l.Grace)
	defer grace.Stop()
	select {
	case <-grace.C:
		l.Overrun(term)
	case <-returned:
	}
}

// Term is the term for which the function leads. ok is false if it does not lead.
func (l *Lead[T]) Term() (term T, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var none T
	return l.term, l.term != none
}

// Over is for how long the function has gone on since its term was lost. It is not positive if the term was not lost.
func (l *Lead[T]) Over() (term T, over time.Duration) {
	term, ok := l.Term()
	if !ok || term.Valid() || errors.Is(term.Err(), l.Released) {
		return term, 0
	}
	l.mu.Lock()
	lost := l.lost
	l.mu.Unlock()
	if lost.IsZero() { // only just, or the process was asleep until now
		lost = term.Deadline()
	}
	return term, time.Since(lost)
}

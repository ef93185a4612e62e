package main

import (
	"context"
	"os"
	"time"

	"github.com/etcdlock/etcdlock/cmd/etcdlock/internal/supervise"
)

// An interrupts ends a ctx with the first signal that asks the process to end. A
// second signal ends the process, in case the cleaning up hangs.
type interrupts struct {
	sigs   chan os.Signal
	once   bool // only the first signal counts: what it cuts short ends soon
	first  bool // the first signal has come
	status *int // of a command that has ended, and of this process then, whatever signals come
	ctx    context.Context
	cancel context.CancelCauseFunc
	quit   chan struct{} // closed by pause
	done   chan struct{} // closed when nobody reads sigs
}

func newInterrupts(ctx context.Context, sigs chan os.Signal, once bool) *interrupts {
	in := &interrupts{sigs: sigs, once: once}
	in.ctx, in.cancel = context.WithCancelCause(ctx)
	in.resume()
	return in
}

// pause leaves the signals to others until resume.
func (in *interrupts) pause() {
	close(in.quit)
	<-in.done
}

func (in *interrupts) resume() {
	in.quit, in.done = make(chan struct{}), make(chan struct{})
	go in.listen(in.quit, in.done) // ends with pause, or with the process
}

func (in *interrupts) listen(quit <-chan struct{}, done chan<- struct{}) {
	defer close(done)
	for {
		select {
		case s := <-in.sigs:
			if supervise.Stops(s) {
				supervise.StopSelf(in.sigs, in.end)
			} else {
				in.end(s)
			}
		case <-quit:
			return
		}
	}
}

// end ends the ctx if s asks the process to end. No command runs that s could be
// passed on to.
func (in *interrupts) end(s os.Signal) {
	switch {
	case !supervise.Ends(s), in.first && in.once:
	case in.first:
		// Not at once: the two may have come together, or the first one just when the
		// command ended.
		status, left := signalled{s}.status(), shutTimeout
		if in.status != nil {
			status, left = *in.status, hurryTimeout
		}
		time.AfterFunc(left, func() { os.Exit(status) })
	default:
		in.first = true
		in.cancel(signalled{s})
	}
}

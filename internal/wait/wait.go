// Package wait has entries of waitlists wait for their locks. The goroutine that waits for an entry sleeps until the
// list says that the entry has the lock. While a list has something to ask etcd, its agent, another goroutine, makes the
// requests and opens the watches. The package knows nothing of sessions, leases and holds.
package wait

import (
	"context"
	"errors"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/outage"
	"github.com/etcdlock/etcdlock/internal/waitlist"
)

// Waits are those of a client of etcd. The fields are set before the first wait.
type Waits struct {
	waitlist.Config // of the lists: see NewList. Life ends the waits and the watches too

	Client  *etcd.Client
	Outages *outage.Source
	// Go runs f in the background, or returns false if Life is about to end.
	Go     func(f func(ctx context.Context)) bool
	Opened func() // is called when a watch was opened
	// Removed reports whether any entry of the acquisition of this one was removed.
	Removed  func(own *waitlist.Part) bool
	EndError func(ctx context.Context) error // the error of a wait whose ctx, or Life, has ended
	// Lost is told of entries that had the lock and were not in etcd.
	Lost func(entries []*waitlist.Part)

	reading chan struct{} // turns: see turn
}

// NewList makes the list of a name, and runs its agents. Calls must not overlap.
func (ws *Waits) NewList(name string) *waitlist.List {
	if ws.Ask == nil {
		ws.reading = make(chan struct{}, maxReading)
		ws.UpLimit, ws.ManyShare = waitlist.UpLimit, waitlist.ManyShare
		ws.After = func(d time.Duration, f func()) { time.AfterFunc(d, f) }
		ws.Ask = func(ctx context.Context, l *waitlist.List) {
			ws.Go(func(context.Context) { ws.ask(ctx, l) }) // or Life is about to end, and the waits with it
		}
	}
	return waitlist.New(name, &ws.Config)
}

// Wait blocks until the entry has the lock, or ctx or Life ends (the error is EndError), or somebody else removes
// the entry (waitlist.ErrRemoved), or etcd refuses, or its client is closed. After an error the caller must still give the entry up.
//
// Most goroutines of a long queue block here. Keep their path under 1,248 bytes of stack, callers included: a goroutine
// then keeps 4 KiB, not 8.
func (ws *Waits) Wait(ctx context.Context, own *waitlist.Part) error {
	own.Begin()
	wake := own.Woken() // before the first look
	for {
		granted, err := own.Outcome()
		switch {
		case ws.Removed(own):
			return waitlist.ErrRemoved
		case granted, err != nil:
			return err
		}
		select {
		case <-wake:
		case <-ws.Life.Done():
			return ws.EndError(ws.Life)
		case <-ctx.Done():
			return ws.EndError(ctx) // before the entry is given up: the error says why etcd is away, as the agent knows
		}
	}
}

// An agent asks etcd what a list wants to know, one request after the other: see plan.go of package waitlist.
//
// Invariant (I3): the queue is judged only at a revision at which the entry is in it. A read at an older revision
// does not show the entry. A member that lags may show a blocker whose deletion came before the watch. So reads are
// pinned, or linearizable.
type agent struct {
	*Waits
	l      *waitlist.List
	outage outage.Outage // for the log
	pauses pauses
	front  *waitlist.Part // for which it has asked last
	asked  int            // so often in a row, without a failure
	denied bool           // etcd has denied it the rights on the lock
}

// maxAsked is how often an agent asks for an entry without a pause. If an entry needs more answers, etcd's answers do not
// satisfy the list, as after a restore that nobody has noticed yet.
const maxAsked = 32

// ask is an agent's life, which ends when there is nothing to ask any more, or ctx ends since nobody waits.
func (ws *Waits) ask(ctx context.Context, l *waitlist.List) {
	a := &agent{Waits: ws, l: l, outage: ws.Outages.Outage(l.Name)}
	var err error
	for ctx.Err() == nil {
		step := l.Next(ctx)
		if step.Do == waitlist.Rest {
			break
		}
		if a.front != step.For {
			a.front, a.asked = step.For, 0
		}
		if a.asked++; a.asked > maxAsked {
			a.pauses.pause(ctx)
		}
		var b broken // as follow has said
		if errors.As(step.Err, &b) {
			a.pauses = b.pauses
			a.fails(ctx, b.error)
		}
		if step.Do == waitlist.Open {
			err = a.open(ctx, &step)
		} else {
			err = a.read(ctx, step.At, step)
		}
		a.handleErr(ctx, &step, err)
	}
	a.outage.Stop(err == nil)
}

// roleChange is how long a role may be without rights on a lock that somebody waits for: it may be changed in two steps, in one script.
const roleChange = time.Second

// handleErr tells the list of a step that failed, and pauses before the next one, unless etcd has refused. If etcd denies the rights
// on the lock for the first time, the agent asks again after roleChange: the wait must not lose its place between the two steps.
func (a *agent) handleErr(ctx context.Context, step *waitlist.Step, err error) {
	switch {
	case err == nil:
	case ctx.Err() != nil:
		a.l.Dropped(step)
	case !a.denied && errors.Is(err, rpctypes.ErrPermissionDenied):
		a.denied = true
		a.l.Fail(step, nil)
		_ = etcd.Sleep(ctx, roleChange)
	case errors.Is(err, etcd.ErrClientClosed),
		etcd.Refused(err) && !errors.Is(err, etcd.ErrWatch): // if a watch is refused, the next read is too
		a.l.Fail(step, err)
	default:
		a.l.Fail(step, nil)
		a.fails(ctx, err)
	}
}

// fails notes an outage of etcd, which keeps the place in the queue, and pauses.
func (a *agent) fails(ctx context.Context, err error) {
	a.outage.Start(ctx, err)
	a.pauses.pause(ctx)
	a.asked = 0
}

// pauses get longer while one failure follows the other: an error that passes, or a watch that ends soon after it was
// opened. They begin anew when nothing has failed for a while.
type pauses struct {
	etcd.Backoff
	end time.Time // of the last one
}

func (p *pauses) pause(ctx context.Context) {
	if time.Since(p.end) > etcd.RetryMax {
		p.Reset()
	}
	_ = p.Wait(ctx)
	p.end = time.Now()
}

// broken is the error of a watch that has ended, and how far the pauses of its agent were when it was opened. The agent that
// opens the next watch, which may be another one, goes on from there.
type broken struct {
	error
	pauses pauses
}

// open opens a watch, for the entry of the step and for those to come.
func (a *agent) open(ctx context.Context, step *waitlist.Step) error {
	on, err := a.Client.OpenWatch(ctx, a.Life, step.From, step.To, clientv3.WithFilterPut())
	if err != nil {
		return err
	}
	a.Waits.Opened()
	watch := &waitlist.Watch{From: step.From, To: step.To, At: on.At, Close: on.Close}
	a.l.Opened(watch)
	pauses := a.pauses
	a.Go(func(context.Context) { a.follow(on, watch, pauses) }) // or Life is about to end, and the watch with it
	return nil
}

// follow tells the list what a watch tells: keys were deleted, the only events that open asks for; or the watch ended
// (no leader, compacted, closed) and may have missed some. It ends with the watch, which its list closes, or Life.
func (ws *Waits) follow(on *etcd.Watch, watch *waitlist.Watch, pauses pauses) {
	defer on.Close()
	for {
		var wr clientv3.WatchResponse
		var ok bool
		select {
		case wr, ok = <-on.C:
		case <-on.Closed:
		}
		if ok {
			on.Heard(&wr)
		}
		if len(wr.Events) > 0 {
			deletions := make([]waitlist.Deletion, 0, len(wr.Events))
			for _, ev := range wr.Events {
				deletions = append(deletions, waitlist.Deletion{Key: string(ev.Kv.Key), Rev: ev.Kv.ModRevision})
			}
			ws.Lost(watch.Heard(deletions))
		}
		if err := etcd.Broken(&wr, ok); err != nil {
			watch.Broke(broken{err, pauses})
			return
		}
	}
}

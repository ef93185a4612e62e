// How holds hear that their entries were removed, by watches that many of them share.

package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/keyspace"
	"github.com/etcdlock/etcdlock/internal/outage"
)

// How holds whose context is used hear that their entries were removed. The first holds of a session in
// a directory of names, "jobs" for "jobs/7", have a watch each. More share one on the whole directory: the
// client opens the watches of a stream one after another, so that thousands would keep those of waits
// waiting. That one is told of every deletion in the directory, so it is for sessions that hold much of it.

// singleHoldWatches is how many holds of a directory have a watch each. openingHoldWatches is how many such
// watches a session opens at a time.
const (
	singleHoldWatches  = 64
	openingHoldWatches = 4
)

// holdWatches are the watches of a session's holds. The session's s.mu guards them.
type holdWatches struct {
	start   func(func(context.Context)) bool // in the background
	opening chan struct{}
	dirs    map[string]*holdDir
}

type holdDir struct {
	singles int
	shared  *holdWatch // nil if there is none
	refused bool       // etcd does not let us watch the directory
}

// A holdWatch looks after holds with one watch.
type holdWatch struct {
	s        *Session
	dir      string
	from, to string
	label    string // for the log
	// What follows is guarded by s.mu.
	holds map[string]*entry // by key
	// unseen are holds that may have been removed before the watch told.
	unseen []*entry
	upTo   int64 // each deletion up to this revision was told; 0 before the watch is open
	end    context.CancelFunc
	wake   chan struct{} // there are unseen ones
}

// watchLocked has the hold looked after, each part of a Multi by itself. The caller holds e.mu.
func (e *entry) watchLocked() {
	for p := range e.all() {
		if p.holdCtx == nil {
			p.holdCtx = &holdContext{}
		}
		if !p.watchPartLocked() {
			e.endHoldLocked(lost)
			return
		}
	}
}

// watchPartLocked gives the entry a watch: its goroutine is the session's, and ends with the last hold of the
// watch.
func (e *entry) watchPartLocked() bool {
	s := e.s
	s.mu.Lock()
	w, fresh := s.holdWatches.joinLocked(e)
	s.mu.Unlock()
	e.holdCtx.watch = w
	return !fresh || s.holdWatches.start(func(context.Context) { w.run() })
}

// joinLocked gives the entry a watch, a fresh one or that of its directory. The caller holds s.mu.
func (ws *holdWatches) joinLocked(e *entry) (w *holdWatch, fresh bool) {
	name := keyspace.Dir(e.name)
	d := ws.dirs[name]
	if d == nil {
		d = &holdDir{}
		ws.dirs[name] = d
	}
	if w = d.shared; w == nil {
		fresh = true
		w = &holdWatch{s: e.s, dir: name, holds: make(map[string]*entry), end: func() {}, wake: make(chan struct{}, 1)}
		if name != "" && d.singles >= singleHoldWatches && !d.refused {
			d.shared = w
			w.from, w.to = keyspace.All(name)
			w.label = w.from
		} else {
			d.singles++
			w.from, w.label = e.key, e.name
		}
	}
	w.addLocked(e)
	return w, fresh
}

func (w *holdWatch) addLocked(e *entry) {
	w.holds[e.key] = e
	if w.upTo > e.rev {
		w.unseen = append(w.unseen, e)
		select {
		case w.wake <- struct{}{}:
		default:
		}
	}
}

// unwatchLocked is for a hold that has ended, or gets another key. The caller holds e.mu.
func (e *entry) unwatchLocked() {
	for p := range e.all() {
		if p.holdCtx != nil && p.holdCtx.watch != nil {
			p.unwatchPartLocked()
		}
	}
}

func (e *entry) unwatchPartLocked() {
	w := e.holdCtx.watch
	e.holdCtx.watch = nil
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	delete(w.holds, e.key)
	if len(w.holds) == 0 {
		w.closeLocked()
	}
}

// closeLocked ends a watch that looks after no hold. The caller holds s.mu.
func (w *holdWatch) closeLocked() {
	ws := &w.s.holdWatches
	d := ws.dirs[w.dir]
	switch {
	case w.to == "":
		d.singles--
	case d != nil && d.shared == w:
		d.shared = nil
	}
	if d != nil && d.singles == 0 && d.shared == nil {
		delete(ws.dirs, w.dir)
	}
	w.end()
}

func (w *holdWatch) run() {
	ctx, cancel := context.WithCancel(w.s.lease.Ctx)
	defer cancel()
	w.s.mu.Lock()
	w.end = cancel
	over := len(w.holds) == 0
	w.s.mu.Unlock()
	out := w.s.lease.Outages.Outage(w.label)
	defer out.Stop(false)
	refusals := 0
	for retry := (etcd.Backoff{}); !over && ctx.Err() == nil; {
		start := time.Now()
		err := w.watch(ctx, &out)
		if ctx.Err() != nil {
			break
		}
		out.Start(ctx, err)
		if time.Since(start) > etcd.RetryMax {
			retry.Reset() // it went well for a while
		}
		switch {
		case !errors.Is(err, errNotOpened):
			refusals = 0
		case w.verify(ctx, w.some(), 0) == nil: // etcd answers
			if refusals++; refusals == 2 && w.to != "" { // it may not let us watch that much
				w.split()
			}
		}
		_ = retry.Wait(ctx)
	}
	for _, e := range w.all() { // the session has ended, or they have other watches by now
		e.whole().noticeSessionEnd()
	}
}

// errNotOpened: there is no watch.
var errNotOpened = errors.New("the watch was not opened")

// watch looks after the holds until ctx ends or the watch does.
func (w *holdWatch) watch(ctx context.Context, out *outage.Outage) error {
	own, err := w.s.openHoldWatch(ctx, w.from, w.to, clientv3.WithFilterPut())
	if err != nil {
		return fmt.Errorf("%w: %w", errNotOpened, err) // in one line, for the log
	}
	defer own.Close()
	w.s.mu.Lock()
	w.upTo, w.unseen = own.At, nil
	for _, e := range w.holds {
		// If the member that watches has not come to the entry's own revision yet, nothing can have
		// been missed, and its queue would show no entry (I3).
		if own.At > e.rev {
			w.unseen = append(w.unseen, e)
		}
	}
	w.s.mu.Unlock()
	for {
		if err := w.verifyUnseen(ctx); err != nil {
			return err
		}
		out.Stop(true)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-w.wake:
		case wr, ok := <-own.C:
			own.Heard()
			w.heard(&wr)
			if err := etcd.Broken(&wr, ok); err != nil {
				return err
			}
		}
	}
}

// heard ends the holds whose entries were deleted. Deletions up to an entry's revision are those of earlier
// uses of its key, which a watch on a member that lags may still deliver.
func (w *holdWatch) heard(wr *clientv3.WatchResponse) {
	gone := make(map[*entry]*clientv3.Event)
	w.s.mu.Lock()
	for _, ev := range wr.Events {
		if e := w.holds[string(ev.Kv.Key)]; e != nil && ev.Kv.ModRevision > e.rev {
			gone[e] = ev
		}
	}
	w.upTo = max(w.upTo, etcd.Latest(wr))
	w.s.mu.Unlock()
	for e, ev := range gone {
		_ = e.whole().markLost(string(ev.Kv.Key), ev.Kv.ModRevision)
	}
}

// verifyUnseen reads whether holds are there of which the watch may have told before they were looked after.
func (w *holdWatch) verifyUnseen(ctx context.Context) error {
	w.s.mu.Lock()
	unseen, at := w.unseen, w.upTo
	w.unseen = nil
	w.s.mu.Unlock()
	if len(unseen) > verifyBatch { // the watch is open anew
		return w.s.inspect(ctx)
	}
	return w.verify(ctx, unseen, at)
}

func (w *holdWatch) verify(ctx context.Context, holds []*entry, at int64) error {
	if len(holds) == 0 {
		return nil
	}
	return w.s.verify(ctx, inQueue(holds), at)
}

// some are as many holds as one request asks after.
func (w *holdWatch) some() []*entry {
	all := w.all()
	return all[:min(len(all), verifyBatch)]
}

func (w *holdWatch) all() (holds []*entry) {
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	for _, e := range w.holds {
		holds = append(holds, e)
	}
	return holds
}

// split gives each hold a watch of its own.
func (w *holdWatch) split() {
	w.s.mu.Lock()
	w.s.holdWatches.dirs[w.dir].refused = true
	w.s.holdWatches.dirs[w.dir].shared = nil
	w.s.mu.Unlock()
	for _, e := range w.all() {
		whole := e.whole()
		whole.mu.Lock()
		if e.holdCtx.watch == w {
			e.unwatchPartLocked()
			if !e.watchPartLocked() {
				whole.endHoldLocked(lost)
			}
		}
		whole.unlockAndNotify()
	}
}

// How a holder hears that somebody waits for its lock.

package etcdlock

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/keyspace"
	"github.com/etcdlock/etcdlock/internal/outage"
	"github.com/etcdlock/etcdlock/internal/queue"
)

// Contended is closed when somebody waits for what the hold excludes, and stays closed, also if that one is
// gone again. So a holder that needs a lock again and again may keep it, at no request at all, and give it up
// when it is wanted. Nobody is passed: the waiter is next in the queue.
//
// A reader does not contend with a read hold, a Try with none since it does not wait; a [Multi] is contended in
// any of its names. Of a hold that has ended nothing is told: wait for Done too.
//
// The first use opens a watch on the queue, with a goroutine, and makes at most one read; for a Multi, for each
// of its names. Waiters of the same session are seen without a request. The news takes about as long as that
// of a loss, and where etcd is away until it is back.
func (h *Held) Contended() <-chan struct{} {
	h.mu.Lock()
	defer h.unlockAndNotify()
	c := h.holdContextLocked()
	if c.contended == nil {
		c.contended, c.contend = context.WithCancel(context.Background())
		h.startContentionLocked()
	}
	return c.contended.Done()
}

// startContentionLocked looks for waiters behind the hold: those of the session in its list, those of others in
// etcd. The goroutines, one for each part, are the session's; they end with the hold, or the first waiter.
// The caller holds e.mu.
func (e *entry) startContentionLocked() {
	if e.state != held {
		return
	}
	for p := range e.all() {
		if p.own == nil {
			p.makeListLocked()
		}
		p.own.WhenContended(e.holdCtx.contend)
	}
	for p := range e.all() {
		if e.holdCtx.contended.Err() == nil {
			e.s.lease.Go(func(context.Context) { e.watchContention(p) })
		}
	}
}

// watchContention waits until somebody waits for what the part of the hold excludes.
func (e *entry) watchContention(part *entry) {
	c := e.holdCtx
	ctx, stop := etcd.Bind(c.ctx, e.s.lease.Ctx)
	defer stop()
	ctx, unbind := etcd.Bind(ctx, c.contended)
	defer unbind()
	out := e.s.lease.Outages.Outage(e.label())
	defer out.Stop(false)
	for retry := (etcd.Backoff{}); ctx.Err() == nil; _ = retry.Wait(ctx) {
		start := time.Now()
		found, err := e.findContender(ctx, part, &out)
		switch {
		case found:
			c.contend()
		case err != nil:
			out.Start(ctx, err)
		}
		if time.Since(start) > etcd.RetryMax {
			retry.Reset() // it went well for a while
		}
	}
}

// findContender blocks until somebody waits for the part, or the watch ends. The watch comes first and the
// read after it, so that nobody is missed in between.
func (e *entry) findContender(ctx context.Context, part *entry, out *outage.Outage) (found bool, err error) {
	from, to := keyspace.Exclusives(part.name)
	if part.excludes(keyspace.Shared) {
		_, to = keyspace.Shareds(part.name)
	}
	w, err := e.s.openHoldWatch(ctx, from, to, clientv3.WithFilterDelete())
	if err != nil {
		return false, err
	}
	defer w.Close()
	contends := func(q queue.Entry) bool {
		return q.Rev > e.rev && part.excludes(keyspace.KindOf(part.name, q.Key))
	}
	// At the present: the member that watches may lag, and show waiters that have gone.
	got, seen, err := e.s.lease.Read(ctx, e.s.lease.Gone, 0, etcd.ReadRange(from, to, clientv3.WithMinCreateRev(e.rev+1)))
	if err != nil {
		return false, err
	}
	for _, q := range queue.Entries(got[0].Kvs) {
		if contends(q) {
			return true, nil
		}
	}
	out.Stop(true)
	for {
		select {
		case <-ctx.Done(): // the hold has ended, or somebody waits for another part or in the same session
			return false, nil
		case wr, ok := <-w.C:
			w.Heard()
			for _, ev := range wr.Events {
				if ev.Kv.CreateRevision > seen && contends(queue.Entry{Key: string(ev.Kv.Key), Rev: ev.Kv.CreateRevision}) {
					return true, nil
				}
			}
			if err := etcd.Broken(&wr, ok); err != nil {
				return false, err
			}
		}
	}
}

// excludes reports whether the entry, or part of one, excludes others of that kind: a writer excludes all, and
// a reader writers. Downgrade makes a writer a reader.
func (e *entry) excludes(kind keyspace.Kind) bool {
	w := e.whole()
	w.mu.Lock()
	defer w.mu.Unlock()
	return kind != keyspace.Foreign && queue.Blocks(e.mode.kind(), kind)
}

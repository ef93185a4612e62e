package etcdlock

import (
	"cmp"
	"slices"

	"github.com/etcdlock/etcdlock/internal/keyspace"
	"github.com/etcdlock/etcdlock/internal/queue"
)

// Those who wait for one lock on one client: if they are a good part of its queue they
// share a watch on all of it, and else they form a line, of which few ask etcd.

// crowdShare is which part of a queue, at least, those who share a watch on all of it
// are. It bounds to how many clients etcd tells each release: a watch of one waiter is
// told of hardly any but the one that it waits for.
const crowdShare = 4

// crowd is the key of the watch that all on one client can share who wait for the lock.
func (e *entry) crowd() shareKey {
	from, _ := keyspace.Exclusives(e.name)
	_, end := keyspace.Shareds(e.name)
	return shareKey{e.s.etcd.WatchScope(), from, end}
}

// A crowd is all who wait for a lock on one client.
type crowd struct {
	key  shareKey
	size int
	// line are those of them who wait for an exclusive hold, share no watch and are not
	// known to be near the front, in the order of the queue.
	line []*waiter
}

// joinCrowd counts one more who waits, until it leaves.
func (e *entry) joinCrowd() *crowd {
	k := e.crowd()
	shares.mu.Lock()
	defer shares.mu.Unlock()
	c := shares.crowds[k]
	if c == nil {
		c = &crowd{key: k}
		shares.crowds[k] = c
	}
	c.size++
	return c
}

func (c *crowd) leave() {
	shares.mu.Lock()
	defer shares.mu.Unlock()
	if c.size--; c.size == 0 {
		delete(shares.crowds, c.key)
	}
}

// abreast is how many of a line ask etcd: the second has time to prepare when it comes
// near just after the first.
const abreast = 2

// lineUp puts the waiter into the line of its crowd, unless it asks etcd by itself from
// now on. It returns the one in line to wait for first, nil if etcd is to be asked.
//
// That one is lower and exclusive, so it is right to wait for, like any such; and it is
// in time, for until it is near the front nobody behind it is. So of all who wait on one
// client a few have watches, and etcd is asked nothing for the others.
func (w *waiter) lineUp() (before *waiter) {
	switch {
	case w.passed:
		return nil
	case w.mode == readMode, w.crowded, w.viewKnown && len(w.Next) == 0:
		w.passOn()
		return nil
	}
	shares.mu.Lock()
	defer shares.mu.Unlock()
	line := w.in.line
	i, in := slices.BinarySearchFunc(line, w.rev, func(o *waiter, rev int64) int { return cmp.Compare(o.rev, rev) })
	if !in {
		line = slices.Insert(line, i, w)
		w.in.line = line
	}
	if i < abreast {
		return nil
	}
	before = line[i-abreast]
	if before.turn == nil {
		before.turn = make(chan struct{})
	}
	return before
}

// passOn leaves the line for good, so that one behind looks for itself.
func (w *waiter) passOn() {
	if w.passed {
		return
	}
	w.passed, w.passedAt = true, w.At
	shares.mu.Lock()
	defer shares.mu.Unlock()
	if i := slices.Index(w.in.line, w); i >= 0 {
		w.in.line = slices.Delete(w.in.line, i, i+1)
	}
	if w.turn != nil {
		close(w.turn)
	}
}

// crowded reports whether those who wait on the client, and more besides, are several,
// and a good part of a queue of that size.
func (k shareKey) crowded(more int, size int64) bool {
	n := more
	shares.mu.Lock()
	if c := shares.crowds[k]; c != nil {
		n += c.size
	}
	shares.mu.Unlock()
	return n > 1 && int64(n)*crowdShare >= size
}

// viewOf is the view of an entry that has seen all of the queue. One of a crowd waits
// for all exclusive ones below, however many: the watch that it shares tells of all of
// them, and it needs no look when it comes near the front.
func (e *entry) viewOf(entries []queue.Entry) queue.View {
	v, _ := queue.Blockers(e.name, e.mode.kind(), e.rev, entries, true)
	if len(v.Next) == 0 || e.mode == readMode || !e.crowd().crowded(1, int64(len(entries))) {
		return v
	}
	all := queue.View{Last: true}
	for _, q := range entries {
		switch keyspace.KindOf(e.name, q.Key) {
		case keyspace.Exclusive:
			all.Blockers = append(all.Blockers, q)
		case keyspace.Shared:
			return v
		}
	}
	return all
}

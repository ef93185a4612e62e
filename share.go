package etcdlock

import (
	"context"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Where goroutines of one process want a lock, they wait for each other most of
// the time. The keys of their entries lie side by side, so one watch serves them all.

// A sharedWatch is one watch on all exclusive keys that a session has of a name,
// for those who wait for nothing else. It is opened for the first of them and
// closed behind the last.
type sharedWatch struct {
	s          *Session
	first, end string             // what is watched
	users      int                // guarded by Session.mu
	close      context.CancelFunc // by the last user
	begun      chan struct{}      // closed when it was opened, or could not be

	mu        sync.Mutex
	at        int64 // every deletion above this revision is told to all listeners
	err       error // it has ended
	listeners map[*listener]struct{}
}

// listener hears of the keys from from to before to. Its channel holds one
// response; what comes before that is taken is added to it.
type listener struct {
	from, to string
	ch       chan clientv3.WatchResponse
}

// isOwn reports whether the range holds only exclusive keys of the entry's session.
func (e *entry) isOwn(from, to string) bool {
	first, end := ownRange(e.name, e.s.id)
	return first <= from && to <= end
}

// watchBlockers is openWatch for a waiter; shared, if the range is the session's own.
func (e *entry) watchBlockers(ctx context.Context, from, to string) (*watch, error) {
	if !e.isOwn(from, to) {
		return e.s.openWatch(ctx, from, to)
	}
	w := e.s.enterShared(ownRange(e.name, e.s.id))
	var on *watch
	err := errWatch
	select {
	case <-w.begun:
		on, err = w.listen(from, to)
	case <-ctx.Done():
	}
	if err != nil {
		w.leave()
	}
	return on, err
}

func (s *Session) enterShared(first, end string) *sharedWatch {
	s.mu.Lock()
	w := s.shared[first]
	if w != nil {
		w.users++
		s.mu.Unlock()
		return w
	}
	w = &sharedWatch{s: s, first: first, end: end, users: 1, begun: make(chan struct{}), listeners: make(map[*listener]struct{})}
	ctx, cancel := context.WithCancel(s.ctx)
	w.close = cancel
	s.shared[first] = w
	s.mu.Unlock()
	if !s.background(func(context.Context) { w.run(ctx) }) {
		w.ended(errWatch) // the session is ending
		close(w.begun)
	}
	return w
}

func (w *sharedWatch) leave() {
	w.s.mu.Lock()
	w.users--
	unused := w.users == 0
	if unused {
		w.makeWayLocked()
	}
	w.s.mu.Unlock()
	if unused {
		w.close()
	}
}

// run watches until ctx ends or the watch does.
func (w *sharedWatch) run(ctx context.Context) {
	on, err := w.s.openWatch(ctx, w.first, w.end)
	if err != nil {
		w.ended(err)
		close(w.begun)
		return
	}
	defer on.close()
	w.at = on.at
	close(w.begun)
	for err == nil {
		select {
		case <-ctx.Done():
			err = errWatch
		case wr, ok := <-on.ch:
			w.tell(wr)
			err = broken(wr, ok)
		}
	}
	w.ended(err)
}

// makeWayLocked has whoever comes next open another one; the caller holds Session.mu.
func (w *sharedWatch) makeWayLocked() {
	if w.s.shared[w.first] == w {
		delete(w.s.shared, w.first)
	}
}

// ended makes way for another one, then tells the listeners.
func (w *sharedWatch) ended(err error) {
	w.s.mu.Lock()
	w.makeWayLocked()
	w.s.mu.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = err
	for l := range w.listeners {
		close(l.ch)
	}
	clear(w.listeners)
}

// listen joins those who are told from now on, which is at the revision of the last
// deletion.
func (w *sharedWatch) listen(from, to string) (*watch, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return nil, w.err
	}
	l := &listener{from, to, make(chan clientv3.WatchResponse, 1)}
	w.listeners[l] = struct{}{}
	return &watch{ch: l.ch, at: w.at, close: func() {
		w.mu.Lock()
		delete(w.listeners, l)
		w.mu.Unlock()
		w.leave()
	}}, nil
}

func (w *sharedWatch) tell(wr clientv3.WatchResponse) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.at = max(w.at, latest(wr))
	for l := range w.listeners {
		var part clientv3.WatchResponse
		for _, ev := range wr.Events {
			if key := string(ev.Kv.Key); l.from <= key && key < l.to {
				part.Events = append(part.Events, ev)
			}
		}
		if len(part.Events) == 0 {
			continue
		}
		select {
		case before := <-l.ch:
			part.Events = append(before.Events, part.Events...)
		default:
		}
		l.ch <- part // there is room: nobody else sends
	}
}

// viewOf is the view of an entry that has seen all of the queue. If there are only
// exclusive ones of its own session below, it waits for them all, however many:
// one watch tells of all of them, and it needs no look when it comes near the front.
func (e *entry) viewOf(queue []queued) view {
	v, _ := blocker(e.name, e.wants.kind(), e.rev, queue, true)
	if len(v.next) == 0 || e.wants == readHold {
		return v
	}
	own := view{last: true}
	first, end := ownRange(e.name, e.s.id)
	for _, q := range queue {
		if q.key < first || end <= q.key {
			return v
		}
		if kindOf(e.name, q.key) == exclusive {
			own.blockers = append(own.blockers, q)
		}
	}
	return own
}

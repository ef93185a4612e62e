package etcdlock

import (
	"context"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Where several of one process wait for the same, one watch serves them all: readers
// behind one writer, and the goroutines of a session, which wait for each other most
// of the time, and the keys of whose entries lie side by side.

// A sharedWatch is opened for the first of those who use it, and closed behind the
// last.
type sharedWatch struct {
	shareKey
	users int                // guarded by shares.mu
	close context.CancelFunc // by the last user
	begun chan struct{}      // closed when it was opened, or could not be
	done  chan struct{}      // closed when nothing of it is left

	failed error // it could not be opened; to be read when begun is closed

	mu        sync.Mutex
	at        int64     // every deletion above this revision is told to all listeners
	heard     time.Time // of it, lately
	ended     bool
	listeners map[*listener]struct{}
}

// shareKey is what is watched, and through which Watcher: sessions on one client
// share too.
type shareKey struct {
	scope      any // see watcher
	first, end string
}

// shares are the shared watches of the process that can be joined.
var shares = struct {
	mu  sync.Mutex
	all map[shareKey]*sharedWatch
}{all: make(map[shareKey]*sharedWatch)}

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

// watchBlockers is openWatch for a waiter; shared, if others may wait for the same.
func (e *entry) watchBlockers(ctx context.Context, from, to string) (*watch, error) {
	first, end := from, to
	switch {
	case e.isOwn(from, to):
		first, end = ownRange(e.name, e.s.id)
	case e.wants != readHold:
		return e.s.openWatch(ctx, from, to)
	}
	return e.s.watchBy(ctx, func(by *watcher) (*watch, error) {
		for {
			w := e.s.enterShared(by, first, end)
			leave := func() { w.leave(e.s) }
			var on *watch
			err := errWatch
			select {
			case <-w.begun:
				on, err = w.listen(from, to, leave), w.failed
			case <-ctx.Done():
			}
			if on != nil {
				return on, nil
			}
			leave()
			if err != nil {
				return nil, err
			}
			// It has ended since it was opened: the next one.
		}
	})
}

// enterShared joins the watch, or opens another one where nothing was heard of it for
// a while: it may be on a member that hangs, and to open one is what shows that.
func (s *Session) enterShared(by *watcher, first, end string) *sharedWatch {
	shares.mu.Lock()
	defer shares.mu.Unlock()
	k := shareKey{by.scope, first, end}
	w := shares.all[k]
	if w == nil || w.silence() > attemptMin+s.pace.late() {
		w = &sharedWatch{shareKey: k, begun: make(chan struct{}), done: make(chan struct{}), heard: time.Now(), listeners: make(map[*listener]struct{})}
		shares.all[k] = w
		var ctx context.Context
		ctx, w.close = context.WithCancel(context.Background())
		go w.run(ctx, by)
	}
	w.users++
	return w
}

// leave is for a user that belongs to s. Nothing goes on after the Close of the
// session that was the last.
func (w *sharedWatch) leave(s *Session) {
	shares.mu.Lock()
	w.users--
	unused := w.users == 0
	if unused {
		w.makeWayLocked()
	}
	shares.mu.Unlock()
	if !unused {
		return
	}
	w.close()
	if !s.background(func(context.Context) { <-w.done }) {
		<-w.done
	}
}

func (w *sharedWatch) silence() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Since(w.heard)
}

// makeWayLocked has whoever comes next open another one; the caller holds shares.mu.
func (w *sharedWatch) makeWayLocked() {
	if shares.all[w.shareKey] == w {
		delete(shares.all, w.shareKey)
	}
}

// run watches until ctx ends or the watch does.
func (w *sharedWatch) run(ctx context.Context, by *watcher) {
	defer close(w.done)
	on, err := openWatch(ctx, clientv3.WithRequireLeader(ctx), by, w.first, w.end, clientv3.WithFilterPut())
	if w.failed = err; err != nil {
		defer close(w.begun)
	} else {
		defer on.close()
		w.at = on.at
		close(w.begun)
	}
	for err == nil && ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case wr, ok := <-on.ch:
			w.tell(wr)
			err = broken(wr, ok)
		}
	}
	shares.mu.Lock()
	w.makeWayLocked()
	shares.mu.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = true
	for l := range w.listeners {
		close(l.ch)
	}
	clear(w.listeners)
}

// listen joins those who are told from now on, which is at the revision of the last
// deletion. It returns nil if the watch has ended.
func (w *sharedWatch) listen(from, to string, leave func()) *watch {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		return nil
	}
	l := &listener{from, to, make(chan clientv3.WatchResponse, 1)}
	w.listeners[l] = struct{}{}
	return &watch{ch: l.ch, at: w.at, close: func() {
		w.mu.Lock()
		delete(w.listeners, l)
		w.mu.Unlock()
		leave()
	}}
}

func (w *sharedWatch) tell(wr clientv3.WatchResponse) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.at, w.heard = max(w.at, latest(wr)), time.Now()
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

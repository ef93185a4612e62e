package etcdlock

import (
	"context"
	"slices"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/queue"
)

// A sharedWatch serves several waiters on one client that wait for the same. It is opened for the first
// that uses it, and closed behind the last.
type sharedWatch struct {
	shareKey
	users int                // guarded by shares.mu
	close context.CancelFunc // by the last user
	begun chan struct{}      // closed when it was opened, or could not be
	done  chan struct{}      // closed when nothing of it is left

	// To be read when begun is closed:
	failed error // it could not be opened
	opened int64 // the revision from which on it tells of deletions

	ask     sync.Once            // for what follows
	known   chan struct{}        // closed when it is
	present map[queue.Entry]bool // what was in the range at opened, or later; nil if that was not to be had

	mu          sync.Mutex
	at          int64             // every deletion above this revision is told to all listeners
	recent      []*clientv3.Event // the last deletions, in their order
	forgot      int64             // the revision up to which deletions are not all in recent
	heard       time.Time         // of it, lately
	ended       bool
	subscribers map[*subscriber]struct{}
}

// recentEvents is how many deletions a shared watch remembers, for waiters that join it.
const recentEvents = 32

// presentLimit is how many keys are read at most for all that share a watch.
const presentLimit = 10000

// A watch is what a waiter hears of its blockers by: every deletion above revision at.
type watch struct {
	ch    clientv3.WatchChan
	at    int64
	close context.CancelFunc
	// first, if not nil, asks what was in the range at that revision, once for all that share
	// the watch.
	first func(context.Context, *Session) map[queue.Entry]bool
}

// events is the watch's channel. For no watch it is nil, which blocks forever.
func (w *watch) events() clientv3.WatchChan {
	if w == nil {
		return nil
	}
	return w.ch
}

// shareKey is what is watched, and through which Watcher: sessions on one client share too.
type shareKey struct {
	scope     any // see watcher
	from, end string
}

// shares are the shared watches of the process that can be joined, and who waits for each lock.
var shares = struct {
	mu     sync.Mutex
	all    map[shareKey]*sharedWatch
	crowds map[shareKey]*crowd
}{all: make(map[shareKey]*sharedWatch), crowds: make(map[shareKey]*crowd)}

// listener hears of the keys from from to before to. Its channel holds one
// response; what comes before that is taken is added to it.
type subscriber struct {
	from, to string
	ch       chan clientv3.WatchResponse
}

// watchBlockers is openWatch for a waiter, shared, if others may wait for the same.
func (w *waiter) watchBlockers(ctx context.Context) (*watch, error) {
	k := w.crowd()
	switch {
	case w.mode == readMode:
		k.from, k.end = w.from, w.to
	case !w.crowded:
		on, err := w.s.etcd.OpenWatch(ctx, w.s.ctx, w.from, w.to, clientv3.WithFilterPut())
		if err != nil {
			return nil, err
		}
		return &watch{ch: on.C, at: on.At, close: on.Close}, nil
	}
	by := w.s.etcd.EnterWatcher()
	on, err := w.shareWatch(ctx, by, k)
	if err != nil {
		w.s.etcd.LeaveWatcher(by, ctx.Err() == nil)
		return nil, err
	}
	cancel := on.close
	on.close = func() { cancel(); w.s.etcd.LeaveWatcher(by, false) }
	return on, nil
}

func (w *waiter) shareWatch(ctx context.Context, by *etcd.Watcher, k shareKey) (*watch, error) {
	for {
		shared := w.s.enterShared(by, k.from, k.end)
		leave := func() { shared.leave(w.s) }
		var on *watch
		err := etcd.ErrWatch
		select {
		case <-shared.begun:
			on, err = shared.subscribe(w.from, w.to, w.At, leave), shared.failed
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
}

// enterShared joins the watch, or opens another one if it was silent for over a second: it may be on a
// member that hangs, and to open one shows that.
func (s *Session) enterShared(by *etcd.Watcher, from, end string) *sharedWatch {
	shares.mu.Lock()
	defer shares.mu.Unlock()
	k := shareKey{by.Scope, from, end}
	w := shares.all[k]
	if w == nil || w.silence() > etcd.AttemptMin+s.etcd.Late() {
		w = &sharedWatch{shareKey: k, begun: make(chan struct{}), known: make(chan struct{}), done: make(chan struct{}), heard: time.Now(), subscribers: make(map[*subscriber]struct{})}
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
func (w *sharedWatch) run(ctx context.Context, by *etcd.Watcher) {
	defer close(w.done)
	on, err := etcd.Open(ctx, ctx, by, w.from, w.end, clientv3.WithFilterPut())
	if w.failed = err; err != nil {
		defer close(w.begun)
	} else {
		defer on.Close()
		w.opened, w.at = on.At, on.At
		close(w.begun)
	}
	for err == nil && ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case wr, ok := <-on.C:
			w.publish(wr)
			err = etcd.Broken(&wr, ok)
		}
	}
	shares.mu.Lock()
	w.makeWayLocked()
	shares.mu.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = true
	for l := range w.subscribers {
		close(l.ch)
	}
	clear(w.subscribers)
}

// listen joins those who are told, of all deletions above since, or above opened if that
// is later, as long as those are remembered; or else from now on, which is at the revision
// of the last one. It returns nil if the watch has ended.
func (w *sharedWatch) subscribe(from, to string, since int64, leave func()) *watch {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		return nil
	}
	l := &subscriber{from, to, make(chan clientv3.WatchResponse, 1)}
	w.subscribers[l] = struct{}{}
	on := &watch{ch: l.ch, at: w.at, close: func() {
		w.mu.Lock()
		delete(w.subscribers, l)
		w.mu.Unlock()
		leave()
	}}
	since = max(since, w.opened)
	if w.forgot <= since && since < w.at {
		on.at = since
		missed := slices.IndexFunc(w.recent, func(ev *clientv3.Event) bool { return ev.Kv.ModRevision > since })
		l.deliver(w.recent[missed:])
	}
	if on.at == w.opened {
		on.first = w.first
	}
	return on
}

// first is what was in the range when the watch began, or later, nil if that can't be had
// soon. It is read once for all who ask, by the session of the first.
func (w *sharedWatch) first(ctx context.Context, s *Session) map[queue.Entry]bool {
	w.ask.Do(func() {
		if !s.background(func(ctx context.Context) {
			defer close(w.known)
			ctx, cancel := context.WithTimeout(ctx, etcd.AttemptMin)
			defer cancel()
			got, _, err := s.read(ctx, s.leaseCtx, w.opened, etcd.ReadRange(w.from, w.end, clientv3.WithLimit(presentLimit)))
			if err != nil || got[0].More {
				return
			}
			w.present = make(map[queue.Entry]bool)
			for _, q := range queue.Entries(got[0].Kvs) {
				w.present[q] = true
			}
		}) {
			close(w.known)
		}
	})
	select {
	case <-w.known:
		return w.present
	case <-ctx.Done():
		return nil
	}
}

func (w *sharedWatch) publish(wr clientv3.WatchResponse) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.at, w.heard = max(w.at, etcd.Latest(&wr)), time.Now()
	for l := range w.subscribers {
		l.deliver(wr.Events)
	}
	w.recent = append(w.recent, wr.Events...)
	if n := len(w.recent) - recentEvents; n > 0 {
		w.forgot = w.recent[n-1].Kv.ModRevision
		w.recent = slices.Delete(w.recent, 0, n)
	}
}

// tell is called by one at a time.
func (l *subscriber) deliver(events []*clientv3.Event) {
	var part clientv3.WatchResponse
	for _, ev := range events {
		if key := string(ev.Kv.Key); l.from <= key && key < l.to {
			part.Events = append(part.Events, ev)
		}
	}
	if len(part.Events) == 0 {
		return
	}
	select {
	case before := <-l.ch:
		part.Events = append(before.Events, part.Events...)
	default:
	}
	l.ch <- part // there is room: nobody else sends
}

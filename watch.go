package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// watch is an etcd watch for deletions, opened from now: every deletion above
// revision at is delivered on ch.
type watch struct {
	ch    clientv3.WatchChan
	at    int64
	close context.CancelFunc
	// first, if not nil, asks what was in the range at that revision, once for all who
	// share the watch.
	first func(context.Context, *Session) map[queued]bool
}

// errWatch: a watch could not be opened, or ended; what it watched for may have
// happened unseen.
var errWatch = errors.New("watch ended")

// openWatch watches key, or the range from key to end, and waits for etcd's
// notice that it does. It gives up after attemptMin, since a watch waits silently
// for a member that hangs. The watch lives until closed, or the
// session ends.
//
// It names no start revision. etcd serves a watch that starts at a revision it
// has already got from a loop that runs each 100 ms (watchResyncPeriod), which
// is why concurrency.Mutex hands over 28 times a second between two contenders.
// So the watch comes first, and what happened before it is read afterwards.
//
// With RequireLeader the watch ends when its member is cut off from the rest;
// without, it would stay silent for as long as that lasts.
func (s *Session) openWatch(ctx context.Context, key, end string) (*watch, error) {
	return s.watchBy(ctx, func(by *watcher) (*watch, error) {
		return openWatch(ctx, s.watchCtx, by, key, end, clientv3.WithFilterPut())
	})
}

// watchBy opens a watch with the session's watcher, which notes how that goes.
func (s *Session) watchBy(ctx context.Context, open func(by *watcher) (*watch, error)) (*watch, error) {
	by := s.enterWatcher()
	w, err := open(by)
	if err != nil {
		s.leaveWatcher(by, ctx.Err() == nil)
		return nil, err
	}
	cancel := w.close
	w.close = func() { cancel(); s.leaveWatcher(by, false) }
	return w, nil
}

// openWatch is that of a session, for a watch that lives until life ends, a ctx
// with RequireLeader; end is as for clientv3.WithRange, or empty for one key.
func openWatch(ctx, life context.Context, watcher clientv3.Watcher, key, end string, opts ...clientv3.OpOption) (*watch, error) {
	wctx, cancel := context.WithCancel(life)
	unbind := context.AfterFunc(ctx, cancel)
	timer := time.AfterFunc(attemptMin, cancel)
	opts = append(opts, clientv3.WithCreatedNotify())
	if end != "" {
		opts = append(opts, clientv3.WithRange(end))
	}
	ch := watcher.Watch(wctx, key, opts...)
	created, ok := <-ch
	err := broken(&created, ok && created.Created)
	if intime, bound := timer.Stop(), unbind(); err == nil && (!intime || !bound) {
		err = errWatch // cancelled meanwhile
	}
	if err != nil {
		cancel()
		return nil, err
	}
	return &watch{ch: ch, at: created.Header.Revision, close: cancel}, nil
}

// All watches of a client's Watcher share a stream, and with it what may be
// wrong with that for as long as any of them lives: a member that hangs, or a
// token that has expired, since etcd checks new watches with the token that the
// stream was opened with. So when a watch can't be opened although etcd answers,
// the session's next watches get a Watcher, and so a stream, of their own.
// That goes for etcd's own Watcher only: one that the user has put in its place
// (see clientv3/namespace) can't be made anew, and holds and waits poll instead.
//
// One that has been replaced is closed after its last watch: it may have a stream
// that outlives that, or go on trying to get one until the client is closed.

// watcher is a Watcher for a session's watches.
type watcher struct {
	clientv3.Watcher
	// scope is the same for watchers whose watches may be shared: those of the
	// sessions that use the same one of etcd's own.
	scope    any
	own      bool // by replaceWatcher, so that the session has to close it
	watches  int  // that are open, or being opened
	replaced bool
}

func newWatcher(client *clientv3.Client, of clientv3.Watcher) *watcher {
	w := &watcher{Watcher: of}
	w.scope = w
	if renewable(client, of) {
		w.scope = of
	}
	return w
}

func (s *Session) enterWatcher() *watcher {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watcher.watches++
	return s.watcher
}

// leaveWatcher is called when a watch of w is closed, or could not be opened,
// which is w's fault if failed.
func (s *Session) leaveWatcher(w *watcher, failed bool) {
	s.mu.Lock()
	w.watches--
	unused := w.unused()
	if failed && w == s.watcher && renewable(s.client, w.Watcher) {
		s.watcherSuspect = true
	}
	s.mu.Unlock()
	if unused {
		_ = w.Close()
	}
}

func (w *watcher) unused() bool { return w.own && w.replaced && w.watches == 0 }

// renewable reports whether w is etcd's own Watcher, as NewWatcher makes them.
func renewable(client *clientv3.Client, w clientv3.Watcher) bool {
	return reflect.TypeOf(w) == reflect.TypeOf(clientv3.NewWatcher(client))
}

// etcdAnswers notes that it is not etcd that a watch failed for.
func (s *Session) etcdAnswered() {
	s.mu.Lock()
	bad := s.watcherSuspect
	s.watcherSuspect = false
	s.mu.Unlock()
	if bad {
		s.replaceWatcher(clientv3.NewWatcher(s.client))
	}
}

// replaceWatcher gives the session's next watches w, a new Watcher; at the
// session's end nil, for there are none.
func (s *Session) replaceWatcher(w clientv3.Watcher) {
	s.mu.Lock()
	old := s.watcher
	old.replaced = true
	unused := old.unused()
	if w != nil {
		s.watcher = newWatcher(s.client, w)
		s.watcher.own = true
	}
	s.mu.Unlock()
	if unused {
		_ = old.Close()
	}
}

// untilRecheck is the time from one linearizable look at what is only watched to
// the next: about half a TTL, jittered, so that they don't come together.
func (s *Session) recheckInterval() time.Duration { return s.ttl/8*3 + rand.N(s.ttl/4) }

// events is the watch's channel; none is nil, which blocks forever.
func (w *watch) events() clientv3.WatchChan {
	if w == nil {
		return nil
	}
	return w.ch
}

// broken is the error of a watch that ended with wr, nil if it goes on. It is
// always errWatch: whatever ends a watch, a read tells whether it is for good.
func broken(wr *clientv3.WatchResponse, ok bool) error {
	if !ok {
		return errWatch
	}
	if err := wr.Err(); err != nil {
		return fmt.Errorf("%w: %w", errWatch, err)
	}
	return nil
}

// latest is the revision of the last event of wr.
func latest(wr *clientv3.WatchResponse) int64 {
	if len(wr.Events) == 0 {
		return 0
	}
	return wr.Events[len(wr.Events)-1].Kv.ModRevision
}

// deleted reports whether wr tells that key was deleted above revision rev.
// Deletions up to rev are those of earlier users of the key: a watch on a member
// that lags may still deliver them.
func deleted(wr *clientv3.WatchResponse, key string, rev int64) bool {
	return slices.ContainsFunc(wr.Events, func(ev *clientv3.Event) bool {
		return ev.Type == clientv3.EventTypeDelete && ev.Kv.ModRevision > rev && string(ev.Kv.Key) == key
	})
}

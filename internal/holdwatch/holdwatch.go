// Package holdwatch tells when an entry of a session's holds was removed, and when somebody waits behind it. It opens few
// watches for many holds, and knows nothing of a hold but its entry.
//
// The first 64 holds in a directory of names, "jobs" for "jobs/7", have a watch each. Further holds share one watch on the
// whole directory: the client opens the watches of a stream one after another, so thousands of them would delay the watches
// of waits. The shared watch is told of every deletion in the directory, so it is for sessions that hold much of the directory.
package holdwatch

import (
	"cmp"
	"context"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/keyspace"
	"github.com/etcdlock/etcdlock/internal/outage"
)

const maxSingles = 64 // holds of a directory that have a watch each
const maxOpening = 4  // watches that a session opens at a time
const maxReading = 4  // reads at a time, for waiters, and as many for holds

// A Config is what Watches are made with; H is what stands for a hold. But for Rev, its funcs are called without a
// mutex.
type Config[H comparable] struct {
	Etcd    *etcd.Client
	Ctx     context.Context                  // ends with the session
	Go      func(func(context.Context)) bool // starts a goroutine; false: it is too late, the session ends
	Outages *outage.Source
	Opened  func() // a watch was opened

	Rev     func(h H) int64       // the revision of the hold's entry
	Deleted func(h H, key string) // the hold's entry was deleted, under key
	Ended   func(h H)             // nobody watches the hold any more, since the session ends
	// Verify reads whether the entries of holds are there at revision at, or with 0 at present, and ends the holds
	// whose entries are not.
	Verify func(ctx context.Context, holds []H, at int64) error
}

// Watches are those of a session's holds. They are safe for concurrent use.
type Watches[H comparable] struct {
	Config[H]
	opening, reading, verifying chan struct{} // turns

	mu      sync.Mutex
	dirs    map[string]*dir[H]
	refresh chan struct{} // closed by Refresh
}

// A dir is a directory of names.
type dir[H comparable] struct {
	singles map[string]*watch[H] // by key
	shared  *watch[H]            // nil if there is none
	refused bool                 // etcd does not let us watch the directory
}

// New makes the Watches of a session.
func New[H comparable](c Config[H]) *Watches[H] {
	return &Watches[H]{
		Config: c, opening: make(chan struct{}, maxOpening), reading: make(chan struct{}, maxReading),
		verifying: make(chan struct{}, maxReading), dirs: make(map[string]*dir[H]), refresh: make(chan struct{}),
	}
}

// Watch watches the entry of a hold, which has this key. It returns false if it is too late, since the session ends. Call
// Unwatch in any case.
func (ws *Watches[H]) Watch(key string, h H) bool {
	ws.mu.Lock()
	w, fresh := ws.joinLocked(key, h)
	ws.mu.Unlock()
	return !fresh || ws.Go(w.run)
}

// joinLocked gives the hold a watch, a fresh one or that of its directory.
func (ws *Watches[H]) joinLocked(key string, h H) (w *watch[H], fresh bool) {
	name := keyspace.Dir(key)
	in := keyspace.Dir(name)
	d := ws.dirs[in]
	if d == nil {
		d = &dir[H]{singles: make(map[string]*watch[H])}
		ws.dirs[in] = d
	}
	if w = d.shared; w == nil {
		fresh = true
		w = &watch[H]{ws: ws, dir: d, from: key, label: name, holds: make(map[string]H)}
		w.ctx, w.end = context.WithCancel(ws.Ctx)
		if in != "" && len(d.singles) >= maxSingles && !d.refused {
			w.from, w.to = keyspace.All(in)
			w.label, w.wake = w.from, make(chan struct{}, 1)
			d.shared = w
		} else {
			d.singles[key] = w
		}
	}
	w.holds[key] = h
	w.checkLocked(h)
	return w, fresh
}

// Unwatch is for a hold that has ended, or gets another key. It does nothing if the key is not watched.
func (ws *Watches[H]) Unwatch(key string) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	in := keyspace.Dir(keyspace.Dir(key))
	d := ws.dirs[in]
	if d == nil {
		return
	}
	w := cmp.Or(d.singles[key], d.shared)
	if w == nil {
		return
	}
	if delete(w.holds, key); len(w.holds) > 0 {
		return
	}
	w.end()
	if delete(d.singles, key); w == d.shared {
		d.shared = nil
	}
	if d.shared == nil && len(d.singles) == 0 {
		delete(ws.dirs, in)
	}
}

// open opens a watch, one of few at a time.
func (ws *Watches[H]) open(ctx context.Context, from, to string, opts ...clientv3.OpOption) (*etcd.Watch, error) {
	done, err := turn(ctx, ws.opening)
	if err != nil {
		return nil, err
	}
	defer done()
	w, err := ws.Etcd.OpenWatch(ctx, ws.Ctx, from, to, opts...)
	if err == nil {
		ws.Opened()
	}
	return w, err
}

// verify is Verify, few at a time: if etcd has no leader, all watches end at once, and each asks after its holds.
func (ws *Watches[H]) verify(ctx context.Context, holds []H, at int64) error {
	done, err := turn(ctx, ws.verifying)
	if err != nil {
		return err
	}
	defer done()
	return ws.Verify(ctx, holds, at)
}

// turn waits for one of the turns, which done returns.
func turn(ctx context.Context, turns chan struct{}) (done func(), err error) {
	select {
	case turns <- struct{}{}:
		return func() { <-turns }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Refresh has each AwaitWaiter read anew whether there is a waiter, since its watch may be silent. It does not wait for
// that. It is not for the holds themselves: the session reads now and then whether their entries are there.
func (ws *Watches[H]) Refresh() {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	close(ws.refresh)
	ws.refresh = make(chan struct{})
}

// refreshed is closed by the next Refresh.
func (ws *Watches[H]) refreshed() <-chan struct{} {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	return ws.refresh
}

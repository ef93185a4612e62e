// The stream that the watches of a client share, and what is done when it is bad.

package etcd

import (
	"context"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// All watches of one Watcher share a stream, and with it what may be wrong with that for as
// long as any of them lives: a member that hangs, or a token that has expired, since etcd checks
// new watches with the token that the stream was opened with. So if a watch can't be opened
// although etcd answers, the next watches get a Watcher, and so a stream, of their own. If others
// were opened on the stream meanwhile, the watch only stood in line behind them, and the stream is
// good: otherwise 10,000 watches that are opened at once would get a stream for each second that
// this takes, and each stream costs a question a second. All that goes for etcd's own Watcher only:
// one that the user has put in its place (see clientv3/namespace) can't be made anew.
//
// The watches of a Watcher that was replaced stay: one that can't be opened says little of those that are
// open. So a replaced Watcher is probed like the new one. It is closed after its last watch: otherwise its stream might
// outlive that watch, or the Watcher might go on trying to get a stream until the client is closed.

// A Watcher is a clientv3.Watcher that a Client uses for its watches.
type Watcher struct {
	clientv3.Watcher
	own      bool      // made by the Client, which has to close it
	watches  int       // that are open, or being opened
	open     int       // that are open
	latest   time.Time // when a watch was opened last
	replaced bool      // no watch is opened by it anymore; of the newest one: CloseWatcher was called
	// former are, of the Watcher for new watches, those before it that still have watches.
	former []*Watcher
	// heard is set when one of the watches had something. probed is when Probe asked whether the
	// stream lives, zero if something was heard since.
	heard  atomic.Bool
	probed time.Time
	// probing: the stream is being asked. If its last watch was closed meanwhile, the client would
	// open another stream for that, and keep it. So closing waits until then.
	probing bool
	closing []func()
	// answers is set when the stream has answered such a question. `etcd grpc-proxy` answers none. So a stream that has
	// never answered is asked in another way: whether one more watch, of what is watched already, can be opened on it.
	// opened is when that was last so.
	answers atomic.Bool
	watched atomic.Pointer[watched]
	opened  time.Time
	life    context.Context // of the watches, while there are any: see beginLocked
	end     context.CancelFunc
	// calls of Watch end with calling: with the clientv3.Client, and for a Watcher of the user's when CloseWatcher calls
	// quit. quit is nil for etcd's own Watchers, as NewWatcher makes them. See inBackground. calling is nil before the first watch.
	calls   sync.WaitGroup
	calling context.Context
	quit    context.CancelFunc
	// stays: a watch that was given up stays until it is open. behind: another one must be opened behind it. See dismiss.
	stays, behind bool
}

// watched is a key, or a range, that is watched, and how.
type watched struct {
	key, end string
	opts     []clientv3.OpOption
}

func newWatcher(client *clientv3.Client, of clientv3.Watcher) *Watcher {
	w := &Watcher{Watcher: of}
	if !isPlain(client, of) {
		w.quit = func() {} // before the first watch
	}
	return w
}

// beginLocked is called before the first watch, and again when there was none. A ctx that ends with the clientv3.Client is kept by
// that until somebody ends the ctx. Most Clients have no watch, and nobody closes them: each look at a queue makes one. So a
// Watcher has such a ctx only while it has watches; a Watcher of the user's has one until CloseWatcher. The caller holds the Client's mu.
func (w *Watcher) beginLocked(client context.Context) {
	if w.calling == nil {
		w.calling = client
		if !w.renewable() {
			if w.calling, w.quit = context.WithCancel(client); w.replaced {
				w.quit()
			}
		}
	}
	w.life, w.end = context.WithCancel(w.calling)
}

// inBackground runs f, which calls w.Watch, or returns false if that must not be called any more.
//
// A Watcher that the user has put in the place of etcd's own may not be safe for a Watch while the clientv3.Client is
// closed: that of clientv3/namespace adds to a WaitGroup that its Close waits for. The user may close the clientv3.Client
// once CloseWatcher has returned. So CloseWatcher ends such calls and waits for them. For etcd's own Watcher, which is
// safe, f may go on: it ends streams that would stay.
func (c *Client) inBackground(w *Watcher, f func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if w.calling.Err() != nil {
		return false
	}
	w.calls.Go(f)
	return true
}

// isPlain reports whether a Watcher of NewWatcher can replace w, since both reach etcd by the client's connection. The
// user may have put w in the place of etcd's own Watcher: see clientv3/namespace. A Watcher of
// clientv3.NewWatchFromWatchClient has the type of etcd's own, and only what its interfaces hold tells where it leads.
func isPlain(client *clientv3.Client, w clientv3.Watcher) bool {
	has, plain := reflect.ValueOf(w), reflect.ValueOf(clientv3.NewWatcher(client))
	if !has.IsValid() || has.Type() != plain.Type() {
		return false
	}
	for i := range plain.Elem().NumField() {
		field := has.Elem().Field(i)
		if field.Kind() != reflect.Interface {
			continue
		}
		to := reflect.Indirect(field.Elem())
		if !to.Comparable() || !to.Equal(reflect.Indirect(plain.Elem().Field(i).Elem())) {
			return false
		}
	}
	return true
}

// renewable reports whether NewWatcher can replace w.
func (w *Watcher) renewable() bool { return w.quit == nil }

func (w *Watcher) idle() bool { return w.watches == 0 }

// EnterWatcher returns the Watcher to open a watch with. LeaveWatcher follows.
func (c *Client) EnterWatcher() *Watcher {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.watcher
	if w.watches++; w.watches == 1 {
		w.beginLocked(c.Ctx())
	}
	return w
}

// LeaveWatcher is called when a watch of w is closed, or could not be opened; failed says that
// this was w's fault.
func (c *Client) LeaveWatcher(w *Watcher, failed bool) {
	c.mu.Lock()
	if w.watches--; w.idle() {
		w.end()
	}
	if failed && w == c.watcher && w.renewable() {
		c.suspect.Store(true)
	}
	c.watcher.former = slices.DeleteFunc(c.watcher.former, (*Watcher).idle)
	c.mu.Unlock()
	c.closeUnused(w)
}

// etcdAnswers replaces the Watcher if a watch could not be opened: that was not etcd's fault.
func (c *Client) etcdAnswers() {
	if c.suspect.Load() && c.suspect.CompareAndSwap(true, false) {
		c.ReplaceWatcher()
	}
}

// ReplaceWatcher gives the next watches a new stream, where that is possible.
func (c *Client) ReplaceWatcher() {
	c.mu.Lock()
	old := c.watcher
	c.renewLocked()
	c.mu.Unlock()
	c.closeUnused(old)
}

// renewLocked gives the next watches a new stream, or returns false. After CloseWatcher there is none, since nobody would close
// its Watcher. The caller holds c.mu.
func (c *Client) renewLocked() bool {
	if !c.watcher.renewable() || c.watcher.replaced {
		return false
	}
	w := newWatcher(c.Client, clientv3.NewWatcher(c.Client))
	w.own = true
	c.swapLocked(w)
	return true
}

// swapLocked has the next watches use w. The caller holds c.mu.
func (c *Client) swapLocked(w *Watcher) {
	old := c.watcher
	old.replaced = true
	w.former = slices.DeleteFunc(append(old.former, old), (*Watcher).idle)
	c.watcher = w
	c.suspect.Store(false) // that was old
}

// CloseWatcher closes what the client has made for its watches, once the last of them is
// closed. No watch is opened after it. The watches of a Watcher of the user's end: see inBackground.
func (c *Client) CloseWatcher() {
	c.mu.Lock()
	w := c.watcher
	w.replaced = true
	renewable := w.renewable()
	if !renewable {
		w.quit()
	}
	c.mu.Unlock()
	c.closeUnused(w)
	if renewable {
		return
	}
	returned := make(chan struct{})
	go func() {
		defer close(returned)
		w.calls.Wait()
	}()
	select {
	case <-returned:
	case <-time.After(AttemptMin): // its Watch does not end with its ctx
	}
}

// closeUnused closes w if no watch uses it or will use it.
func (c *Client) closeUnused(w *Watcher) {
	c.mu.Lock()
	unused := w.own && w.replaced && w.idle()
	c.mu.Unlock()
	if unused {
		_ = w.Close()
	}
}

// UseWatcher gives the next watches w, for tests.
func (c *Client) UseWatcher(w clientv3.Watcher) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.watcher = newWatcher(c.Client, w)
}

// closeWatch closes a watch of w by cancel.
func (c *Client) closeWatch(w *Watcher, cancel func()) {
	c.mu.Lock()
	if w.probing {
		w.closing = append(w.closing, func() { c.closeWatch(w, cancel) })
		c.mu.Unlock()
		return
	}
	w.open--
	c.mu.Unlock()
	cancel()
	c.LeaveWatcher(w, false)
}

// OwnWatcher reports whether the next watches get a Watcher that the Client has made.
func (c *Client) OwnWatcher() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.watcher.own
}

// Watches reports whether a watch is open, or being opened.
func (c *Client) Watches() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.watcher.idle() || len(c.watcher.former) > 0
}

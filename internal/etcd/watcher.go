// The stream that the watches of a client share, and what is done when it is bad.

package etcd

import (
	"context"
	"reflect"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// All watches of one Watcher share a stream, and with it what may be wrong with that for as
// long as any of them lives: a member that hangs, or a token that has expired, since etcd checks
// new watches with the token that the stream was opened with. So if a watch can't be opened
// although etcd answers, the next watches get a Watcher, and so a stream, of their own. That
// goes for etcd's own Watcher only: one that the user has put in its place (see
// clientv3/namespace) can't be made anew.
//
// A Watcher that was replaced is closed after its last watch: its stream may outlive that, or it
// may go on trying to get one until the client is closed.

// A Watcher is a clientv3.Watcher that a Client uses for its watches.
type Watcher struct {
	clientv3.Watcher
	own      bool // made by the Client, which has to close it
	watches  int  // that are open, or being opened
	replaced bool
	// heard is set when one of the watches had something. probed is when Probe asked whether the
	// stream lives, if nothing was heard since, and else zero.
	heard  atomic.Bool
	probed time.Time
	// probing: the stream is being asked. If its last watch was closed meanwhile, the client would
	// open another stream for that, and keep it. So closing waits until then.
	probing bool
	closing []func()
	life    context.Context // of the watches
	end     context.CancelFunc
}

func newWatcher(client *clientv3.Client, of clientv3.Watcher) *Watcher {
	w := &Watcher{Watcher: of}
	w.life, w.end = context.WithCancel(context.Background())
	return w
}

// renewable reports whether w is etcd's own Watcher, as NewWatcher makes them.
func renewable(client *clientv3.Client, w clientv3.Watcher) bool {
	return reflect.TypeOf(w) == reflect.TypeOf(clientv3.NewWatcher(client))
}

func (w *Watcher) unused() bool { return w.own && w.replaced && w.watches == 0 }

// EnterWatcher is called to open a watch: it returns the Watcher to do so with.
func (c *Client) EnterWatcher() *Watcher {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.watcher.watches++
	return c.watcher
}

// LeaveWatcher is called when a watch of w is closed, or could not be opened; failed says that
// this was w's fault.
func (c *Client) LeaveWatcher(w *Watcher, failed bool) {
	c.mu.Lock()
	w.watches--
	unused := w.unused()
	if failed && w == c.watcher && renewable(c.Client, w.Watcher) {
		c.suspect.Store(true)
	}
	c.mu.Unlock()
	if unused {
		_ = w.Close()
	}
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
	can := renewable(c.Client, c.watcher.Watcher)
	c.mu.Unlock()
	if can {
		w := newWatcher(c.Client, clientv3.NewWatcher(c.Client))
		w.own = true
		c.swapWatcher(w)
	}
}

// CloseWatcher closes what the client has made for its watches, once the last of them is
// closed. No watch is opened after it.
func (c *Client) CloseWatcher() { c.swapWatcher(nil) }

func (c *Client) swapWatcher(w *Watcher) {
	c.mu.Lock()
	old := c.watcher
	old.replaced = true
	unused := old.unused()
	if w != nil {
		c.watcher = w
	}
	c.mu.Unlock()
	if unused {
		_ = old.Close()
	}
}

// UseWatcher gives the next watches w, for tests.
func (c *Client) UseWatcher(w clientv3.Watcher) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.watcher = newWatcher(c.Client, w)
}

// Probe asks the stream of the watches, if there are any, whether it lives, unless something was
// heard of it since the last Probe. If nothing was heard for AttemptMin since it was asked, it is on
// a member that hangs, or that is cut off: the watches end, and the next ones get another stream.
// silent says that this is so and that no other stream can be had; the watches go on then, and may
// be silent.
//
// Clients of one clientv3.Client share its stream, and etcd's answer goes to all of their watches. So
// one of them asks, and the others have heard of it.
//
// A watch that can't be opened is no such sign: it may stand in line behind others.
func (c *Client) Probe(ctx context.Context) (silent bool) {
	c.mu.Lock()
	w := c.watcher
	heard := w.heard.Swap(false)
	ask := w.watches > 0 && !heard
	switch {
	case !ask:
		w.probed = time.Time{}
	case w.probed.IsZero():
		w.probed = time.Now()
	case time.Since(w.probed) >= AttemptMin+c.pace.late():
		silent = true
	}
	if silent && renewable(c.Client, w.Watcher) {
		c.mu.Unlock()
		c.ReplaceWatcher()
		w.end()
		return false
	}
	w.probing = ask
	c.mu.Unlock()
	if ask {
		ctx, cancel := context.WithTimeout(clientv3.WithRequireLeader(ctx), AttemptMin)
		_ = w.RequestProgress(ctx) // if it fails, there is silence
		cancel()
		c.mu.Lock()
		w.probing = false
		closing := w.closing
		w.closing = nil
		c.mu.Unlock()
		for _, f := range closing {
			f()
		}
	}
	return silent
}

// closeWatch closes a watch of w by cancel.
func (c *Client) closeWatch(w *Watcher, cancel func()) {
	c.mu.Lock()
	if w.probing {
		w.closing = append(w.closing, func() { c.closeWatch(w, cancel) })
		c.mu.Unlock()
		return
	}
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
	return c.watcher.watches > 0
}

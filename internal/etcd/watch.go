// A watch that begins now.

package etcd

import (
	"context"
	"fmt"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// A Watch is an etcd watch that was opened from now: every event above revision At is delivered
// on C.
type Watch struct {
	C     clientv3.WatchChan
	At    int64
	Close context.CancelFunc
	// Closed is closed by Close, and when the watch's life has ended. C is closed then too, unless a Watcher of the user's
	// forgets to close it.
	Closed <-chan struct{}
	by     *Watcher
	shows  func(rev int64)
}

// Heard says that C had something, whatever it was: see Probe.
func (w *Watch) Heard(wr *clientv3.WatchResponse) {
	w.by.heard.Store(true)
	if wr.IsProgressNotify() {
		w.by.answers.Store(true)
	}
	w.shows(Latest(wr))
}

// OpenWatch watches key, or the range from key to end if that is not empty, with the client's
// Watcher, until the watch is closed or life ends. It notes how that goes for the Watcher: see
// etcdAnswers.
func (c *Client) OpenWatch(ctx, life context.Context, key, end string, opts ...clientv3.OpOption) (*Watch, error) {
	by, before, began := c.EnterWatcher(), c.shown.revision.Load(), time.Now()
	w, err := c.open(ctx, by, key, end, opts...)
	if err != nil {
		c.mu.Lock()
		inLine := by.latest.After(began)
		c.mu.Unlock()
		c.LeaveWatcher(by, ctx.Err() == nil && !inLine)
		return nil, err
	}
	by.heard.Store(true) // etcd's notice that the watch is there
	by.watched.Store(&watched{key, end, opts})
	c.mu.Lock()
	by.open++
	by.latest = time.Now()
	c.mu.Unlock()
	c.hints(&pb.ResponseHeader{Revision: w.At}, before)
	cancel := w.Close
	closeOnce := sync.OnceFunc(func() { c.closeWatch(by, cancel) })
	stop := context.AfterFunc(life, closeOnce)
	w.by, w.shows, w.Close = by, c.shows, func() { stop(); closeOnce() }
	return w, nil
}

// Broken is the error of a watch that ended with wr, nil if it goes on. It is always ErrWatch:
// whatever ends a watch, a read tells whether it is for good.
func Broken(wr *clientv3.WatchResponse, ok bool) error {
	if !ok {
		return ErrWatch
	}
	if err := wr.Err(); err != nil {
		return fmt.Errorf("%w: %w", ErrWatch, err)
	}
	return nil
}

// Latest is the revision of the last event of wr, 0 if it has none.
func Latest(wr *clientv3.WatchResponse) int64 {
	if len(wr.Events) == 0 {
		return 0
	}
	return wr.Events[len(wr.Events)-1].Kv.ModRevision
}

// Events returns the events of wr by the type that api names. In client 3.6 clientv3.Event is a type of its own; from 3.7 on
// it is an alias.
func Events(wr *clientv3.WatchResponse) []*mvccpb.Event {
	events := make([]*mvccpb.Event, len(wr.Events))
	for i, ev := range wr.Events {
		events[i] = &mvccpb.Event{Type: ev.Type, Kv: ev.Kv, PrevKv: ev.PrevKv}
	}
	return events
}

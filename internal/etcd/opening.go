// How a watch is opened, or given up before it is open.

package etcd

import (
	"cmp"
	"context"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// An opening is what to open a watch with.
type opening struct {
	client   *Client
	by       *Watcher
	key, end string
	opts     []clientv3.OpOption
}

// open opens a watch and waits for etcd's notice that it is there. It gives up after the time that a request gets, since a
// watch waits silently for a member that hangs, and when the watches of the Watcher must end.
//
// It names no start revision. etcd serves a watch that starts at a revision it already has from
// a loop that runs each 100 ms (watchResyncPeriod), which is why concurrency.Mutex hands over
// 28 times a second between two contenders. So the watch comes first, and what happened before
// it is read afterwards.
//
// It requires a leader: the watch ends when its member is cut off from the rest. Without that
// it would stay silent for as long as the cut lasts.
func (c *Client) open(ctx context.Context, by *Watcher, key, end string, opts ...clientv3.OpOption) (*Watch, error) {
	if ctx.Err() != nil {
		return nil, ErrWatch
	}
	o := opening{c, by, key, end, append(slices.Clip(opts), clientv3.WithCreatedNotify())}
	if end != "" {
		o.opts = append(o.opts, clientv3.WithRange(end))
	}
	w, wctx := o.begin()
	opened, givenUp := make(chan error), make(chan bool, 1)
	begun := c.inBackground(by, func() { // ends when etcd has opened the watch, with the clientv3.Client at the latest
		err := o.await(wctx, w)
		select {
		case opened <- err:
		case stays := <-givenUp:
			o.dismiss(w.Close, stays)
		}
	})
	if !begun {
		w.Close()
		return nil, ErrWatch
	}
	timer := time.NewTimer(c.patience())
	defer timer.Stop()
	why := ErrWatch
	select {
	case err := <-opened:
		if err == nil && ctx.Err() == nil {
			return o.opened(w), nil
		}
		w.Close()
		return nil, cmp.Or(err, ErrWatch)
	case <-ctx.Done():
	case <-timer.C:
		why = ErrWatchLate
	case <-by.life.Done():
	}
	c.mu.Lock()
	stays := !by.stays
	by.stays = true
	c.mu.Unlock()
	if !stays {
		w.Close()
	}
	givenUp <- stays
	return nil, why
}

// begin makes the Watch, for await to open. It ends with the clientv3.Client, or with a Watcher of the user's.
func (o *opening) begin() (*Watch, context.Context) {
	ctx, end := Bind(clientv3.WithRequireLeader(context.Background()), o.by.calling)
	return &Watch{Close: end, Closed: ctx.Done()}, ctx
}

// await opens the watch, however long that takes.
func (o *opening) await(ctx context.Context, w *Watch) error {
	w.C = o.by.Watch(ctx, o.key, o.opts...)
	select {
	case created, ok := <-w.C:
		w.At = created.Header.GetRevision()
		return Broken(&created, ok && created.Created)
	case <-o.by.calling.Done(): // a Watcher of the user's may forget to close C
		return ErrWatch
	}
}

// opened is w, which is open, for its user.
func (o *opening) opened(w *Watch) *Watch {
	end := w.Close
	stop := context.AfterFunc(o.by.life, end)
	w.Close = func() {
		stop()
		end()
		// Without a connection clientv3 is about to open the watches anew, and this one was given up before it was open.
		if !o.client.Connected() {
			o.client.inBackground(o.by, func() { o.dismiss(end, false) })
		}
	}
	return w
}

// dismiss ends a watch that was given up, once it is open, has failed or has ended.
//
// clientv3 ends a stream with its last watch. But if the last watch ends before etcd has opened it, the stream stays without a
// watch, until another watch ends the stream, or the clientv3.Client is closed. So of the watches of a Watcher that are given up
// one stays until it is open, however late that is. The watches that are given up meanwhile end at once, so that they don't
// become many while etcd is away. Etcd may be about to open one of these behind the watch that stays. So dismiss opens another
// watch behind them before the watch that stays ends.
//
// If the user has put a Watcher in the place of etcd's own, dismiss ends with CloseWatcher: see inBackground.
func (o *opening) dismiss(end func(), stays bool) {
	for o.another(stays) {
		next, ctx := o.begin()
		// If it fails, its stream has ended, or etcd does not let us watch, and has answered for all before it.
		_ = o.await(ctx, next)
		end()
		end, stays = next.Close, true
	}
	end()
}

// another reports whether a watch that was given up, and is open or has failed, needs another watch behind it. stays says that
// the watch was the one to stay.
func (o *opening) another(stays bool) bool {
	o.client.mu.Lock()
	defer o.client.mu.Unlock()
	switch by := o.by; {
	case by.calling.Err() != nil:
		return false
	case !stays && by.stays:
		by.behind = true // for the one that stays
		return false
	case !stays:
		by.stays = true // this one has ended since, so the next one stays
		return true
	case by.behind:
		by.behind = false
		return true
	default:
		by.stays = false
		return false
	}
}

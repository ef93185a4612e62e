// Package etcd sends requests to etcd until they are answered, and opens watches, through
// members that hang, leaders that change and replies that are lost. It knows nothing of locks.
package etcd

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// A Client is a clientv3.Client, and what one user of it has learnt from its requests: how
// long answers take, and whether its stream of watches is any good. It is safe for concurrent
// use. Close it by CloseWatcher; the clientv3.Client stays open.
type Client struct {
	*clientv3.Client
	// Deadline, if set, is the time by which the user needs an answer. It is set before the first request.
	Deadline func() time.Time
	// Life, if set, is what most requests end with: see lane. It is set before the first request.
	Life context.Context
	// Restored, if set, is told, perhaps more than once, that etcd has lost what it has shown before: see shown. The user gets
	// a reply that proves it only after that. Background runs what is asked then, or returns false. Both are set before the
	// first request.
	Restored   func(err error)
	Background func(f func(ctx context.Context)) bool

	shown   shown
	pace    pace
	lanes   lanes
	waker   waker
	calls   calls
	suspect atomic.Bool // a watch could not be opened with watcher

	mu      sync.Mutex
	watcher *Watcher // for new watches
}

// NewClient makes a Client. It makes no request.
func NewClient(client *clientv3.Client) *Client {
	c := &Client{Client: client, watcher: newWatcher(client, client.Watcher)}
	c.waker.reset = func() { resetBackoff(client) }
	return c
}

// Package etcd sends requests to etcd until they are answered, and opens watches, through
// members that hang, leaders that change and replies that are lost. It knows nothing of locks.
package etcd

import (
	"sync"
	"sync/atomic"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// A Client is a clientv3.Client, and what one user of it has learnt from its requests: how
// long answers take, and whether its stream of watches is any good. It is safe for concurrent
// use. Close it by CloseWatcher; the clientv3.Client stays open.
type Client struct {
	*clientv3.Client
	pace    pace
	suspect atomic.Bool // a watch could not be opened with watcher

	mu      sync.Mutex
	watcher *Watcher // for new watches
}

// NewClient makes a Client. It makes no request.
func NewClient(client *clientv3.Client) *Client {
	return &Client{Client: client, watcher: newWatcher(client, client.Watcher)}
}

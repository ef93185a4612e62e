// Package consumer is a user of the lock, and its test one of etcdtest. The section floor of .ci/run makes a module of it.
package consumer

import (
	"context"

	"github.com/etcdlock/etcdlock"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Report calls f in one process at a time.
func Report(ctx context.Context, client *clientv3.Client, f func(ctx context.Context) error) error {
	locks := etcdlock.New(client)
	defer func() { _ = locks.Close() }()
	return locks.Mutex("consumer/report").Do(ctx, func(ctx context.Context, _ *etcdlock.Held) error { return f(ctx) })
}

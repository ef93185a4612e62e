package main

import (
	"context"
	"errors"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/cmd/etcdlock/internal/connect"
)

// checkEach is how often show --watch checks that etcd answers.
const checkEach = 5 * time.Second

// outages watches etcd for show --watch.
func outages(ctx context.Context, client *clientv3.Client, etcd *connect.Config, name string) <-chan string {
	return silences(ctx, func(ctx context.Context) error { return ping(ctx, client, name, etcd.DialTimeout) }, etcd.Why)
}

// silences delivers why etcd does not answer when an outage begins, and "" when it ends.
// The library's Watch yields nothing then, since the queue may not have changed. But
// somebody who looks at a screen would take an old state for the current one.
func silences(ctx context.Context, check func(context.Context) error, explain func(error) string) <-chan string {
	changes := make(chan string)
	go func() { // ends with ctx
		tick := time.NewTicker(checkEach)
		defer tick.Stop()
		for silent := false; ; {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
			err := check(ctx)
			if ctx.Err() != nil || silent == (err != nil) {
				continue
			}
			silent = err != nil
			why := ""
			if silent {
				why = explain(err)
			}
			select {
			case changes <- why:
			case <-ctx.Done():
			}
		}
	}()
	return changes
}

// ping makes a small read that needs a leader, and no other right than show does.
func ping(ctx context.Context, client *clientv3.Client, name string, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	_, err := connect.Count(ctx, client, name+"/")
	if errors.Is(err, rpctypes.ErrPermissionDenied) {
		return nil // an answer; Watch fails with it, too
	}
	return err
}

package main

import (
	"context"
	"errors"
	"iter"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
)

// What the commands that look at locks make of a NAME that ends in "/". It may be the name of a lock, of programs that use
// etcd's own concurrency package or the drop-in for it. But etcdlock ls wants its prefix so, and the shell completes a
// directory so, and most who type it mean the name without the "/".

// looks is a Client to look at queues with, also at those of names that end in "/".
func looks(client *clientv3.Client) *etcdlock.Client {
	return etcdlock.New(client, etcdlock.WithTrailingSlash())
}

// A reader reads a queue.
type reader func(ctx context.Context, name string) (etcdlock.Queue, error)

// meant reads the queue that is meant by NAME: that of the name as typed. Without its last "/" it is meant only if nobody
// uses it as typed, and somebody uses that.
func meant(ctx context.Context, read reader, name string) (etcdlock.Queue, error) {
	q, err := read(ctx, name)
	bare, cut := strings.CutSuffix(name, "/")
	if !cut || err != nil || len(q.Entries) > 0 {
		return q, err
	}
	switch other, err := read(ctx, bare); {
	case errors.Is(err, rpctypes.ErrPermissionDenied): // the right to lock the name as typed does not include it
	case err != nil:
		return q, err
	case len(other.Entries) > 0:
		return other, nil
	}
	return q, nil
}

// watch yields the queue that is meant by NAME at the beginning, and its changes.
func watch(ctx context.Context, client *clientv3.Client, name string) iter.Seq2[etcdlock.Queue, error] {
	return func(yield func(etcdlock.Queue, error) bool) {
		if endsInSlash(name) {
			q, err := meant(ctx, func(ctx context.Context, name string) (etcdlock.Queue, error) { return glance(ctx, client, name) }, name)
			if err != nil {
				yield(q, err)
				return
			}
			name = q.Name
		}
		looks(client).Watch(ctx, name)(yield)
	}
}

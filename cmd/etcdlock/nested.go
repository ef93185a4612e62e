package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
)

// The variables that tell a command under which lock it runs.
const (
	nameVariable  = "ETCDLOCK_NAME"
	keyVariable   = "ETCDLOCK_KEY"
	tokenVariable = "ETCDLOCK_TOKEN"
)

// wouldWaitForItself returns an error if this process runs under a `run` or `elect` of
// the same lock: it would wait for a command that waits for it. The variables alone
// don't prove that, since a process keeps them after it has left that command. So it
// asks etcd whether that hold still exists.
func wouldWaitForItself(ctx context.Context, client *clientv3.Client, name string, read bool, timeout time.Duration) error {
	if os.Getenv(nameVariable) != name {
		return nil
	}
	q, err := readQueue(ctx, client, name, timeout)
	if err != nil {
		return nil // the wait notice says what is wrong
	}
	key, token := os.Getenv(keyVariable), os.Getenv(tokenVariable)
	outer := slices.IndexFunc(q.Entries, func(e etcdlock.Entry) bool { return e.Key == key && strconv.FormatInt(e.Token, 10) == token })
	switch {
	case outer < 0:
		return nil
	case !read || !q.Entries[outer].Read:
		return fmt.Errorf("%s: it would wait for itself: it runs under this lock already (%s); leave the inner etcdlock out, or name another lock",
			shown(name), nameVariable)
	case slices.ContainsFunc(q.Entries[outer:], func(e etcdlock.Entry) bool { return !e.Read }):
		return fmt.Errorf("%s: it would wait for itself: it runs under this lock already (%s), and a writer waits in between; leave the inner etcdlock out",
			shown(name), nameVariable)
	}
	return nil // readers share the lock
}

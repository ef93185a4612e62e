package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/term"

	"github.com/etcdlock/etcdlock"
)

// tellAfter is how long somebody at a terminal waits before being told for what.
const tellAfter = time.Second

// tellWait tells somebody at a terminal, once, what keeps the lock from being
// had. stop ends it.
func tellWait(ctx context.Context, client *clientv3.Client, name, self string) (stop func()) {
	if !term.IsTerminal(int(os.Stderr.Fd())) {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { // until stop
		defer close(done)
		timer := time.NewTimer(tellAfter)
		defer timer.Stop()
		select {
		case <-timer.C:
			if who, err := holder(ctx, client, name, self); err == nil && ctx.Err() == nil {
				say(name, "waiting: %s", who)
			}
		case <-ctx.Done():
		}
	}()
	return func() { cancel(); <-done }
}

// holder says who holds a lock, and how many others than self wait for it.
func holder(ctx context.Context, client *clientv3.Client, name, self string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	q, err := etcdlock.Inspect(ctx, client, name)
	switch {
	case err != nil:
		return "", err
	case len(q.Entries) == 0:
		return "it was taken just now", nil
	}
	who := "held by " + describe(q.Entries[0], time.Now())
	if n := len(q.Holders()); n > 1 {
		who += fmt.Sprintf(" and %d more", n-1)
	}
	others := slices.DeleteFunc(q.Waiters(), func(e etcdlock.Entry) bool { return e.Owner == self })
	if n := len(others); n > 0 {
		who += fmt.Sprintf(", %d waiting", n)
	}
	return who, nil
}

package main

import (
	"context"
	"errors"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
)

// bounded returns a ctx with a deadline, so that a hang fails the test.
func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func newSession(t *testing.T, client *clientv3.Client) *etcdlock.Session {
	t.Helper()
	session, err := etcdlock.NewSession(bounded(t), client, etcdlock.WithTTL(6*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	return session
}

// Nothing goes wrong. The test needs no installed etcd and no fake.
func TestImport(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	session := newSession(t, cluster.Client(t))
	rows := make(chan int, 3)
	rows <- 1
	rows <- 2
	close(rows)
	if err := Import(bounded(t), session, rows); err != nil {
		t.Fatal(err)
	}
	if err := session.Close(); err != nil {
		t.Fatal(err)
	}
}

// Two imports at a time: the second one waits for the first.
func TestImport_Excludes(t *testing.T) {
	t.Parallel()
	client := etcdtest.Start(t).Client(t)
	first, second := newSession(t, client), newSession(t, client)
	rows, more := make(chan int), make(chan int)
	done := make(chan error, 1)
	go func() { done <- Import(bounded(t), first, rows) }()
	rows <- 1 // the first import now has the lock
	if _, err := etcdlock.NewMutex(second, "jobs/import").TryLock(bounded(t)); !errors.Is(err, etcdlock.ErrLocked) {
		t.Fatal("TryLock must fail while the import runs:", err)
	}
	close(rows)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	go func() { done <- Import(bounded(t), second, more) }()
	more <- 1
	close(more)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// The network is cut: the import must end before another process can begin one.
func TestImport_CutOff(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	proxy := cluster.Proxy(t)
	session := newSession(t, cluster.Client(t, proxy))
	rows := make(chan int)
	done := make(chan error, 1)
	go func() { done <- Import(bounded(t), session, rows) }()
	rows <- 1
	proxy.Blackhole(etcdtest.ToServer)
	if _, err := etcdlock.NewMutex(newSession(t, cluster.Client(t)), "jobs/import").Lock(bounded(t)); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-done:
		if !errors.Is(err, etcdlock.ErrLost) {
			t.Fatal(err)
		}
	default:
		t.Fatal("the import still runs although another session has the lock")
	}
}

// An operator breaks the lock.
func TestImport_Broken(t *testing.T) {
	t.Parallel()
	client := etcdtest.Start(t).Client(t)
	session := newSession(t, client)
	rows := make(chan int)
	done := make(chan error, 1)
	go func() { done <- Import(bounded(t), session, rows) }()
	rows <- 1
	queue, err := etcdlock.New(client).Inspect(bounded(t), "jobs/import")
	if err != nil {
		t.Fatal(err)
	}
	if err := etcdlock.New(client).Break(bounded(t), queue.Holders()[0]); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, etcdlock.ErrLost) {
		t.Fatal(err)
	}
}

package etcdlock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"os"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
)

// exampleClient is a client of an etcd started for one example.
func exampleClient() (client *clientv3.Client, stop func()) {
	dir, err := os.MkdirTemp("", "etcdlock-example-")
	if err != nil {
		log.Fatal(err)
	}
	cluster, err := etcdtest.New(dir)
	if err != nil {
		log.Fatal(err)
	}
	client, err = cluster.NewClient()
	if err != nil {
		log.Fatal(err)
	}
	return client, func() {
		client.Close()
		cluster.Close()
		os.RemoveAll(dir)
	}
}

func Example() {
	client, stop := exampleClient()
	defer stop()
	ctx := context.Background()

	locks := etcdlock.New(client, etcdlock.WithLogger(slog.Default()))
	defer locks.Close()
	m := locks.Mutex("jobs/report")
	err := m.Do(ctx, func(ctx context.Context, h *etcdlock.Held) error {
		fmt.Println("only one replica is in here")
		return ctx.Err() // ctx ends when the lock is lost
	})
	if err != nil {
		log.Print(err) // log.Fatal would skip Close
	}
	// Output: only one replica is in here
}

func ExampleMutex_TryLock() {
	client, stop := exampleClient()
	defer stop()
	ctx := context.Background()
	locks := etcdlock.New(client)
	defer locks.Close()

	m := locks.Mutex("jobs/report")
	h, err := m.TryLock(ctx)
	fmt.Println(err)
	_, err = m.TryLock(ctx)
	fmt.Println(errors.Is(err, etcdlock.ErrLocked))
	fmt.Println(h.Unlock(ctx))
	// Output:
	// <nil>
	// true
	// <nil>
}

func ExampleMutex_Enqueue() {
	client, stop := exampleClient()
	defer stop()
	ctx := context.Background()
	locks := etcdlock.New(client)
	defer locks.Close()

	ticket, err := locks.Mutex("jobs/report").Enqueue(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = ticket.Cancel(ctx) }() // does nothing once the hold is claimed
	select {
	case <-ticket.Done():
		h, err := ticket.Wait(ctx)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("granted")
		if err := h.Unlock(ctx); err != nil {
			log.Fatal(err)
		}
	case <-time.After(time.Minute):
		fmt.Println("something else to do")
	}
	// Output: granted
}

func ExampleHeld_Txn() {
	client, stop := exampleClient()
	defer stop()
	ctx := context.Background()
	locks := etcdlock.New(client)
	defer locks.Close()

	h, err := locks.Mutex("accounts").Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	if _, err := h.Txn(ctx).Then(clientv3.OpPut("balance", "10")).Commit(); err != nil {
		log.Fatal(err)
	}
	// Somebody revokes the lease; this process goes on.
	if _, err := client.Revoke(ctx, h.Session().Lease()); err != nil {
		log.Fatal(err)
	}
	_, err = h.Txn(ctx).Then(clientv3.OpPut("balance", "0")).Commit()
	fmt.Println(errors.Is(err, etcdlock.ErrLost))
	got, err := client.Get(ctx, "balance")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", got.Kvs[0].Value)
	// Output:
	// true
	// 10
}

func ExampleHeld_Downgrade() {
	client, stop := exampleClient()
	defer stop()
	ctx := context.Background()
	locks := etcdlock.New(client)
	defer locks.Close()

	config := locks.RWMutex("config")
	w, err := config.Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	if err := w.Downgrade(ctx); err != nil { // nobody writes in between
		log.Fatal(err)
	}
	r, err := config.TryRLock(ctx)
	fmt.Println("another reader:", err)
	fmt.Println(r.Unlock(ctx), w.Unlock(ctx))
	// Output:
	// another reader: <nil>
	// <nil> <nil>
}

func ExampleElector_Run() {
	client, stop := exampleClient()
	defer stop()
	ctx, shutDown := context.WithCancel(context.Background()) // or signal.NotifyContext
	defer shutDown()

	locks := etcdlock.New(client, etcdlock.WithOwner("replica 1"))
	defer locks.Close()
	elector := locks.Elector("billing/leader")
	err := elector.Run(ctx, func(ctx context.Context, term *etcdlock.Held) error {
		leader, err := elector.Leader(ctx)
		if err != nil {
			return err
		}
		fmt.Println(leader.Owner, "leads:", elector.IsLeader())
		shutDown()
		<-ctx.Done() // work until then: ctx ends also when the term is lost
		return ctx.Err()
	})
	fmt.Println(errors.Is(err, context.Canceled))
	_, err = elector.Leader(context.Background())
	fmt.Println(errors.Is(err, etcdlock.ErrElectionNoLeader))
	// Output:
	// replica 1 leads: true
	// true
	// true
}

func ExampleNew() {
	client, stop := exampleClient()
	defer stop()
	ctx := context.Background()

	locks := etcdlock.New(client) // once, for the whole process
	defer locks.Close()
	m := locks.Mutex("jobs/report")
	h, err := m.Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	// Somebody revokes the lease: what is held is lost.
	queue, err := locks.Inspect(ctx, "jobs/report")
	if err != nil {
		log.Fatal(err)
	}
	if _, err := client.Revoke(ctx, queue.Entries[0].Lease); err != nil {
		log.Fatal(err)
	}
	<-h.Done()
	fmt.Println(errors.Is(h.Err(), etcdlock.ErrLost))
	// The next lock is taken in another session.
	h, err = m.Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(h.Unlock(ctx))
	// Output:
	// true
	// <nil>
}

func ExampleClient_Inspect() {
	client, stop := exampleClient()
	defer stop()
	ctx := context.Background()
	locks := etcdlock.New(client, etcdlock.WithOwner("worker 1"))
	defer locks.Close()
	m := locks.RWMutex("jobs/report")
	if _, err := m.RLock(ctx); err != nil {
		log.Fatal(err)
	}
	if _, err := m.Enqueue(ctx); err != nil {
		log.Fatal(err)
	}

	queue, err := locks.Inspect(ctx, "jobs/report")
	if err != nil {
		log.Fatal(err)
	}
	for _, e := range queue.Holders() {
		fmt.Println(e.Owner, "reads:", e.Read, "with a TTL of", e.GrantedTTL)
	}
	for _, e := range queue.Waiters() {
		fmt.Println(e.Owner, "waits to read:", e.Read)
	}
	// Output:
	// worker 1 reads: true with a TTL of 10s
	// worker 1 waits to read: false
}

// A key without a lease, written by hand, would keep its lock for ever.
func ExampleClient_Break() {
	client, stop := exampleClient()
	defer stop()
	ctx := context.Background()
	if _, err := client.Put(ctx, "jobs/report/1f", ""); err != nil {
		log.Fatal(err)
	}

	locks := etcdlock.New(client) // looking at locks takes no session
	for name, err := range locks.ListNames(ctx, "jobs/") {
		if err != nil {
			log.Fatal(err)
		}
		queue, err := locks.Inspect(ctx, name)
		if err != nil {
			log.Fatal(err)
		}
		for _, e := range queue.Holders() {
			if e.Lease != 0 {
				continue
			}
			fmt.Println(e.Key, "has no lease")
			fmt.Println(locks.Break(ctx, e))
			fmt.Println(errors.Is(locks.Break(ctx, e), etcdlock.ErrNotFound))
		}
	}
	// Output:
	// jobs/report/1f has no lease
	// <nil>
	// true
}

func ExampleClient_Watch() {
	client, stop := exampleClient()
	defer stop()
	ctx := context.Background()
	locks := etcdlock.New(client, etcdlock.WithOwner("worker 1"))
	m := locks.Mutex("jobs/report")

	for queue, err := range locks.Watch(ctx, "jobs/report") {
		if err != nil {
			log.Fatal(err) // the last thing that comes
		}
		holders := queue.Holders()
		if len(holders) > 0 {
			fmt.Println("held by", holders[0].Owner)
			break
		}
		fmt.Println("held by nobody")
		if _, err := m.Lock(ctx); err != nil {
			log.Fatal(err)
		}
	}
	if err := locks.Close(); err != nil {
		log.Fatal(err)
	}
	// Output:
	// held by nobody
	// held by worker 1
}

func ExampleRWMutex() {
	client, stop := exampleClient()
	defer stop()
	ctx := context.Background()
	locks := etcdlock.New(client)
	defer locks.Close()

	config := locks.RWMutex("config")
	read := func(ctx context.Context, _ *etcdlock.Held) error {
		_, err := config.TryLock(ctx)
		fmt.Println("a writer must wait:", errors.Is(err, etcdlock.ErrLocked))
		return nil
	}
	if err := config.RDo(ctx, read); err != nil {
		log.Fatal(err)
	}
	err := config.Do(ctx, func(context.Context, *etcdlock.Held) error {
		fmt.Println("the writer is alone")
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output:
	// a writer must wait: true
	// the writer is alone
}

// A session is one lease. Its end is the end of all of its locks, and it is not replaced by another.
func ExampleSession() {
	client, stop := exampleClient()
	defer stop()
	ctx := context.Background()

	session, err := etcdlock.NewSession(ctx, client, etcdlock.WithTTL(5*time.Second))
	if err != nil {
		log.Fatal(err)
	}
	defer session.Close()
	h, err := etcdlock.NewMutex(session, "jobs/report").Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	if err := session.Close(); err != nil { // revokes the lease
		log.Fatal(err)
	}
	<-h.Done()
	fmt.Println(errors.Is(h.Err(), etcdlock.ErrLost), errors.Is(h.Err(), etcdlock.ErrSessionClosed))
	// Output: true true
}

// A ticket is a place in the queue, for a caller that has something else to do while it waits.
func ExampleTicket() {
	client, stop := exampleClient()
	defer stop()
	ctx := context.Background()
	locks := etcdlock.New(client)
	defer locks.Close()

	m := locks.Mutex("jobs/report")
	h, err := m.Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	ticket, err := m.Enqueue(ctx)
	if err != nil {
		log.Fatal(err)
	}
	ahead, err := ticket.Ahead(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("ahead:", ahead)
	if err := h.Unlock(ctx); err != nil {
		log.Fatal(err)
	}
	next, err := ticket.Wait(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("a later token:", next.Token() > h.Token())
	fmt.Println(next.Unlock(ctx))
	// Output:
	// ahead: 1
	// a later token: true
	// <nil>
}

// Package promlock makes metrics with hooks, package otellock spans.
func ExampleHooks() {
	client, stop := exampleClient()
	defer stop()
	ctx := context.Background()

	locks := etcdlock.New(client, etcdlock.WithHooks(&etcdlock.Hooks{
		Granted: func(_ context.Context, info etcdlock.GrantedInfo) {
			fmt.Println(info.Name, "granted")
		},
		Released: func(_ context.Context, info etcdlock.ReleasedInfo) {
			fmt.Println(info.Name, "released, held for less than a minute:", info.Held < time.Minute)
		},
	}))
	defer locks.Close()
	err := locks.Mutex("jobs/report").Do(ctx, func(context.Context, *etcdlock.Held) error { return nil })
	if err != nil {
		log.Fatal(err)
	}
	// Output:
	// jobs/report granted
	// jobs/report released, held for less than a minute: true
}

// Each entry says who queued, for what, and when.
func ExampleQueue() {
	client, stop := exampleClient()
	defer stop()
	ctx := context.Background()
	locks := etcdlock.New(client, etcdlock.WithOwner("worker 1"))
	defer locks.Close()
	m := locks.Mutex("jobs/report")
	for range 2 {
		if _, err := m.Enqueue(ctx); err != nil {
			log.Fatal(err)
		}
	}

	queue, err := locks.Inspect(ctx, "jobs/report")
	if err != nil {
		log.Fatal(err)
	}
	for i, e := range queue.Entries {
		fmt.Printf("%d. %s, holds: %v, queued in the last minute: %v\n", i+1, e.Owner, e.Holds, time.Since(e.Queued) < time.Minute)
	}
	// Output:
	// 1. worker 1, holds: true, queued in the last minute: true
	// 2. worker 1, holds: false, queued in the last minute: true
}

// A transfer between two accounts needs both. In whatever order others name them, nobody waits in a circle.
func ExampleMulti() {
	client, stop := exampleClient()
	defer stop()
	ctx := context.Background()
	locks := etcdlock.New(client)
	defer locks.Close()

	transfer := locks.Multi(etcdlock.Write("accounts/2"), etcdlock.Write("accounts/1"), etcdlock.Read("rates"))
	err := transfer.Do(ctx, func(ctx context.Context, h *etcdlock.Held) error {
		_, err := locks.Mutex("accounts/1").TryLock(context.Background())
		fmt.Println("account 1 is taken:", errors.Is(err, etcdlock.ErrLocked))
		// Written only if all three are still held at that moment.
		_, err = h.Txn(ctx).Then(clientv3.OpPut("balance/1", "90"), clientv3.OpPut("balance/2", "110")).Commit()
		return err
	})
	fmt.Println("transferred:", err == nil)
	// Output:
	// account 1 is taken: true
	// transferred: true
}

// A process that needs a lock again and again keeps it until somebody else wants it.
func ExampleHeld_Contended() {
	client, stop := exampleClient()
	defer stop()
	ctx := context.Background()
	locks := etcdlock.New(client)
	defer locks.Close()

	h, err := locks.Mutex("stock").Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	next, err := locks.Mutex("stock").Enqueue(ctx) // it would be another process
	if err != nil {
		log.Fatal(err)
	}
	select {
	case <-h.Contended():
		fmt.Println("somebody waits: give it up after this item")
	case <-h.Done():
		log.Fatal(h.Err())
	}
	if err := h.Unlock(ctx); err != nil {
		log.Fatal(err)
	}
	h, err = next.Wait(ctx)
	fmt.Println("the next one has it:", err == nil)
	h.Release()
	// Output:
	// somebody waits: give it up after this item
	// the next one has it: true
}

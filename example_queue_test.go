package etcdlock_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/etcdlock/etcdlock"
)

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

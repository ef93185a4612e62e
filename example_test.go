package etcdlock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
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

	locks := etcdlock.New(client)
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

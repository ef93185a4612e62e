package etcdlock_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
)

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

// Command batch works through many items that each need the same lock. It takes the lock once and keeps it for
// as long as nobody else wants it, instead of locking and unlocking for each item.
//
//	go -C examples run ./batch
//
// starts an etcd and two processes' worth of work: one has 1,000 items, the other one comes in the middle, and
// gets in as soon as the item that is under way is done.
package main

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
)

func main() {
	log.SetFlags(log.Lmicroseconds)
	if err := demonstrate(context.Background()); err != nil {
		log.Fatal(err)
	}
}

// work does one item. Its ctx ends when the lock is lost.
type work func(ctx context.Context, h *etcdlock.Held, item int) error

// process does n items under the lock, and says how often it has taken the lock for that. When somebody waits
// for the lock, it gives it up after the item that is under way, and takes its place behind the other process: so nobody
// waits for longer than an item takes, and nobody is passed.
func process(ctx context.Context, m *etcdlock.Mutex, n int, do work) (turns int, err error) {
	for next := 0; next < n && err == nil; turns++ {
		err = m.Do(ctx, func(ctx context.Context, h *etcdlock.Held) error {
			for next < n {
				if err := do(ctx, h, next); err != nil {
					return err
				}
				next++
				select {
				case <-h.Contended():
					return nil
				case <-ctx.Done():
					return context.Cause(ctx)
				default: // nobody else wants it: no request is made
				}
			}
			return nil
		})
	}
	return turns, err
}

func demonstrate(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	cluster, err := etcdtest.New("")
	if err != nil {
		return err
	}
	defer cluster.Close()
	client, err := cluster.NewClient()
	if err != nil {
		return err
	}
	defer client.Close()
	locks, others := etcdlock.New(client), etcdlock.New(client) // each process would have one
	defer locks.Close()
	defer others.Close()

	const items = 1000
	each := time.NewTicker(time.Millisecond) // what an item takes
	defer each.Stop()
	half, in := make(chan struct{}), make(chan error, 1)
	go func() { // ends when it has had the lock
		<-half
		began := time.Now()
		in <- others.Mutex("stock").Do(ctx, func(context.Context, *etcdlock.Held) error {
			log.Printf("the other one is in after %v", time.Since(began).Round(100*time.Microsecond))
			return nil
		})
	}()
	began := time.Now()
	turns, err := process(ctx, locks.Mutex("stock"), items, func(_ context.Context, _ *etcdlock.Held, item int) error {
		if item == items/2 {
			close(half)
		}
		<-each.C
		return nil
	})
	if err == nil {
		err = <-in
	}
	log.Printf("%d items in %v, and the lock was taken %d times", items, time.Since(began).Round(time.Millisecond), turns)
	if err == nil && turns != 2 {
		err = fmt.Errorf("%d turns instead of 2", turns)
	}
	return err
}

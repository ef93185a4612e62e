package etcdlock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
)

// exampleClient is a client of an etcd started for one example.
func exampleClient(opts ...etcdtest.ClientOption) (client *clientv3.Client, stop func()) {
	dir, err := os.MkdirTemp("", "etcdlock-example-")
	if err != nil {
		log.Fatal(err)
	}
	cluster, err := etcdtest.New(dir)
	if err != nil {
		log.Fatal(err)
	}
	client, err = cluster.NewClient(opts...)
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

// A holder hangs, and renews its lease all the same. Data that somebody keeps under the name of a lock is not broken:
// that would delete it.
func ExampleClient_Break() {
	client, stop := exampleClient()
	defer stop()
	ctx := context.Background()
	hung := etcdlock.New(client, etcdlock.WithOwner("worker 1"))
	defer hung.Close()
	if _, err := hung.Mutex("jobs/report").Lock(ctx); err != nil {
		log.Fatal(err)
	}
	if _, err := client.Put(ctx, "jobs/orders/4711", "a pen"); err != nil {
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
			if e.Data {
				fmt.Println(e.Key, "looks like data:", e.Value)
				continue
			}
			fmt.Println(e.Owner, "is broken:", locks.Break(ctx, e))
			fmt.Println("again:", errors.Is(locks.Break(ctx, e), etcdlock.ErrNotFound))
		}
	}
	// Output:
	// jobs/orders/4711 looks like data: a pen
	// worker 1 is broken: <nil>
	// again: true
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

// The reply to a transaction is lost: it may have been carried out, or may be yet. Neither can happen anymore under
// the next hold, since the transaction compares with the former one. So what is read there is what counts.
func ExampleHeld_Txn_outcomeUnknown() {
	tap := etcdtest.NewTap()
	client, stop := exampleClient(tap)
	defer stop()
	ctx := context.Background()
	locks := etcdlock.New(client)
	defer locks.Close()

	deposit := func(ctx context.Context, h *etcdlock.Held) error {
		done, err := client.Get(ctx, "deposits/7")
		if err != nil {
			return err
		}
		if len(done.Kvs) > 0 {
			fmt.Println("it was carried out")
			return nil
		}
		_, err = h.Txn(ctx).Then(clientv3.OpPut("deposits/7", "10")).Commit()
		return err
	}
	tap.NextKey("Txn", "deposits/7", etcdtest.DropReply) // for this example
	for {
		err := locks.Mutex("locks/deposits").Do(ctx, deposit)
		switch {
		case errors.Is(err, etcdlock.ErrOutcomeUnknown): // first: ctx's error may be in it too
			fmt.Println("the outcome is unknown: look again, under the lock")
		case errors.Is(err, context.DeadlineExceeded), errors.Is(err, etcdlock.ErrLost):
			fmt.Println("nothing was carried out")
			return
		default:
			fmt.Println("done:", err)
			return
		}
	}
	// Output:
	// the outcome is unknown: look again, under the lock
	// it was carried out
	// done: <nil>
}

// What to tell an end user whose request has waited for too long.
func ExampleWaitError() {
	client, stop := exampleClient()
	defer stop()
	ctx := context.Background()
	locks := etcdlock.New(client, etcdlock.WithOwner("worker 1"))
	defer locks.Close()
	if _, err := locks.Mutex("orders/ann").Lock(ctx); err != nil {
		log.Fatal(err)
	}

	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	_, err := locks.Mutex("orders/ann").Lock(ctx)
	var wait *etcdlock.WaitError
	if errors.As(err, &wait) {
		fmt.Printf("%d ahead, %s works on it\n", wait.Ahead, wait.Holder)
	}
	fmt.Println(errors.Is(err, context.DeadlineExceeded))
	// Output:
	// 1 ahead, worker 1 works on it
	// true
}

// Ready is for the readiness check of a service that can do nothing without its locks. It takes a service that can
// answer without them out of service while etcd is away. Check is for the liveness check; it asks nobody.
func ExampleClient_Ready() {
	client, stop := exampleClient()
	defer stop()
	locks := etcdlock.New(client)
	defer locks.Close()
	elector := locks.Elector("services/scheduler")
	if err := locks.Ready(context.Background()); err != nil { // as the service starts
		log.Fatal(err)
	}

	http.HandleFunc("/readyz", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), time.Second) // less than the probe's timeout
		defer cancel()
		if err := locks.Ready(ctx); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	})
	http.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) {
		if err := elector.Check(10 * time.Second); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})

	for _, path := range []string{"/readyz", "/healthz"} {
		w := httptest.NewRecorder()
		http.DefaultServeMux.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		fmt.Println(path, w.Code)
	}
	// Output:
	// /readyz 200
	// /healthz 200
}

func ExampleElector_Observe() {
	client, stop := exampleClient()
	defer stop()
	ctx, cancel := context.WithCancel(context.Background())
	locks := etcdlock.New(client, etcdlock.WithOwner("replica 1"))
	defer locks.Close()
	elector := locks.Elector("services/scheduler")
	resigned := make(chan error)
	go func() {
		resigned <- elector.Run(ctx, func(ctx context.Context, _ *etcdlock.Held) error {
			<-ctx.Done()
			return nil
		})
	}()

	for leader, err := range elector.Observe(context.Background()) {
		if err != nil {
			log.Fatal(err) // the last thing that comes
		}
		if leader != (etcdlock.Entry{}) { // else nobody leads
			fmt.Println(leader.Owner, "leads")
			break
		}
	}
	cancel()
	if err := <-resigned; err != nil && !errors.Is(err, context.Canceled) { // it may have ended before it led
		log.Print(err)
	}
	// Output:
	// replica 1 leads
}

// A leader that does not look at its ctx may act beside its successor. WithOverrun tells, so that the process can end.
func ExampleWithOverrun() {
	client, stop := exampleClient()
	defer stop()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	locks := etcdlock.New(client)
	defer locks.Close()
	exit := make(chan struct{})
	elector := locks.Elector("services/scheduler", etcdlock.WithOverrun(50*time.Millisecond, func(*etcdlock.Held) {
		fmt.Println("the term was lost, and lead goes on")
		close(exit) // a service would call os.Exit
	}))
	err := elector.Run(ctx, func(_ context.Context, term *etcdlock.Held) error {
		if _, err := client.Delete(ctx, term.Key()); err != nil { // somebody takes the lead away
			log.Fatal(err)
		}
		<-exit // does not look at its ctx
		cancel()
		return nil
	})
	fmt.Println(errors.Is(err, context.Canceled))
	// Output:
	// the term was lost, and lead goes on
	// true
}

// A process hands its locks to its successor, for example to another version of the same program.
func ExampleSession_Orphan() {
	client, stop := exampleClient()
	defer stop()
	ctx := context.Background()
	session, err := etcdlock.NewSession(ctx, client)
	if err != nil {
		log.Fatal(err)
	}
	if _, err := etcdlock.NewMutex(session, "jobs/report").Lock(ctx); err != nil {
		log.Fatal(err)
	}
	lease := session.Lease() // to tell the successor
	session.Orphan()

	successor, err := etcdlock.NewSession(ctx, client, etcdlock.WithLease(lease))
	if err != nil {
		log.Fatal(err)
	}
	h, err := successor.Adopt(ctx, "jobs/report") // before it locks anything of that name
	if err != nil {
		log.Fatal(err)
	}
	another := etcdlock.New(client)
	defer another.Close()
	_, err = another.Mutex("jobs/report").TryLock(ctx)
	fmt.Println("still held:", errors.Is(err, etcdlock.ErrLocked) && h.Valid())
	if err := successor.Close(); err != nil { // revokes the lease
		log.Fatal(err)
	}
	_, err = another.Mutex("jobs/report").TryLock(ctx)
	fmt.Println("free:", err == nil)
	// Output:
	// still held: true
	// free: true
}

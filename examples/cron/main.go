// Command cron is a service with several replicas. One of them, the leader, runs
// the jobs that are due.
//
//	go -C examples run ./cron
//
// starts an etcd and three replicas, ends the leader as a rolling update does, and
// checks that another replica went on at once. With ETCDCTL_ENDPOINTS it is one
// replica as deploy/kubernetes runs it (see service.go).
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
)

func main() {
	log.SetFlags(log.Lmicroseconds)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	run := demonstrate
	if os.Getenv("ETCDCTL_ENDPOINTS") != "" {
		run = serve
	}
	if err := run(ctx); err != nil {
		log.Fatal(err)
	}
}

// A job is the work that one replica does each time. Its ctx ends when this replica
// does not lead any more. The job sends term.Token along with what it writes to a
// store, or writes to etcd with term.Txn: then a job that was paused for too long
// can do no harm.
type job func(ctx context.Context, term *etcdlock.Held) error

// lead runs a job at each interval while this replica leads.
func lead(every time.Duration, j job) func(context.Context, *etcdlock.Held) error {
	return func(ctx context.Context, term *etcdlock.Held) error {
		due := time.NewTicker(every)
		defer due.Stop()
		for {
			select {
			case <-due.C:
				if err := j(ctx, term); err != nil {
					log.Print("job failed, it runs again when it is due: ", err)
				}
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
}

// demonstrate runs three replicas for about a second.
func demonstrate(ctx context.Context) error {
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
	const runsKey = "cron/runs"

	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	led := make(chan string) // the replica that ran the job
	stop := make(map[string]context.CancelFunc)
	for _, name := range []string{"ann", "bob", "cyd"} {
		replica, end := context.WithCancel(ctx)
		stop[name] = end
		locks := etcdlock.New(client, etcdlock.WithOwner(name)) // a process would have one
		elector := locks.Elector("cron/nightly")
		work := lead(50*time.Millisecond, func(ctx context.Context, term *etcdlock.Held) error {
			// This writes only if the replica leads at the moment of the write.
			if _, err := term.Txn(ctx).Then(clientv3.OpPut(runsKey, name)).Commit(); err != nil {
				return err
			}
			log.Printf("%s runs the job, with token %d", name, term.Token())
			select {
			case led <- name:
			case <-ctx.Done():
			}
			return nil
		})
		wg.Go(func() {
			defer locks.Close()
			if err := elector.Run(replica, work); err != nil && !errors.Is(err, context.Canceled) {
				log.Fatal(err)
			}
		})
	}
	next := func() string { // "" when ctx has ended
		select {
		case name := <-led:
			return name
		case <-ctx.Done():
			return ""
		}
	}
	// The first leader runs the job twice and is told to end. The second one goes on
	// without waiting for a lease to expire.
	first := next()
	again := next()
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case again != first:
		return fmt.Errorf("%s ran the job while %s led", again, first)
	}
	log.Printf("%s is told to end", first)
	stop[first]()
	began := time.Now()
	second := next()
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case second == first:
		return fmt.Errorf("%s still leads", first)
	}
	log.Printf("%s has gone on after %v", second, time.Since(began).Round(time.Millisecond))
	cancel()
	wg.Wait()
	runs, err := client.Get(context.Background(), runsKey)
	if err != nil {
		return err
	}
	if n := runs.Kvs[0].Version; n < 3 {
		return fmt.Errorf("the job ran %d times, etcd says", n)
	}
	return nil
}

// Command reload changes a configuration of several parts in one step. Each user of
// the configuration holds a read lock, so it sees all of the old version or all of the
// new one. When the change is done, nobody uses the old version any more.
//
//	go -C examples run ./reload
//
// starts an etcd, four readers and a writer, and checks that.
package main

import (
	"context"
	"fmt"
	"log"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
)

func main() {
	log.SetFlags(log.Lmicroseconds)
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

// The parts of the configuration. They belong together, but are too large or in too
// many places for one transaction. Here they are two keys in etcd that are read one
// after the other.
const (
	hostKey  = "config/host"
	routeKey = "config/route"
	lock     = "locks/config"
)

const (
	readers = 4
	changes = 5
)

func run() error {
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
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	locks := etcdlock.New(client)
	defer locks.Close()
	if err := change(ctx, locks, client, 0); err != nil {
		return err
	}

	var done, uses atomic.Int64 // the last version whose change is done; how often any version was used
	var wg sync.WaitGroup
	reading, stop := context.WithCancel(ctx)
	defer wg.Wait()
	defer stop()
	failed := make(chan error, readers)
	for range readers {
		wg.Go(func() {
			for reading.Err() == nil {
				before := done.Load()
				version, err := use(reading, locks, client)
				switch {
				case reading.Err() != nil:
					return
				case err == nil && version < before:
					err = fmt.Errorf("version %d was used after the change to %d was done", version, before)
				}
				if err != nil {
					failed <- err
					return
				}
				uses.Add(1)
			}
		})
	}
	for version := int64(1); version <= changes; version++ {
		// New readers queue behind the writer, so they do not keep it waiting.
		if err := change(ctx, locks, client, version); err != nil {
			return err
		}
		done.Store(version)
		log.Printf("version %d is in use, after %d uses", version, uses.Load())
	}
	stop()
	wg.Wait()
	close(failed)
	return <-failed // nil if there is none
}

// change writes a new version of all parts while nobody uses them.
func change(ctx context.Context, locks *etcdlock.Client, client *clientv3.Client, version int64) error {
	return locks.RWMutex(lock).Do(ctx, func(ctx context.Context, h *etcdlock.Held) error {
		for _, key := range []string{hostKey, routeKey} {
			// If the lock was lost, this changes nothing.
			if _, err := h.Txn(ctx).Then(clientv3.OpPut(key, strconv.FormatInt(version, 10))).Commit(); err != nil {
				return err
			}
		}
		return nil
	})
}

// use reads all parts, and returns their version.
func use(ctx context.Context, locks *etcdlock.Client, client *clientv3.Client) (version int64, err error) {
	err = locks.RWMutex(lock).RDo(ctx, func(ctx context.Context, _ *etcdlock.Held) error {
		host, err := client.Get(ctx, hostKey)
		if err != nil {
			return err
		}
		route, err := client.Get(ctx, routeKey)
		if err != nil {
			return err
		}
		if h, r := string(host.Kvs[0].Value), string(route.Kvs[0].Value); h != r {
			return fmt.Errorf("host of version %s and route of version %s", h, r)
		}
		version, err = strconv.ParseInt(string(host.Kvs[0].Value), 10, 64)
		return err
	})
	return version, err
}

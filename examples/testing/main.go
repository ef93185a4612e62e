// Command testing shows how to test code that uses locks: with a real etcd inside the
// test, into which etcdtest can inject faults. The tests are in importer_test.go. This
// program does the same as one of them and prints what happens.
//
//	go -C examples test ./testing
//	go -C examples run ./testing
package main

import (
	"context"
	"errors"
	"log"
	"time"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
)

func main() {
	log.SetFlags(log.Lmicroseconds)
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	cluster, err := etcdtest.New("")
	if err != nil {
		return err
	}
	defer cluster.Close()
	proxy, err := cluster.NewProxy() // the network between this client and etcd
	if err != nil {
		return err
	}
	defer proxy.Close()
	client, err := cluster.NewClient(proxy)
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	session, err := etcdlock.NewSession(ctx, client, etcdlock.WithTTL(time.Second))
	if err != nil {
		return err
	}

	rows := make(chan int)
	imported := make(chan error, 1)
	go func() { imported <- Import(ctx, session, rows) }() // until the lock is lost
	rows <- 1
	rows <- 2
	log.Print("two rows are imported; now the network is cut")
	proxy.Blackhole(etcdtest.ToServer)
	err = <-imported
	log.Print("the import has ended: ", err)
	if !errors.Is(err, etcdlock.ErrLost) {
		return errors.New("the import did not end with the loss of its lock")
	}
	return nil
}

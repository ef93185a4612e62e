package etcdtest_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/etcdtest"
)

func ExampleNew() {
	cluster, err := etcdtest.New("")
	if err != nil {
		log.Fatal(err)
	}
	defer cluster.Close()
	client, err := cluster.NewClient()
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	ctx := context.Background()
	if _, err := client.Put(ctx, "greeting", "hello"); err != nil {
		log.Fatal(err)
	}
	resp, err := client.Get(ctx, "greeting")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s, revision %d\n", resp.Kvs[0].Value, resp.Header.Revision)
	// Output: hello, revision 2
}

// The reply to a transaction is lost: the client can't know that it was executed.
func ExampleTap() {
	cluster, err := etcdtest.New("")
	if err != nil {
		log.Fatal(err)
	}
	defer cluster.Close()
	tap := etcdtest.NewTap()
	client, err := cluster.NewClient(tap)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	ctx := context.Background()
	tap.NextKey("Txn", "greeting", etcdtest.DropReply) // and not that of a lock's own request
	_, err = client.Txn(ctx).Then(clientv3.OpPut("greeting", "hello")).Commit()
	fmt.Println(err)
	resp, err := client.Get(ctx, "greeting")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", resp.Kvs[0].Value)
	// Output:
	// rpc error: code = Unavailable desc = transport is closing
	// hello
}

// A client is cut off from etcd, while others go on.
func ExampleProxy() {
	cluster, err := etcdtest.New("")
	if err != nil {
		log.Fatal(err)
	}
	defer cluster.Close()
	proxy, err := cluster.NewProxy()
	if err != nil {
		log.Fatal(err)
	}
	defer proxy.Close()
	client, err := cluster.NewClient(proxy)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	put := func(timeout time.Duration) error {
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		defer cancel()
		_, err := client.Put(ctx, "greeting", "hello")
		return err
	}
	fmt.Println(put(time.Minute))
	proxy.Hold(etcdtest.Both) // as of a network that swallows packets
	fmt.Println(errors.Is(put(50*time.Millisecond), context.DeadlineExceeded))
	proxy.Heal()
	fmt.Println(put(time.Minute))
	// Output:
	// <nil>
	// true
	// <nil>
}

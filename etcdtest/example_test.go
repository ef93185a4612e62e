package etcdtest_test

import (
	"context"
	"fmt"
	"log"

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
	tap.Next("Txn", etcdtest.DropReply)
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

package etcdtest_test

import (
	"context"
	"fmt"
	"log"

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

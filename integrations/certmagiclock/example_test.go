package certmagiclock_test

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/caddyserver/certmagic"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/integrations/certmagiclock"
	"github.com/etcdlock/etcdlock/integrations/internal/locktest"
)

func Example() {
	client, stop := locktest.Etcd()
	defer stop()
	dir, err := os.MkdirTemp("", "certmagiclock-example-") // a service has what all its servers share
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	ctx := context.Background()

	locks := etcdlock.New(client)
	defer locks.Close()
	storage := certmagiclock.Wrap(&certmagic.FileStorage{Path: dir}, certmagiclock.New(locks, "certmagic/"))
	certmagic.Default.Storage = storage

	if err := storage.Lock(ctx, "issue_cert_example.com"); err != nil { // as certmagic does
		log.Fatal(err)
	}
	queue, err := locks.Inspect(ctx, "certmagic/issue_cert_example.com")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("holders in etcd:", len(queue.Entries))
	fmt.Println(storage.Unlock(ctx, "issue_cert_example.com"))
	// Output:
	// holders in etcd: 1
	// <nil>
}

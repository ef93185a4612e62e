package consumer

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

func TestLock(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tap := etcdtest.NewTap()
	client := etcdtest.Start(t).Client(t, tap)
	called := 0
	if err := Report(ctx, client, func(context.Context) error { called++; return nil }); err != nil || called != 1 {
		t.Fatal(err, called)
	}
	locks := etcdlock.New(client)
	defer locks.Close()
	mutex := locks.Mutex("consumer")

	// The reply to the Put is lost. The call that repeats the request names the same key.
	var key string
	tap.Next("Txn", func(ctx context.Context, c *etcdtest.Call) error {
		key = string(c.Request.(*pb.TxnRequest).Compare[0].Key)
		return etcdtest.DropReply(ctx, c)
	})
	held, err := mutex.Lock(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if held.Key() != key {
		t.Fatalf("holds %s and has asked for %s", held.Key(), key)
	}
	if _, err := mutex.TryLock(ctx); !errors.Is(err, etcdlock.ErrLocked) {
		t.Fatal("a second holder:", err)
	}
	next, err := mutex.Enqueue(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := held.Unlock(ctx); err != nil {
		t.Fatal(err)
	}
	if held, err = next.Wait(ctx); err != nil {
		t.Fatal(err)
	}

	// The holder hears that its entry was removed.
	if _, err := clientv3.NewKV(client).Delete(ctx, held.Key()); err != nil {
		t.Fatal(err)
	}
	select {
	case <-held.Context().Done():
	case <-ctx.Done():
		t.Fatal("nothing tells of the loss")
	}
	if err := held.Err(); !errors.Is(err, etcdlock.ErrLost) {
		t.Fatal(err)
	}
}

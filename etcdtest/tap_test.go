package etcdtest_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/etcdlock/etcdlock/etcdtest"
)

// tapped starts a cluster, a client with a tap, and a client without one.
func tapped(t *testing.T) (tap *etcdtest.Tap, client, direct *clientv3.Client) {
	t.Helper()
	cluster := etcdtest.Start(t)
	tap = etcdtest.NewTap()
	client, direct = cluster.Client(t, tap), cluster.Client(t)
	_, err := direct.Put(t.Context(), "a", "0")
	require.NoError(t, err)
	return tap, client, direct
}

// set writes the key "a" in a Txn.
func set(ctx context.Context, c *clientv3.Client, v string) error {
	_, err := c.Txn(ctx).Then(clientv3.OpPut("a", v)).Commit()
	return err
}

func TestTapDropReply(t *testing.T) {
	t.Parallel()
	tap, client, direct := tapped(t)
	dropped := tap.Nth("Txn", 2, etcdtest.DropReply)
	require.NoError(t, set(t.Context(), client, "1"))
	select {
	case <-dropped:
		require.Fail(t, "the fault was applied to the first call")
	default:
	}
	err := set(t.Context(), client, "2")
	assert.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
	awaitClosed(t, dropped)
	assert.Equal(t, "2", value(t, direct), "the call must be executed")
	require.NoError(t, set(t.Context(), client, "3"), "only one call must fail")
	assert.Equal(t, 3, tap.Calls("Txn"), "etcd's client must not repeat a Txn")
}

func TestTapFailBefore(t *testing.T) {
	t.Parallel()
	tap, client, direct := tapped(t)
	tap.Next("DeleteRange", etcdtest.FailBefore)
	_, err := client.Delete(t.Context(), "a")
	assert.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
	assert.Equal(t, "0", value(t, direct), "the call must not be executed")
	_, err = client.Delete(t.Context(), "a")
	require.NoError(t, err)
}

// Two faults that are due at the same call apply to two calls, and before Every.
func TestTapOrderOfFaults(t *testing.T) {
	t.Parallel()
	tap, client, _ := tapped(t)
	var seen []string
	note := func(s string) etcdtest.Fault {
		return etcdtest.Before(func() { seen = append(seen, s) })
	}
	stop := tap.Every("Txn", note("every"))
	tap.Next("Txn", note("first"))
	tap.Next("Txn", note("second"))
	tap.Nth("Txn", 4, note("fourth"))
	for range 5 {
		require.NoError(t, set(t.Context(), client, "1"))
	}
	stop()
	tap.Next("Txn", note("never"))
	tap.Clear()
	require.NoError(t, set(t.Context(), client, "1"))
	assert.Equal(t, []string{"first", "second", "every", "fourth", "every"}, seen)
}

func TestTapBeforeAndAfter(t *testing.T) {
	t.Parallel()
	tap, client, direct := tapped(t)
	tap.Next("Range", etcdtest.Before(func() { require.NoError(t, set(t.Context(), direct, "before")) }))
	assert.Equal(t, "before", value(t, client))
	tap.Next("Range", etcdtest.After(func() { require.NoError(t, set(t.Context(), direct, "after")) }))
	assert.Equal(t, "before", value(t, client), "f must run after the reply was received")
	assert.Equal(t, "after", value(t, direct))

	tap.Next("Range", func(ctx context.Context, c *etcdtest.Call) error {
		assert.Equal(t, "Range", c.Method)
		assert.Equal(t, "a", string(c.Request.(*pb.RangeRequest).Key))
		err := c.Send(ctx)
		c.Reply.(*pb.RangeResponse).Kvs[0].Value = []byte("forged")
		return err
	})
	assert.Equal(t, "forged", value(t, client))
}

func TestTapPostpone(t *testing.T) {
	t.Parallel()
	tap, client, direct := tapped(t)
	late := tap.Postpone("Txn", 1)
	ctx, cancel := context.WithCancel(t.Context())
	call := result(func() error { return set(ctx, client, "late") })
	awaitClosed(t, late.Caught())
	cancel()
	require.ErrorIs(t, await(t, call), context.Canceled, "the caller must be able to give up")
	require.NoError(t, set(t.Context(), client, "1"))
	assert.Equal(t, "1", value(t, direct))

	require.NoError(t, late.Send(t.Context()))
	assert.Equal(t, "late", value(t, direct), "the request must arrive although its caller has given up")
	require.NoError(t, set(t.Context(), client, "2"))
	require.NoError(t, late.Send(t.Context()))
	assert.Equal(t, "2", value(t, direct), "the request must be sent only once")
}

func TestTapPostponedCallerMayWait(t *testing.T) {
	t.Parallel()
	tap, client, _ := tapped(t)
	late := tap.Postpone("Range", 1)
	var resp *clientv3.GetResponse
	call := result(func() (err error) { resp, err = client.Get(t.Context(), "a"); return err })
	require.NoError(t, late.Send(short(t, patience)))
	require.NoError(t, await(t, call))
	require.Len(t, resp.Kvs, 1)
	assert.Equal(t, "0", string(resp.Kvs[0].Value))
	require.Error(t, tap.Postpone("Range", 1).Send(short(t, time.Millisecond)), "nothing was caught")
}

func TestTapCounts(t *testing.T) {
	t.Parallel()
	tap, client, _ := tapped(t)
	assert.Zero(t, tap.Calls())
	require.NoError(t, set(t.Context(), client, "1"))
	value(t, client)
	value(t, client)
	assert.Equal(t, 1, tap.Calls("Txn"))
	assert.Equal(t, 2, tap.Calls("Range"))
	assert.Equal(t, 3, tap.Calls("Range", "Txn"))

	for _, opts := range [][]clientv3.OpOption{nil, {clientv3.WithRev(3)}} {
		w := client.Watch(t.Context(), "a", append(opts, clientv3.WithCreatedNotify())...)
		require.True(t, (<-w).Created)
	}
	creates := tap.WatchCreates()
	require.Len(t, creates, 2)
	assert.Equal(t, "a", string(creates[0].Key))
	assert.Zero(t, creates[0].StartRevision)
	assert.EqualValues(t, 3, creates[1].StartRevision)
	assert.Equal(t, 1, tap.Calls("Watch"), "both watchers must share a stream")
	assert.Equal(t, 3, tap.Calls(), "streams must not count as unary calls")

	assert.Panics(t, func() { tap.Next("Delete", etcdtest.DropReply) }, "the method is named DeleteRange")
	assert.Panics(t, func() { tap.Next("Watch", etcdtest.DropReply) }, "streams have hooks of their own")
	assert.Panics(t, func() { tap.Calls("txn") })
	assert.Panics(t, func() { tap.Nth("Txn", 0, etcdtest.DropReply) })
}

// A fault for a key applies to the first request that names it, wherever in it, and counts no other.
func TestTapNextKey(t *testing.T) {
	t.Parallel()
	tap, client, direct := tapped(t)
	puts := map[string]func(v string) clientv3.Op{
		"an operation": func(v string) clientv3.Op { return clientv3.OpPut("mine", v) },
		"a comparison of a txn in a txn": func(v string) clientv3.Op {
			mine := []clientv3.Cmp{clientv3.Compare(clientv3.Version("mine"), ">", -1)}
			return clientv3.OpTxn(mine, []clientv3.Op{clientv3.OpPut("a", v)}, nil)
		},
		"else": func(v string) clientv3.Op {
			return clientv3.OpTxn(nil, []clientv3.Op{clientv3.OpPut("a", v)}, []clientv3.Op{clientv3.OpDelete("mine")})
		},
	}
	for what, op := range puts {
		dropped := tap.NextKey("Txn", "mine", etcdtest.DropReply)
		require.NoError(t, set(t.Context(), client, "0"), "it does not name the key")
		_, err := client.Txn(t.Context()).Then(op(what)).Commit()
		assert.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
		awaitClosed(t, dropped)
		require.NoError(t, set(t.Context(), client, "1"))
	}
	dropped := tap.NextKey("Range", "mine", etcdtest.FailBefore)
	_, err := client.Get(t.Context(), "mine/1")
	require.NoError(t, err)
	_, err = client.Get(t.Context(), "mine") // which the client repeats
	require.NoError(t, err)
	awaitClosed(t, dropped)
	require.Equal(t, "1", value(t, direct))
}

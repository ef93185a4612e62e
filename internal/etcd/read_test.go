package etcd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/etcdlock/etcdlock/etcdtest"
)

// A read at a revision shows that revision; where it was compacted, and without one, it shows the present.
func TestReadAt(t *testing.T) {
	t.Parallel()
	own := etcdtest.Start(t)
	c := NewClient(own.Client(t))
	ctx := t.Context()
	first, err := c.Put(ctx, "a", "1")
	require.NoError(t, err)
	second, err := c.Put(ctx, "b", "2")
	require.NoError(t, err)
	then, now := first.Header.Revision, second.Header.Revision

	got, at, err := c.ReadAt(ctx, ctx, then, ReadValue("a"), ReadKey("b"))
	require.NoError(t, err)
	require.Equal(t, then, at)
	require.Equal(t, "1", string(got[0].Kvs[0].Value))
	require.Empty(t, got[1].Kvs)

	got, at, err = c.ReadAt(ctx, ctx, 0, ReadRange("a", "z").Limit(1))
	require.NoError(t, err)
	require.Equal(t, now, at)
	require.EqualValues(t, 2, got[0].Count)
	require.Len(t, got[0].Kvs, 1)
	require.Empty(t, got[0].Kvs[0].Value, "keys only")

	_, err = own.Compact(ctx)
	require.NoError(t, err)
	got, at, err = c.ReadAt(ctx, ctx, then, ReadKey("b"))
	require.NoError(t, err)
	require.Equal(t, now, at)
	require.Len(t, got[0].Kvs, 1)

	got, at, err = c.ReadAt(ctx, ctx, now+1, ReadKey("b")) // of the future
	require.NoError(t, err)
	require.Equal(t, now, at)
	require.Len(t, got[0].Kvs, 1)
}

// What stands in etcd's place says for two seconds that etcd is unavailable. A read is repeated at Do's pace then, and not
// every 25 ms, and each hedge beside it too.
func TestReadAt_NoStorm(t *testing.T) {
	t.Parallel()
	own := etcdtest.Start(t)
	var all sync.WaitGroup
	for what, read := range map[string]func(ctx context.Context, c *Client) error{
		"one key": func(ctx context.Context, c *Client) error { return errOf(c.ReadAt(ctx, ctx, 0, ReadKey("a"))) },
		"two keys": func(ctx context.Context, c *Client) error {
			return errOf(c.ReadAt(ctx, ctx, 0, ReadKeys([]string{"a", "b"})...))
		},
		"a revision": func(ctx context.Context, c *Client) error { return errOf(c.ReadAt(ctx, ctx, 1, ReadKey("a"))) },
	} {
		tap := etcdtest.NewTap()
		c := NewClient(own.Client(t, tap))
		require.NoError(t, read(t.Context(), c), what)
		before := tap.Calls()
		for _, method := range []string{"Txn", "Range"} {
			tap.Every(method, func(context.Context, *etcdtest.Call) error { return etcdtest.ErrTransport })
		}
		all.Go(func() { // each waits for two seconds
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			assert.ErrorIs(t, read(ctx, c), context.DeadlineExceeded, what)
			assert.Greater(t, tap.Calls(), before+1, what)
			assert.LessOrEqual(t, tap.Calls(), before+20, what)
		})
	}
	all.Wait()
}

func errOf(_ []*pb.RangeResponse, _ int64, err error) error { return err }

// pagedKey is the key number i of a range that takes several pages.
func pagedKey(i int) string { return fmt.Sprintf("a%0120d", i) }

// paged is a client that can receive about 13 of these keys at once, and the revision at which n keys were put, in the order of
// their age.
func paged(t *testing.T, n int, aged func(i int) string) (c *Client, rev int64) {
	c = NewClient(etcdtest.Start(t).Client(t, etcdtest.WithClientConfig(func(c *clientv3.Config) { c.MaxCallRecvMsgSize = 2 << 10 })))
	for i := range n {
		resp, err := c.Put(t.Context(), aged(i), "")
		require.NoError(t, err)
		rev = resp.Header.Revision
	}
	return c, rev
}

// A reply that is too large for the client is read in pages. The result is that of one read: the first keys up to the limit,
// in the order that was asked for, and More if there are others.
func TestReadAt_Pages(t *testing.T) {
	t.Parallel()
	const keys, limit = 60, 30
	key := pagedKey
	aged := func(i int) string { return key(7 * i % keys) } // in the order of age, which is another than that of the keys
	c, _ := paged(t, keys, aged)
	ctx := t.Context()
	for name, r := range map[string]struct {
		read        Read
		first, last string
	}{
		"keys":   {ReadRange("a", "b"), key(0), key(limit - 1)},
		"oldest": {ReadByAge(clientv3.SortAscend, "a", "b"), aged(0), aged(limit - 1)},
		"newest": {ReadByAge(clientv3.SortDescend, "a", "b"), aged(keys - 1), aged(keys - limit)},
	} {
		got, _, err := c.ReadAt(ctx, ctx, 0, r.read.Limit(limit))
		require.NoError(t, err, name)
		require.Len(t, got[0].Kvs, limit, name)
		require.True(t, got[0].More, name)
		require.EqualValues(t, keys, got[0].Count, name)
		require.Equal(t, r.first, string(got[0].Kvs[0].Key), name)
		require.Equal(t, r.last, string(got[0].Kvs[limit-1].Key), name)

		got, _, err = c.ReadAt(ctx, ctx, 0, r.read)
		require.NoError(t, err, name)
		require.Len(t, got[0].Kvs, keys, name)
		require.False(t, got[0].More, name)
	}
}

// Reads that are together too large to be sent are made in pieces. One that is too large by itself, to be sent or to be
// received, is an error that says so, after two requests.
func TestReadAt_TooLarge(t *testing.T) {
	t.Parallel()
	own, tap := etcdtest.Start(t), etcdtest.NewTap()
	_, err := own.Client(t).Put(t.Context(), "a", strings.Repeat("x", 4<<10))
	require.NoError(t, err)
	c := NewClient(own.Client(t, tap, etcdtest.WithClientConfig(func(c *clientv3.Config) {
		c.MaxCallSendMsgSize, c.MaxCallRecvMsgSize = 1<<10, 2<<10
	})))
	var keys []string
	for i := range Batch {
		keys = append(keys, fmt.Sprintf("a%0120d", i))
	}
	got, _, err := c.ReadAt(t.Context(), t.Context(), 0, ReadKeys(keys)...)
	require.NoError(t, err)
	require.Len(t, got, Batch)

	before := tap.Calls()
	_, _, err = c.ReadAt(t.Context(), t.Context(), 0, ReadKey(strings.Repeat("x", 2<<10)))
	require.True(t, RequestTooLarge(err), err)
	_, _, err = c.ReadAt(t.Context(), t.Context(), 0, ReadValue("a"))
	require.True(t, ReplyTooLarge(err), err)
	require.LessOrEqual(t, tap.Calls()-before, 1+2)
}

// A value that is too large for the client costs a read of leases the value and the lease, and some requests. A key that is too
// large is an error.
func TestReadAt_Leases(t *testing.T) {
	t.Parallel()
	own, tap := etcdtest.Start(t), etcdtest.NewTap()
	put := func(key, value string) {
		_, err := own.Client(t).Put(t.Context(), key, value)
		require.NoError(t, err)
	}
	put("a", strings.Repeat("x", 4<<10))
	for i := range 10 {
		put(pagedKey(i), "")
	}
	c := NewClient(own.Client(t, tap, etcdtest.WithClientConfig(func(c *clientv3.Config) { c.MaxCallRecvMsgSize = 2 << 10 })))
	got, _, err := c.ReadAt(t.Context(), t.Context(), 0, ReadRangeLeases("a", "b"))
	require.NoError(t, err)
	require.Len(t, got[0].Kvs, 11)
	require.EqualValues(t, UnknownLease, got[0].Kvs[0].Lease)
	require.Less(t, tap.Calls(), 15)
	put("a"+strings.Repeat("x", 2<<10), "")
	_, _, err = c.ReadAt(t.Context(), t.Context(), 0, ReadRangeLeases("a", "b"))
	require.True(t, ReplyTooLarge(err), err)
}

// Do ends when the client is closed, and says so.
func TestDo_ClientClosed(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	c := NewClient(clientv3.NewCtxClient(ctx))
	calls := 0
	_, ambiguous, err := Do(context.Background(), c, Policy{}, func(context.Context) (int, error) {
		calls++
		cancel()
		return 0, errors.New("no leader")
	})
	require.ErrorIs(t, err, ErrClientClosed)
	require.True(t, ambiguous)
	require.Equal(t, 1, calls)
}

func TestRefused(t *testing.T) {
	learner := rpctypes.Error(status.Error(codes.FailedPrecondition, "etcdserver: rpc not supported for learner"))
	for err, want := range map[error]bool{
		rpctypes.ErrPermissionDenied: true, rpctypes.ErrNoSpace: true, rpctypes.ErrCompacted: true, rpctypes.ErrLeaseNotFound: true,
		rpctypes.ErrNoLeader: false, rpctypes.ErrAuthOldRevision: false, rpctypes.ErrTooManyRequests: false,
		context.DeadlineExceeded: false, errors.New("transport is closing"): false,
		rpctypes.ErrNotCapable: false, learner: false,
	} {
		require.Equal(t, want, Refused(err), err)
	}
	require.True(t, notProposed(rpctypes.ErrNoLeader))
	require.True(t, notProposed(errors.New("raft proposal dropped")))
	require.True(t, notProposed(learner))
	require.False(t, notProposed(fmt.Errorf("%w: raft proposal dropped", context.Canceled)), "the cause of a ctx may say anything")
	require.False(t, notProposed(errors.New("transport is closing")))
}

// A read that is pinned at a revision, and made in pages, shows that revision.
func TestReadAt_PagesOfARevision(t *testing.T) {
	const keys = 60
	c, rev := paged(t, keys, pagedKey)
	ctx := t.Context()
	_, err := c.Delete(ctx, pagedKey(keys-1))
	require.NoError(t, err)
	_, err = c.Put(ctx, pagedKey(keys), "")
	require.NoError(t, err)
	got, at, err := c.ReadAt(ctx, ctx, rev, ReadRange("a", "b"))
	require.NoError(t, err)
	require.Equal(t, rev, at)
	require.Len(t, got[0].Kvs, keys)
	require.Equal(t, pagedKey(keys-1), string(got[0].Kvs[keys-1].Key), "it was there at that revision")
}

// No revision has "a…0" without "a…59"; a listing that says so breaks I1: the entry a…0 would be granted.
func TestReadAt_PagesOfNoRevision(t *testing.T) {
	const keys = 60
	c, rev := paged(t, keys, func(i int) string { return pagedKey(keys - 1 - i) }) // a…59 is the oldest: it has the lock; a…0 waits
	ctx := t.Context()
	_, err := c.Delete(ctx, pagedKey(0)) // somebody breaks the waiter
	require.NoError(t, err)
	_, err = c.Delete(ctx, pagedKey(keys-1)) // then the holder releases
	require.NoError(t, err)
	got, _, err := c.ReadAt(ctx, ctx, rev, ReadRange("a", "b"))
	require.NoError(t, err)
	there := map[string]bool{}
	for _, kv := range got[0].Kvs {
		there[string(kv.Key)] = true
	}
	require.False(t, there[pagedKey(0)] && !there[pagedKey(keys-1)], "the waiter without the holder: at no revision")
}

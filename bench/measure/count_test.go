package measure

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/bench/peer"
	"github.com/etcdlock/etcdlock/etcdtest"
)

// counted is a client whose requests count.
func counted(t *testing.T, c *etcdtest.Cluster) (*Counter, *clientv3.Client) {
	count := &Counter{}
	return count, c.Client(t, etcdtest.WithClientConfig(func(cfg *clientv3.Config) { cfg.DialOptions = append(cfg.DialOptions, count.Option()) }))
}

// Each message that a client sends counts once, as what it is.
func TestCounter(t *testing.T) {
	count, client := counted(t, etcdtest.Start(t))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	expect := func(kind string, n float64, f func() error) {
		t.Helper()
		before := count.count()
		require.NoError(t, f())
		sent := count.count().per(before, 1)
		require.InDelta(t, n, sent[kind], 0, "%s: %v", kind, sent)
		require.InDelta(t, n, sent["requests"], 0, "%s: %v", kind, sent)
		require.Positive(t, sent["bytes"])
	}
	get, put := clientv3.OpGet("k"), clientv3.OpPut("k", "")
	local := clientv3.OpGet("k", clientv3.WithSerializable())
	txn := func(ops ...clientv3.Op) func() error {
		return func() error { _, err := client.Txn(ctx).Then(ops...).Commit(); return err }
	}
	expect("commits", 1, func() error { _, err := client.Put(ctx, "k", ""); return err })
	expect("commits", 1, func() error { _, err := client.Delete(ctx, "k"); return err })
	expect("commits", 1, txn(get, put))
	expect("linearizable_reads", 1, func() error { _, err := client.Do(ctx, get); return err })
	expect("linearizable_reads", 1, txn(get, local))
	expect("serializable_reads", 1, func() error { _, err := client.Do(ctx, local); return err })
	expect("serializable_reads", 1, txn(local, local))
	var lease *clientv3.LeaseGrantResponse
	expect("lease_requests", 1, func() (err error) { lease, err = client.Grant(ctx, 60); return err })
	expect("lease_requests", 1, func() error { _, err := client.KeepAliveOnce(ctx, lease.ID); return err })
	expect("lease_requests", 1, func() error { _, err := client.TimeToLive(ctx, lease.ID); return err })
	expect("lease_requests", 1, func() error { _, err := client.Revoke(ctx, lease.ID); return err })
	var events clientv3.WatchChan
	answered := func() error { r := <-events; return r.Err() }
	expect("watches", 1, func() error {
		events = client.Watch(ctx, "k", clientv3.WithCreatedNotify())
		return answered()
	})
	expect("progress_requests", 1, func() error {
		require.NoError(t, client.RequestProgress(ctx))
		return answered()
	})
}

// An uncontended acquisition and its release are two commits, and nothing else, but for the few that are repeated when the
// machine stalls.
func TestRequests(t *testing.T) {
	count, client := counted(t, etcdtest.Start(t))
	v, err := Requests(t.Context(), peer.Etcdlock(func(int) *clientv3.Client { return client }), count, Contenders{1, 1}, 0, 0)
	require.NoError(t, err)
	require.InDelta(t, 2, v["commits"], 0.1)
	require.InDelta(t, 0, v["serializable_reads"]+v["linearizable_reads"]+v["watches"], 0.1)
}

// A session is for a process, or for each contender of a peer that needs that; it is on the client of its process.
func TestOpen(t *testing.T) {
	for oneEach, want := range map[bool][]int{false: {0, 0, 0, 1, 1, 1}, true: {0, 0, 0, 1, 1, 1}} {
		var opened []*session
		ss, err := Open(t.Context(), peer.Peer{Name: "fake", OneEach: oneEach, Open: func(_ context.Context, i int) (peer.Session, error) {
			return &session{process: i}, nil
		}}, Contenders{2, 3})
		require.NoError(t, err)
		var processes []int
		distinct := make(map[*session]bool)
		for _, s := range ss.Of {
			processes = append(processes, s.(*session).process)
			distinct[s.(*session)] = true
			opened = append(opened, s.(*session))
		}
		require.Equal(t, want, processes)
		require.Len(t, distinct, map[bool]int{false: 2, true: 6}[oneEach])
		require.NoError(t, ss.Close())
		for _, s := range opened {
			require.Equal(t, 1, s.closed)
		}
	}
}

type session struct{ process, closed int }

func (*session) Mutex(string) peer.Locker      { return nil }
func (s *session) Close(context.Context) error { s.closed++; return nil }

// A section that two are in at once is seen.
func TestSection(t *testing.T) {
	var s section
	s.enter()
	s.leave()
	s.enter()
	require.Zero(t, s.overlaps.Load())
	s.enter()
	require.EqualValues(t, 1, s.overlaps.Load())
}

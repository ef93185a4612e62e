package measure

import (
	"context"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/bench/peer"
	"github.com/etcdlock/etcdlock/etcdtest"
)

// lastInFirstOut is a lock that is given to the one that has waited least.
type lastInFirstOut struct {
	mu      sync.Mutex
	held    bool
	waiting []chan struct{}
}

func (l *lastInFirstOut) Mutex(string) peer.Locker    { return l }
func (l *lastInFirstOut) Close(context.Context) error { return nil }

func (l *lastInFirstOut) Lock(ctx context.Context) error {
	l.mu.Lock()
	if !l.held {
		l.held = true
		l.mu.Unlock()
		return nil
	}
	turn := make(chan struct{})
	l.waiting = append(l.waiting, turn)
	l.mu.Unlock()
	select {
	case <-turn:
		return nil
	case <-ctx.Done():
		return ctx.Err() // and the lock hangs, at the end of the test
	}
}

func (l *lastInFirstOut) Unlock(context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(l.waiting); n > 0 {
		close(l.waiting[n-1])
		l.waiting = l.waiting[:n-1]
	} else {
		l.held = false
	}
	return nil
}

// The inversions of a lock that is given to the last one are counted.
func TestOrder(t *testing.T) {
	unfair := &lastInFirstOut{}
	p := peer.Peer{Name: "last in, first out", Open: func(context.Context, int) (peer.Session, error) { return unfair, nil }}
	v, err := Order(t.Context(), p, Contenders{5, 1}, 1)
	require.NoError(t, err)
	require.InDelta(t, 6, v["pairs"], 0)
	require.Positive(t, v["inversions"])
}

// Every quantity of contenders is measured with every mutex on etcd, and none lets two in at once.
func TestContended(t *testing.T) {
	c := etcdtest.Start(t)
	clients := []*clientv3.Client{c.Client(t), c.Client(t)}
	get := func(i int) *clientv3.Client { return clients[i] }
	two := Contenders{2, 2}
	for _, p := range []peer.Peer{peer.Etcdlock(get), peer.Releasing(get), peer.Concurrency(get), peer.Serialized(get)} {
		t.Run(p.Name, func(t *testing.T) {
			v, err := Grants(t.Context(), p, two, 300*time.Millisecond)
			require.NoError(t, err)
			require.InDelta(t, 0, v["overlaps"], 0)
			v, err = Handover(t.Context(), p, two, time.Millisecond, 300*time.Millisecond)
			require.NoError(t, err)
			require.InDelta(t, 0, v["overlaps"], 0)
		})
	}
	count, client := counted(t, c)
	many := func(int) *clientv3.Client { return client }
	for _, p := range []peer.Peer{peer.Etcdlock(many), peer.Releasing(many), peer.Concurrency(many)} {
		for _, n := range []Names{{Contenders: two}, {Contenders: two, Among: 3}, {Contenders: two, Pause: time.Millisecond}} {
			v, err := ManyNames(t.Context(), p, n, count, []int{os.Getpid()}, 200*time.Millisecond)
			require.NoError(t, err)
			for _, value := range []string{"per_s", "p50_us", "client_cpu_us", "requests"} {
				require.Positive(t, v[value], value)
			}
			require.Zero(t, v["overlaps"])
		}
	}
	for _, pass := range []Pass{DeleteAndPut, LikeALock} {
		v, err := Ring(t.Context(), get, two, 300*time.Millisecond, pass)
		require.NoError(t, err)
		require.Positive(t, v["per_s"])
	}
	_, err := Uncontended(t.Context(), []peer.Peer{peer.Etcdlock(get), peer.Floor(get)}, 0, 10*time.Millisecond)
	require.NoError(t, err)
	_, err = Floor(t.Context(), clients[0], clients[1], time.Millisecond, 10*time.Millisecond)
	require.NoError(t, err)
}

// Readers and writers are measured with both locks that have them.
func TestReadersAndWriters(t *testing.T) {
	c := etcdtest.Start(t)
	count, client := counted(t, c)
	get := func(int) *clientv3.Client { return client }
	for _, p := range []peer.Peer{peer.Etcdlock(get), peer.Recipes(get)} {
		t.Run(p.Name, func(t *testing.T) {
			v, err := Burst(t.Context(), p, c.Client(t), count, Contenders{2, 2})
			require.NoError(t, err)
			require.Positive(t, v["p50_us"])
			require.GreaterOrEqual(t, v["commits"], 3.0) // the readers' entries
			v, err = WriterBehind(t.Context(), p, p, c.Client(t), count, Contenders{2, 2})
			require.NoError(t, err)
			require.Positive(t, v["p50_us"])
		})
	}
}

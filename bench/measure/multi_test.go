package measure

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/bench/peer"
	"github.com/etcdlock/etcdlock/etcdtest"
)

// Both ways to lock several names exclude each other's, and cost what the page says.
func TestMulti(t *testing.T) {
	count, client := counted(t, etcdtest.Start(t))
	get := func(int) *clientv3.Client { return client }
	for commits, p := range map[float64]peer.Peer{2: peer.Etcdlock(get), 6: peer.OneByOne(get)} {
		t.Run(p.Name, func(t *testing.T) {
			v, err := Requests(t.Context(), peer.Several(p, 3), count, Contenders{1, 1}, 0, 0)
			require.NoError(t, err)
			// Not exactly: the lease is renewed, and what takes long is sent again.
			require.InDelta(t, commits, v["commits"], 0.5)
			require.InDelta(t, commits, v["requests"], 0.5)
			v, err = Overlapping(t.Context(), p, Contenders{4, 1}, 4, 2, 300*time.Millisecond)
			require.NoError(t, err)
			require.Positive(t, v["per_s"])
			require.InDelta(t, 0, v["overlaps"], 0)
		})
	}
}

type noLock struct{}

func (noLock) Mutex(string) peer.Locker     { return noLock{} }
func (noLock) Multi([]string) peer.Locker   { return noLock{} }
func (noLock) Lock(context.Context) error   { return nil }
func (noLock) Unlock(context.Context) error { return nil }
func (noLock) Close(context.Context) error  { return nil }

// Two that have one of the names at once are seen.
func TestOverlapping_Seen(t *testing.T) {
	p := peer.Peer{Name: "none", Open: func(context.Context, int) (peer.Session, error) { return noLock{}, nil }}
	v, err := Overlapping(t.Context(), p, Contenders{4, 1}, 2, 1, 100*time.Millisecond)
	require.NoError(t, err)
	require.Positive(t, v["overlaps"])
}

// One by one, a Lock that fails keeps nothing.
func TestOneByOne_Fails(t *testing.T) {
	client := etcdtest.Start(t).Client(t)
	s, err := peer.OneByOne(func(int) *clientv3.Client { return client }).Open(t.Context(), 0)
	require.NoError(t, err)
	a, b := s.Mutex("a"), s.Mutex("b")
	require.NoError(t, b.Lock(t.Context()))
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, s.(peer.MultiSession).Multi([]string{"a", "b"}).Lock(ctx), context.DeadlineExceeded)
	ctx, cancel = context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.NoError(t, a.Lock(ctx))
	require.NoError(t, s.Close(t.Context()))
}

// A competitor gets the lock from a process that needs it all the time, however that locks.
func TestWanted(t *testing.T) {
	c := etcdtest.Start(t)
	clients := []*clientv3.Client{c.Client(t), c.Client(t)}
	get := func(i int) *clientv3.Client { return clients[i] }
	for _, p := range []peer.Peer{peer.Keeping(get), peer.Etcdlock(get), peer.Concurrency(get)} {
		t.Run(p.Name, func(t *testing.T) {
			competitor := p
			if p.Name == peer.Keeping(nil).Name {
				competitor = peer.Etcdlock(get)
			}
			v, err := Wanted(t.Context(), p, competitor, time.Millisecond, 10*time.Millisecond, 300*time.Millisecond)
			require.NoError(t, err)
			require.Positive(t, v["samples"]*v["per_s"])
			require.InDelta(t, 0, v["overlaps"], 0)
		})
	}
}

// A process that fails does not let its competitor wait for ever.
func TestWanted_Fails(t *testing.T) {
	shared := &lastInFirstOut{}
	competitor := peer.Peer{Open: func(context.Context, int) (peer.Session, error) { return shared, nil }}
	worker := peer.Peer{Open: func(context.Context, int) (peer.Session, error) { return &unlocksOnce{lastInFirstOut: shared}, nil }}
	_, err := Wanted(t.Context(), worker, competitor, time.Millisecond, time.Millisecond, time.Second)
	require.ErrorIs(t, err, errUnlocked)
}

type unlocksOnce struct {
	*lastInFirstOut
	unlocked bool
}

var errUnlocked = errors.New("unlocked before")

func (u *unlocksOnce) Mutex(string) peer.Locker { return u }

func (u *unlocksOnce) Unlock(ctx context.Context) error {
	if u.unlocked {
		return errUnlocked
	}
	u.unlocked = true
	return u.lastInFirstOut.Unlock(ctx)
}

// A lock that is kept costs no request, and its loss is not overlooked.
func TestKeeping(t *testing.T) {
	count, client := counted(t, etcdtest.Start(t))
	p := peer.Keeping(func(int) *clientv3.Client { return client })
	v, err := Requests(t.Context(), p, count, Contenders{1, 1}, 0, 0)
	require.NoError(t, err)
	require.Less(t, v["requests"], 0.1) // the first Lock, its watch, and the renewals of the lease, for 200

	s, err := p.Open(t.Context(), 0)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	l := s.Mutex("kept")
	_, err = cycle(ctx, l)
	require.NoError(t, err)
	_, err = client.Delete(ctx, "kept/", clientv3.WithPrefix())
	require.NoError(t, err)
	for err == nil && ctx.Err() == nil {
		_, err = cycle(ctx, l)
	}
	require.ErrorIs(t, err, etcdlock.ErrLost)
	require.NoError(t, s.Close(t.Context()))
}

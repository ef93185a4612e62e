package faults

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/test/harness"
	"github.com/etcdlock/etcdlock/internal/test/logtest"
)

// A snapshot is restored without --bump-revision. A session has entries that are older than the snapshot, so its lease
// and its keys are in etcd, and it has seen revisions that are lost: what it knows of its queues is of a history that
// did not happen. It ends, although it sends nothing but renewals, and its Client goes on in another session.
func TestFault_J2_RestoreToLowerRevisions(t *testing.T) {
	t.Parallel()
	own := etcdtest.Start(t)
	c := own.Client(t)
	var log logtest.Log
	const ttl = 15 * time.Second // longer than a restore takes on a busy machine
	locks := newClient(t, c, etcdlock.WithTTL(ttl), etcdlock.WithLogger(log.Logger()))
	other := newSession(t, own.Client(t), etcdlock.WithTTL(ttl))
	name := harness.LockName(t)

	held := harness.Take(t, locks.Mutex(name).Lock)
	theirs := mustLock(t, other, name+"-2")
	waits := harness.InBackground(t, locks.Mutex(name+"-2").Lock)
	harness.QueueIs(t, c, name+"-2", 2)
	first, err := locks.Session(harness.Ctx(t))
	require.NoError(t, err)
	restore := harness.Snapshot(t, own)
	for range 20 {
		_, err := c.Put(harness.Ctx(t), "elsewhere", "")
		require.NoError(t, err)
	}
	require.NoError(t, held.Check(harness.Ctx(t))) // so it sees them
	require.NoError(t, theirs.Check(harness.Ctx(t)))

	restore(0)
	for _, h := range []*etcdlock.Held{held, theirs} {
		select {
		case <-h.Done():
		case <-time.After(harness.Hang):
			t.Fatal("the session goes on with what it knows of another history")
		}
		require.ErrorIs(t, h.Err(), etcdlock.ErrLost)
		require.ErrorIs(t, h.Err(), etcdlock.ErrSessionExpired)
		require.ErrorContains(t, h.Err(), "etcd's revision went back from ")
		require.ErrorContains(t, h.Err(), "a snapshot was restored")
	}
	require.ErrorContains(t, context.Cause(first.Context()), "a snapshot was restored")
	require.ErrorContains(t, first.Err(), "a snapshot was restored")

	// The Lock that waited goes on by itself, and so does the Client.
	require.NoError(t, other.Close())
	h := <-waits
	require.NotSame(t, first, h.Session())
	requireAlone(t, own, locks, name+"-2", h)
	again := harness.Take(t, locks.Mutex(name).Lock)
	requireAlone(t, own, locks, name, again)
	require.Eventually(t, func() bool {
		return slices.ContainsFunc(log.Lines(), func(line string) bool {
			return strings.Contains(line, "session lost") && strings.Contains(line, "why=\"etcd's revision went back from ")
		})
	}, harness.Hang, harness.Tick)
}

// Etcd begins anew without its data, and no lease is left. A session says that, and not that its lease has expired: whether
// it hears of it by a renewal or by a Lock.
func TestFault_J2_TheLeaseIsLostToo(t *testing.T) {
	t.Parallel()
	own := etcdtest.Start(t)
	wipe := harness.Snapshot(t, own)
	var log logtest.Log
	rests := newSession(t, own.Client(t), etcdlock.WithTTL(15*time.Second)) // longer than a wipe takes on a busy machine
	for range 10 {                                                          // more than follow
		require.NoError(t, mustLock(t, rests, harness.LockName(t)).Unlock(harness.Ctx(t)))
	}
	mustLock(t, rests, harness.LockName(t))
	tap := etcdtest.NewTap()
	locks := newClient(t, own.Client(t, tap), etcdlock.WithTTL(time.Hour), etcdlock.WithLogger(log.Logger()))
	other := locks.Mutex(harness.LockName(t) + "-2")
	require.NoError(t, harness.Take(t, other.Lock).Unlock(harness.Ctx(t)))

	wipe(0)
	// Etcd's error shows no revision, so the session asks after its lease, for a quarter of a second. If the machine stalls
	// for that long, the session says what the error said.
	var refused atomic.Pointer[time.Time]
	inTime := make(chan bool, 100)
	tap.Next("Txn", func(ctx context.Context, c *etcdtest.Call) error {
		err := c.Send(ctx)
		now := time.Now()
		refused.Store(&now)
		return err
	})
	tap.Every("LeaseTimeToLive", func(ctx context.Context, c *etcdtest.Call) error {
		err := c.Send(ctx)
		at := refused.Load()
		inTime <- err == nil && at != nil && time.Since(*at) < 100*time.Millisecond
		return err
	})
	require.NoError(t, harness.Take(t, other.Lock).Unlock(harness.Ctx(t)), "in the next session")
	select {
	case <-rests.Done():
	case <-time.After(harness.Hang):
		t.Fatal("no renewal has told")
	}
	require.ErrorContains(t, rests.Err(), "etcd's revision went back from ")
	lost := func(line string) bool { return strings.Contains(line, "session lost") }
	require.Eventually(t, func() bool { return slices.ContainsFunc(log.Lines(), lost) }, harness.Hang, harness.Tick)
	why := "etcd's revision went back from "
	if len(inTime) == 0 || !<-inTime {
		why = "(" + why + "|lease not found)"
	}
	lines := log.Lines()
	require.Regexp(t, "why=\""+why, lines[slices.IndexFunc(lines, lost)])
}

// requireAlone requires that others who come wait for the hold, and have the lock one after the other.
func requireAlone(t *testing.T, own *etcdtest.Cluster, locks *etcdlock.Client, name string, h *etcdlock.Held) {
	t.Helper()
	theirs, err := etcdlock.NewMutex(newSession(t, own.Client(t)), name).Enqueue(harness.Ctx(t))
	require.NoError(t, err)
	harness.NotGranted(t, theirs, 1)
	ours, err := locks.Mutex(name).Enqueue(harness.Ctx(t))
	require.NoError(t, err)
	harness.NotGranted(t, ours, 2)
	require.NoError(t, h.Unlock(harness.Ctx(t)))
	next, err := theirs.Wait(harness.Ctx(t))
	require.NoError(t, err)
	harness.NotGranted(t, ours, 1)
	require.NoError(t, next.Check(harness.Ctx(t)))
	require.NoError(t, next.Unlock(harness.Ctx(t)))
	last, err := ours.Wait(harness.Ctx(t))
	require.NoError(t, err)
	require.NoError(t, last.Unlock(harness.Ctx(t)))
}

// A session that has seen nothing of what was lost goes on: its entries are older than the snapshot.
func TestFault_J2_NothingWasSeen(t *testing.T) {
	t.Parallel()
	own := etcdtest.Start(t)
	s := newSession(t, own.Client(t), etcdlock.WithTTL(20*time.Second)) // longer than a restore takes on a busy machine
	h := mustLock(t, s, harness.LockName(t))
	restore := harness.Snapshot(t, own)
	restore(0)
	require.NoError(t, h.Check(harness.Ctx(t)))
	require.NoError(t, s.Refresh(harness.Ctx(t)))
	require.NoError(t, h.Unlock(harness.Ctx(t)))
	require.False(t, errors.Is(s.Err(), etcdlock.ErrSessionExpired))
}

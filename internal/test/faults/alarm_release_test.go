package faults

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/test/harness"
	"github.com/etcdlock/etcdlock/internal/test/logtest"
	"github.com/etcdlock/etcdlock/internal/test/sample"
)

// What was released while etcd refuses everything is tried again after pauses that grow.
func TestFault_J19_ReleasesAreTriedSeldom(t *testing.T) {
	t.Parallel()
	own := etcdtest.Start(t)
	admin, tap := own.Client(t), etcdtest.NewTap()
	locks := newClient(t, own.Client(t, tap), etcdlock.WithTTL(time.Minute))
	var held []*etcdlock.Held
	for i := range sample.Rounds(t, 100, 300) {
		held = append(held, harness.Take(t, locks.Mutex(fmt.Sprint("name", i)).Lock))
	}
	alarm(t, admin, pb.AlarmRequest_ACTIVATE, pb.AlarmType_CORRUPT)
	before := tap.Calls("Txn")
	for _, h := range held {
		h.Release()
	}
	harness.Elapse(7 * time.Second)
	n := tap.Calls("Txn") - before
	alarm(t, admin, pb.AlarmRequest_DEACTIVATE, pb.AlarmType_CORRUPT)
	// After 0, 0.5, 1.5 and 3.5 s, and if the machine stalls after 7.5 s. With pauses of half a second it would be 14 attempts.
	require.LessOrEqual(t, n, 5*2*len(held), "together with others, and by itself")
	t.Logf("shown: %d requests in seven seconds, for %d locks", n, len(held))
}

// A full etcd refuses locks, also those that share a request: else the log and Ready change with every second request.
func TestFault_J19_LocksOfManyNames(t *testing.T) {
	own := etcdtest.Start(t)
	admin, tap := own.Client(t), etcdtest.NewTap()
	var log logtest.Log
	locks := newClient(t, own.Client(t, tap), etcdlock.WithTTL(time.Minute), etcdlock.WithLogger(log.Logger()))
	_, err := locks.Session(harness.Ctx(t))
	require.NoError(t, err)
	alarm(t, admin, pb.AlarmRequest_ACTIVATE, pb.AlarmType_NOSPACE)
	_, err = locks.Mutex("first").Lock(harness.Ctx(t)) // so the session knows
	require.ErrorIs(t, err, rpctypes.ErrNoSpace)
	defer tap.Every("Txn", etcdtest.Before(func() { harness.Elapse(5 * time.Millisecond) }))()
	var all sync.WaitGroup
	var granted atomic.Int64
	rounds := sample.Rounds(t, 1, 3)
	for i := range 64 {
		all.Go(func() {
			for range rounds {
				h, err := locks.Mutex(fmt.Sprint("name", i)).Lock(harness.Ctx(t))
				if !errors.Is(err, rpctypes.ErrNoSpace) {
					granted.Add(1)
				}
				if err == nil {
					h.Release()
				}
			}
		})
	}
	all.Wait()
	require.Zero(t, granted.Load(), "of %d locks", 64*rounds)
	log.Require(t, logtest.Up, logRefuses)
}

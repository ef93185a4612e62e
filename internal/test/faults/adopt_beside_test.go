package faults

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/test/harness"
)

// successor is the session of the process that comes after s.
func successor(t *testing.T, s *etcdlock.Session, c *clientv3.Client) *etcdlock.Session {
	s.Orphan()
	return newSession(t, c, etcdlock.WithLease(s.Lease()))
}

// The successor downgrades what it has adopted. The process before, which has called Orphan and lives on, leaves the rest.
func TestAdopt_DowngradedWhileTheProcessBeforeLives(t *testing.T) {
	t.Parallel()
	c, name := cluster.Client(t), harness.LockName(t)
	s := newSession(t, c, etcdlock.WithTTL(8*time.Second))
	_, err := etcdlock.NewRWMutex(s, name).Lock(harness.Ctx(t))
	require.NoError(t, err)
	s2 := successor(t, s, c)
	h, err := s2.Adopt(harness.Ctx(t), name)
	require.NoError(t, err)
	require.NoError(t, h.Downgrade(harness.Ctx(t)))
	select {
	case <-h.Done():
	case <-time.After(9 * time.Second): // the checks of the process before end with its TTL
	}
	require.NoError(t, h.Err(), "the process before has removed it")
}

// A grant that nobody has claimed is adopted by the successor. The deferred Cancel of the process before leaves it, as its
// Unlock does.
func TestAdopt_TicketCancelledByTheProcessBefore(t *testing.T) {
	c, name := cluster.Client(t), harness.LockName(t)
	s := newSession(t, c)
	tk, err := etcdlock.NewMutex(s, name).Enqueue(harness.Ctx(t))
	require.NoError(t, err)
	<-tk.Done()
	s2 := successor(t, s, c)
	h, err := s2.Adopt(harness.Ctx(t), name)
	require.NoError(t, err)
	_ = tk.Cancel(harness.Ctx(t))
	require.NoError(t, h.Check(harness.Ctx(t)), "the process before has removed it")
}

// The process before calls Orphan while the reply to its Lock is on its way, and waits for that in vain. What its successor
// has adopted it leaves.
func TestAdopt_OrphanedWhileALockIsUnderWay(t *testing.T) {
	t.Parallel()
	tap, name := etcdtest.NewTap(), harness.LockName(t)
	c, c2 := cluster.Client(t, tap), cluster.Client(t)
	s := newSession(t, c, etcdlock.WithTTL(15*time.Second))
	orphaned, adopted := make(chan struct{}), make(chan struct{})
	written := tap.Next("Txn", func(ctx context.Context, call *etcdtest.Call) error {
		err := call.Send(context.WithoutCancel(ctx))
		later := func(ctx context.Context, call *etcdtest.Call) error {
			select {
			case <-adopted:
			case <-ctx.Done():
			}
			return call.Send(ctx)
		}
		tap.Every("Txn", later)
		<-orphaned
		return err
	})
	lock := harness.Async(func() error { _, err := etcdlock.NewMutex(s, name).Lock(harness.Ctx(t)); return err })
	harness.QueueIs(t, c2, name, 1)
	require.NoError(t, harness.Result(t, harness.Async(func() error { s.Orphan(); return nil })))
	close(orphaned)
	<-written
	err := harness.Result(t, lock)
	require.ErrorIs(t, err, etcdlock.ErrSessionClosed)
	s2 := newSession(t, c2, etcdlock.WithLease(s.Lease()))
	h, err := s2.Adopt(harness.Ctx(t), name)
	require.NoError(t, err)
	close(adopted)
	select {
	case <-h.Done():
	case <-time.After(2 * time.Second):
	}
	require.NoError(t, h.Err(), "the process before has removed it")
}

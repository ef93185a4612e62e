package etcdlock

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

func TestTicket(t *testing.T) {
	s := newTestSession(t, cluster.Client(t))
	name := lockName(t)
	m := NewMutex(s, name)
	ctx, cancel := context.WithCancel(testCtx(t))
	first, err := m.Enqueue(ctx)
	require.NoError(t, err)
	cancel() // the ctx bounds only the call
	<-first.Done()
	n, err := first.Ahead(testCtx(t))
	require.NoError(t, err)
	require.Zero(t, n)

	second, err := m.Enqueue(testCtx(t))
	require.NoError(t, err)
	third, err := m.Enqueue(testCtx(t))
	require.NoError(t, err)
	n, err = third.Ahead(testCtx(t))
	require.NoError(t, err)
	require.Equal(t, 2, n)
	_, err = third.Wait(ctx)
	require.ErrorIs(t, err, context.Canceled)

	require.NoError(t, second.Cancel(testCtx(t)))
	require.NoError(t, second.Cancel(testCtx(t)))
	_, err = second.Wait(testCtx(t))
	require.ErrorIs(t, err, ErrNotHeld)
	_, err = second.Ahead(testCtx(t))
	require.ErrorIs(t, err, ErrNotHeld)
	require.Len(t, entries(t, s.Client(), name), 2)

	require.NoError(t, first.Cancel(testCtx(t)), "Cancel must release a grant that was not claimed")
	_, err = first.Wait(testCtx(t))
	require.ErrorIs(t, err, ErrNotHeld)
	h, err := third.Wait(testCtx(t))
	require.NoError(t, err)
	again, err := third.Wait(testCtx(t))
	require.NoError(t, err)
	require.Same(t, h, again)
	require.NoError(t, third.Cancel(testCtx(t)), "Cancel must do nothing after the claim")
	require.NoError(t, h.Check(testCtx(t)))
	require.NoError(t, h.Unlock(testCtx(t)))
	queueIs(t, s.Client(), name, 0)
}

func TestTicket_SessionEnds(t *testing.T) {
	s := newTestSession(t, cluster.Client(t))
	m := NewMutex(s, lockName(t))
	granted, err := m.Enqueue(testCtx(t))
	require.NoError(t, err)
	waiting, err := m.Enqueue(testCtx(t))
	require.NoError(t, err)
	<-granted.Done()
	require.NoError(t, s.Close())
	_, err = waiting.Wait(testCtx(t))
	require.ErrorIs(t, err, ErrSessionClosed)
	_, err = granted.Wait(testCtx(t))
	require.ErrorIs(t, err, ErrLost)
	require.ErrorIs(t, err, ErrSessionClosed)
	require.NoError(t, waiting.Cancel(testCtx(t)))
	_, err = m.Enqueue(testCtx(t))
	require.ErrorIs(t, err, ErrSessionClosed)
}

// The etcd client is closed while the entry is in the queue, and the session has not noticed
// it.
func TestTicket_ClientClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeEtcd()
		s := f.session(1)
		s.etcd.Watcher, s.etcd.Lease = nil, nil // they can't be closed here
		f.Step = func(context.Context, string) error { _ = s.etcd.Close(); return nil }
		tk, err := NewMutex(s, "a").Enqueue(context.Background())
		require.Nil(t, tk)
		require.ErrorIs(t, err, ErrSessionExpired)
		s.lease.NotFound()
	})
}

func TestTicket_AheadAfterCancel(t *testing.T) {
	onStage(t, func(st *stage) {
		tk := st.ticket(st.mutex().Enqueue)
		require.NoError(st, tk.Cancel(st.Context()))
		_, err := tk.Wait(st.Context())
		require.ErrorIs(st, err, ErrNotHeld)
		_, err = tk.Ahead(st.Context())
		require.ErrorIs(st, err, ErrNotHeld)
	})
}

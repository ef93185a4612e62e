package faults

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/test/harness"
)

// A transaction that finds no connection until its ctx ends was not sent, and says so. Once there is a connection, it is sent.
func TestFault_B1_TxnWithoutAConnection(t *testing.T) {
	t.Parallel()
	proxy := cluster.Proxy(t)
	c := cluster.Client(t, proxy)
	s, name := newSession(t, c, etcdlock.WithTTL(time.Minute)), harness.LockName(t)
	h := harness.Take(t, etcdlock.NewMutex(s, name).Lock)
	back := harness.Away(t, proxy, c)
	commit := func(ctx context.Context) error {
		_, err := h.Txn(ctx).Then(clientv3.OpPut(name+".x", "")).Commit()
		return err
	}
	err := returnsWithCtx(t, 300*time.Millisecond, commit)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NotErrorIs(t, err, etcdlock.ErrOutcomeUnknown)
	require.Regexp(t, harness.Broken, err.Error())
	waits := harness.Async(func() error { return commit(harness.Ctx(t)) })
	harness.Hangs(t, waits, 300*time.Millisecond)
	back()
	require.NoError(t, harness.Result(t, waits))
	require.NoError(t, h.Unlock(harness.Ctx(t)))
}

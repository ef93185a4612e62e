package faults

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/etcdlock/etcdlock/concurrency"
	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/test/harness"
)

// publishers returns a hold and an Election's term, each with the call that publishes a value. tap sees their requests.
func publishers(t *testing.T, tap *etcdtest.Tap) map[string]func(context.Context) error {
	c := cluster.Client(t, tap)
	h, err := newClient(t, c).Mutex(harness.LockName(t)).Lock(harness.Ctx(t))
	require.NoError(t, err)
	e := concurrency.NewElection(dropIn(t, c), harness.LockName(t))
	require.NoError(t, e.Campaign(harness.Ctx(t), "a"))
	return map[string]func(context.Context) error{
		"SetValue": func(ctx context.Context) error { return h.SetValue(ctx, "b") },
		"Proclaim": func(ctx context.Context) error { return e.Proclaim(ctx, "b") },
	}
}

// A full etcd refuses to publish a value. Whoever wants to publish it is told at once, and what to do.
func TestFault_J19_ValueOnFullEtcd(t *testing.T) {
	t.Parallel()
	tap := etcdtest.NewTap()
	for what, publish := range publishers(t, tap) {
		t.Run(what, func(t *testing.T) {
			// As etcd 3.7 does. Etcd 3.6 carries a put out that is in a transaction inside of another one.
			defer tap.Every("Txn", func(context.Context, *etcdtest.Call) error { return rpctypes.ErrGRPCNoSpace })()
			before := tap.Calls("Txn")
			err := publish(harness.Ctx(t))
			require.ErrorIs(t, err, rpctypes.ErrNoSpace)
			require.ErrorContains(t, err, "alarm disarm")
			require.EqualValues(t, 1, tap.Calls("Txn")-before)
		})
	}
}

// Etcd leaves the outcome of each request open. Whoever publishes a value does not ask as fast as that is answered.
func TestFault_ValueIsPublishedWithPauses(t *testing.T) {
	t.Parallel()
	tap := etcdtest.NewTap()
	for what, publish := range publishers(t, tap) {
		t.Run(what, func(t *testing.T) {
			defer tap.Every("Txn", func(context.Context, *etcdtest.Call) error { return rpctypes.ErrGRPCTimeout })()
			before := tap.Calls("Txn")
			ctx, cancel := context.WithTimeout(harness.Ctx(t), 500*time.Millisecond)
			defer cancel()
			require.ErrorIs(t, publish(ctx), context.DeadlineExceeded)
			require.Less(t, tap.Calls("Txn")-before, 50)
		})
	}
}

// The ctx ends while etcd answers that the outcome is open. The error is that of the ctx, as its caller expects.
func TestFault_ValueWhenTheCtxEnds(t *testing.T) {
	t.Parallel()
	tap := etcdtest.NewTap()
	for what, publish := range publishers(t, tap) {
		t.Run(what, func(t *testing.T) {
			ctx, cancel := context.WithCancel(harness.Ctx(t))
			defer tap.Every("Txn", func(context.Context, *etcdtest.Call) error {
				cancel()
				return rpctypes.ErrGRPCTimeout
			})()
			require.ErrorIs(t, publish(ctx), context.Canceled)
		})
	}
}

package faults

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/test/harness"
)

// A snapshot brings back an entry that was released since, under a key that its session does not use yet, since a
// request for a later entry was repeated. The session removes it when it looks for what that request may write late,
// and not 20 s later, when it ceases to look.
func TestFault_J2_ReleasedEntryComesBack(t *testing.T) {
	t.Parallel()
	own := etcdtest.Start(t)
	tap := etcdtest.NewTap()
	s := newSession(t, own.Client(t, tap), etcdlock.WithTTL(time.Minute))
	m := etcdlock.NewMutex(s, "a")
	h := harness.Take(t, m.Lock)
	restore := harness.Snapshot(t, own)
	require.NoError(t, h.Unlock(harness.Ctx(t)))
	tap.Next("Txn", etcdtest.DropReply)
	require.NoError(t, harness.Take(t, m.Lock).Unlock(harness.Ctx(t)))
	restore(1_000_000)

	restored := time.Now()
	require.NoError(t, harness.Take(t, etcdlock.NewMutex(newSession(t, own.Client(t)), "a").Lock).Unlock(harness.Ctx(t)))
	require.Less(t, time.Since(restored), 15*time.Second)
	require.NoError(t, s.Err())
}

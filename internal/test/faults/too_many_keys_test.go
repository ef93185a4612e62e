package faults

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/test/harness"
	"github.com/etcdlock/etcdlock/internal/test/logtest"
)

// Row J20: with authentication etcd checks all keys of a lease at each put on it. The log says so, once, when a session
// with a password has a thousand keys.
func TestFault_J20_LogOfManyKeys(t *testing.T) {
	t.Parallel()
	_, as := harness.StartWithAuth(t)
	var log logtest.Log
	said := func() int {
		return strings.Count(strings.Join(log.Lines(), "\n"), "share the locks among more sessions")
	}
	tap := etcdtest.NewTap()
	s := newSession(t, as("worker", tap), etcdlock.WithTTL(10*time.Second), etcdlock.WithLogger(log.Logger()))
	others := as("root")
	checked := func() { // the entries, at least once from now on, since others write: a check at rest comes later
		before := tap.Calls("LeaseTimeToLive")
		require.Eventually(t, func() bool {
			_, err := others.Put(harness.Ctx(t), "b", "")
			require.NoError(t, err)
			return tap.Calls("LeaseTimeToLive") >= before+2
		}, harness.Hang, harness.Tick)
	}
	n := 0
	hold := func(names int) {
		parts := make([]etcdlock.Part, names)
		for i := range parts {
			n++
			parts[i] = etcdlock.Write(fmt.Sprintf("a/%d", n))
		}
		_, err := etcdlock.NewMulti(s, parts...).Lock(harness.Ctx(t))
		require.NoError(t, err)
	}
	for range 31 {
		hold(32)
	}
	hold(7)
	checked()
	require.Zero(t, said(), "at 999")
	hold(1)
	for i := 0; i < 10 && said() == 0; i++ { // a check that was sent again counts twice
		checked()
	}
	checked()
	require.Equal(t, 1, said())
}

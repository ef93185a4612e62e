package faults

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/test/harness"
	"github.com/etcdlock/etcdlock/internal/test/sample"
)

// Row J5, with many: 200 processes (40 in the quick run) with a password on one member. A renewal that asks for a password check makes etcd
// slower, late renewals are sent again, and so the sessions would be lost together. At rest each session asks for one
// check at most, and none is lost.
func TestFault_J5_ManySessionsWithPasswords(t *testing.T) {
	t.Parallel()
	sessions, rounds := sample.Rounds(t, 40, 200), 3
	// The cost of a check is the least: with the default cost 200 sessions need 20 s to begin. Tokens last as long as they do
	// by default, so a session at rest, which renews in each third of its TTL, needs no other one.
	_, as := harness.StartWithAuth(t, etcdtest.WithConfig(func(c *embed.Config) { c.AuthTokenTTL = 300 }))
	tap := etcdtest.NewTap()
	var all []*etcdlock.Session
	var renewed []<-chan etcdlock.RenewedInfo
	for range sessions {
		r, hooks := renewals()
		all = append(all, newSession(t, as("worker", tap), etcdlock.WithTTL(9*time.Second), hooks))
		renewed = append(renewed, r)
	}
	round := func() {
		for i, s := range all {
			select {
			case <-renewed[i]:
			case <-s.Done():
				t.Fatal(s.Err())
			}
		}
	}
	round()
	checks := tap.Calls("Authenticate")
	for range rounds {
		round()
	}
	require.LessOrEqual(t, tap.Calls("Authenticate")-checks, sessions, "password checks at rest")
	for _, s := range all {
		require.NoError(t, s.Err())
	}
}

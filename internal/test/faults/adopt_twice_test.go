package faults

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/test/harness"
)

// Two calls of Adopt at once, of a lock and of a Multi with two names, beside a Lock, while each answer takes 350 ms. One call
// has the hold, and the other finds nothing. The Lock follows the release.
func TestAdopt_TwiceWhileAnswersTakeTheirTime(t *testing.T) {
	t.Parallel()
	for what, multi := range map[string]bool{"a lock": false, "a Multi": true} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			tap, name := etcdtest.NewTap(), harness.LockName(t)
			c := cluster.Client(t)
			s := newSession(t, c)
			names, lock := []string{name, name}, etcdlock.NewMutex(s, name).Lock
			if multi {
				names[1] += "-2"
				lock = etcdlock.NewMulti(s, etcdlock.Write(name), etcdlock.Write(names[1])).Lock
			}
			before := harness.Take(t, lock)
			for _, method := range []string{"Txn", "LeaseTimeToLive"} {
				slowly(tap, method)
			}
			s2 := successor(t, s, cluster.Client(t, tap))
			type result struct {
				h   *etcdlock.Held
				err error
			}
			results := make(chan result, 2)
			for _, n := range names {
				go func() {
					h, err := s2.Adopt(harness.Ctx(t), n)
					results <- result{h, err}
				}()
			}
			locked := harness.InBackground(t, etcdlock.NewMutex(s2, name).Lock)
			var held *etcdlock.Held
			for range 2 {
				r := <-results
				if r.err == nil {
					require.Nil(t, held, "both have adopted it")
					held = r.h
					continue
				}
				require.ErrorIs(t, r.err, etcdlock.ErrNotFound)
			}
			require.NotNil(t, held)
			require.Equal(t, before.Token(), held.Token())
			require.NoError(t, held.Check(harness.Ctx(t)))
			require.Empty(t, locked)
			require.NoError(t, held.Unlock(harness.Ctx(t)))
			h := <-locked
			require.NotNil(t, h)
			require.Greater(t, h.Token(), before.Token())
			require.NoError(t, h.Unlock(harness.Ctx(t)))
		})
	}
}

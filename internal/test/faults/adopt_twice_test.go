package faults

import (
	"context"
	"errors"
	"testing"
	"time"

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
			var before *etcdlock.Held
			var err error
			names := []string{name, name}
			if multi {
				names[1] += "-2"
				before, err = etcdlock.NewMulti(s, etcdlock.Write(name), etcdlock.Write(names[1])).Lock(harness.Ctx(t))
			} else {
				before, err = etcdlock.NewMutex(s, name).Lock(harness.Ctx(t))
			}
			require.NoError(t, err)
			slow := func(ctx context.Context, call *etcdtest.Call) error {
				err := call.Send(ctx)
				select {
				case <-time.After(350 * time.Millisecond):
				case <-ctx.Done():
					return ctx.Err()
				}
				return err
			}
			for _, method := range []string{"Txn", "Range", "LeaseTimeToLive"} {
				tap.Every(method, slow)
			}
			s.Orphan()
			s2 := newSession(t, cluster.Client(t, tap), etcdlock.WithLease(s.Lease()))
			type result struct {
				h   *etcdlock.Held
				err error
			}
			results, locked := make(chan result, 2), make(chan result, 1)
			for _, n := range names {
				go func() {
					h, err := s2.Adopt(harness.Ctx(t), n)
					results <- result{h, err}
				}()
			}
			go func() {
				h, err := etcdlock.NewMutex(s2, name).Lock(harness.Ctx(t))
				locked <- result{h, err}
			}()
			var held *etcdlock.Held
			for range 2 {
				r := <-results
				if r.err == nil {
					require.Nil(t, held, "both have adopted it")
					held = r.h
					continue
				}
				require.True(t, errors.Is(r.err, etcdlock.ErrNotFound), r.err)
			}
			require.NotNil(t, held)
			require.Equal(t, before.Token(), held.Token())
			require.NoError(t, held.Check(harness.Ctx(t)))
			require.Empty(t, locked)
			require.NoError(t, held.Unlock(harness.Ctx(t)))
			r := <-locked
			require.NoError(t, r.err)
			require.Greater(t, r.h.Token(), before.Token())
			require.NoError(t, r.h.Unlock(harness.Ctx(t)))
		})
	}
}

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

// Row A1: what a request writes after it was given up.

// The first request is stuck. It arrives after the lock that the second request took was
// released: the key was not used again, and the late write is removed.
func TestFault_A1_I6_HedgedRequestComesLate(t *testing.T) {
	t.Parallel()
	c := cluster.Client(t)
	for _, kind := range []string{"Mutex", "RWMutex", "RWMutex read", "Try"} {
		tap, name := etcdtest.NewTap(), harness.LockName(t)
		s := newSession(t, cluster.Client(t, tap)) // that looks for no other late write
		late := tap.Postpone("Txn", 1)
		h, err := lockFuncs(s, name)[kind](harness.Ctx(t))
		require.NoError(t, err, kind)
		require.NoError(t, h.Check(harness.Ctx(t)))
		require.NoError(t, h.Unlock(harness.Ctx(t)))
		h2, err := lockFuncs(s, name)[kind](harness.Ctx(t))
		require.NoError(t, err, kind)
		require.NotEqual(t, h.Key(), h2.Key(), "a key must not be used again while a late write of it is possible")
		require.NoError(t, late.Send(harness.Ctx(t)))
		require.NoError(t, h2.Check(harness.Ctx(t)))
		require.NoError(t, h2.Unlock(harness.Ctx(t)))
		harness.RequireGone(t, c, name)
		requireFree(t, name)
	}
}

// The reply to an Unlock is late, and its repetition finds nothing to remove: that is not a
// loss. Also if the Lock was sent twice, and its other request writes the key again after the Unlock.
func TestFault_A2_HedgedUnlock(t *testing.T) {
	t.Parallel()
	for kind := range lockFuncs(nil, "") {
		for what, twice := range map[string]bool{kind: false, kind + " twice": true} {
			t.Run(what, func(t *testing.T) {
				t.Parallel()
				tap, name := etcdtest.NewTap(), harness.LockName(t)
				s := newSession(t, cluster.Client(t, tap))
				var late *etcdtest.Postponed
				if twice {
					late = tap.Postpone("Txn", 1)
				}
				h := harness.Take(t, lockFuncs(s, name)[kind])
				sent := tap.NextKey("Txn", h.Key(), func(ctx context.Context, c *etcdtest.Call) error {
					if err := c.Send(ctx); err != nil {
						return err
					}
					<-ctx.Done()
					return ctx.Err()
				})
				require.NoError(t, h.Unlock(harness.Ctx(t)))
				select {
				case <-sent:
				case <-time.After(harness.Hang):
					t.Fatal("Unlock has returned before its request was sent")
				}
				if twice {
					require.NoError(t, late.Send(harness.Ctx(t)))
				}
				harness.RequireReleased(t, cluster.Client(t), name+"/", h.Token())
			})
		}
	}
}

// valueOf returns the value of the hold's entry.
func valueOf(t *testing.T, c *clientv3.Client, h *etcdlock.Held) string {
	t.Helper()
	resp, err := c.Get(harness.Ctx(t), h.Key())
	require.NoError(t, err)
	require.Len(t, resp.Kvs, 1)
	return string(resp.Kvs[0].Value)
}

// Late writes of an acquisition that is over are found, also in a namespace; see also
// TestFault_A1_LateWriteAfterTheSearch.
func TestFault_A1_LateWritesAreSwept(t *testing.T) {
	t.Parallel()
	for _, prefix := range []string{"", "ns/"} {
		client, w := harness.WiredClient(t, cluster)
		if prefix != "" {
			inNamespace(client, prefix)
		}
		s := newSession(t, client, etcdlock.WithTTL(10*time.Second))
		name := harness.LockName(t)
		w.LoseReply("Txn")
		h, err := etcdlock.NewMutex(s, name).Lock(harness.Ctx(t))
		require.NoError(t, err)
		raw := cluster.Client(t)
		late := prefix + harness.SharedKey(name, s.Lease()) + "-3"
		_, err = raw.Put(harness.Ctx(t), late, valueOf(t, client, h), clientv3.WithLease(s.Lease()))
		require.NoError(t, err)
		require.NoError(t, h.Unlock(harness.Ctx(t)))
		harness.RequireGone(t, raw, prefix+name)
		require.NoError(t, s.Err())
	}
}

// The request itself is delayed: the entry appears after Lock has returned.
func TestFault_A1_LateRequest(t *testing.T) {
	t.Parallel()
	c, w := harness.WiredClient(t, cluster)
	s := newSession(t, c)
	for kind := range withMultis(s, "a") {
		name := harness.LockName(t)
		ctx, cancel := context.WithCancel(harness.Ctx(t))
		release, sent := make(chan struct{}), make(chan error, 1)
		w.Once("Txn", func(ctx context.Context, send func(context.Context) error) error {
			go func() {
				<-release
				sent <- send(context.WithoutCancel(ctx))
			}()
			cancel()
			<-ctx.Done()
			return ctx.Err()
		})
		_, err := withMultis(s, name)[kind](ctx)
		require.ErrorIs(t, err, context.Canceled)
		// Let the settling read once and find nothing; then the late write is carried out.
		w.Reset()
		require.Eventually(t, func() bool { calls, _ := w.Counts(); return calls["Range"]+calls["Txn"] > 0 }, harness.Hang, harness.Tick)
		close(release)
		require.NoError(t, <-sent)
		requireAllGone(t, c, name)
	}
	require.NoError(t, s.Err())
}

// The same with a repetition that succeeded: the late write is carried out after Unlock.
func TestFault_A1_LateRequestAfterUnlock(t *testing.T) {
	c, w := harness.WiredClient(t, cluster)
	s := newSession(t, c)
	name := harness.LockName(t)
	release, sent := make(chan struct{}), make(chan error, 1)
	w.Once("Txn", func(ctx context.Context, send func(context.Context) error) error {
		go func() {
			<-release
			sent <- send(context.WithoutCancel(ctx))
		}()
		return harness.ErrLostReply
	})
	h, err := etcdlock.NewMutex(s, name).Lock(harness.Ctx(t))
	require.NoError(t, err)
	require.NoError(t, h.Unlock(harness.Ctx(t)))
	close(release)
	require.NoError(t, <-sent)
	harness.RequireGone(t, c, name)
	requireFree(t, name)
}

// A late write may be carried out after the session has stopped looking for it. The next
// acquisition with its key finds it, does not wait for it, and does not take it for its
// own entry.
func TestFault_A1_LateWriteUnderTheOwnKey(t *testing.T) {
	t.Parallel()
	c := cluster.Client(t)
	mutex, read := harness.ExclusiveKey, harness.SharedKey
	lock, rlock := (*etcdlock.RWMutex).Lock, (*etcdlock.RWMutex).RLock
	for what, test := range map[string]struct {
		lock func(*etcdlock.RWMutex, context.Context) (*etcdlock.Held, error)
		late []func(name string, id clientv3.LeaseID) string
	}{
		"of a Mutex":                  {lock, []func(string, clientv3.LeaseID) string{mutex}},
		"of a write lock":             {lock, []func(string, clientv3.LeaseID) string{mutex, read}},
		"of a read lock":              {lock, []func(string, clientv3.LeaseID) string{read}},
		"of a read lock, by the next": {rlock, []func(string, clientv3.LeaseID) string{read}},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			name := harness.LockName(t)
			appear := func(s *etcdlock.Session) {
				earlier := mustLock(t, s, name+".earlier")
				value := valueOf(t, c, earlier)
				require.NoError(t, earlier.Unlock(harness.Ctx(t)))
				var puts []clientv3.Op
				for _, key := range test.late {
					puts = append(puts, clientv3.OpPut(key(name, s.Lease()), value, clientv3.WithLease(s.Lease())))
				}
				_, err := c.Txn(harness.Ctx(t)).Then(puts...).Commit()
				require.NoError(t, err)
			}
			pass := func(s *etcdlock.Session) {
				appear(s)
				h, err := test.lock(etcdlock.NewRWMutex(s, name), harness.Ctx(t))
				require.NoError(t, err)
				require.NoError(t, h.Unlock(harness.Ctx(t)))
				harness.RequireGone(t, c, name)
			}
			pass(newSession(t, c, etcdlock.WithTTL(2*harness.Hang))) // found at once, not by a later search
			s := newSession(t, c, etcdlock.WithTTL(10*time.Second))
			pass(s)
			appear(s) // a late write of a key that the session has skipped
			harness.RequireGone(t, c, name)
		})
	}
}

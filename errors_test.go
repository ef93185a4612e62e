package etcdlock

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/test/harness"
	"github.com/etcdlock/etcdlock/internal/test/logtest"
)

// However Do's are nested, and whatever they return, a loss is told in one line, with one prefix. What fn
// returned is found in it.
func TestErrors_OneLine(t *testing.T) {
	t.Parallel()
	c := cluster.Client(t)
	own := errors.New("fn's own")
	for what, fn := range map[string]func(ctx context.Context, m *Mutex, h *Held) error{
		"nil":           func(context.Context, *Mutex, *Held) error { return nil },
		"ctx's":         func(ctx context.Context, _ *Mutex, _ *Held) error { return ctx.Err() },
		"fn's own":      func(context.Context, *Mutex, *Held) error { return own },
		"the library's": func(ctx context.Context, _ *Mutex, h *Held) error { return h.Check(context.WithoutCancel(ctx)) },
		"another's": func(context.Context, *Mutex, *Held) error {
			return wrap("lock", func() []string { return []string{"b"} }, own)
		},
		"unlock's": func(ctx context.Context, _ *Mutex, h *Held) error { return h.Unlock(context.WithoutCancel(ctx)) },
		"nested": func(ctx context.Context, m *Mutex, h *Held) error {
			return m.Do(context.WithoutCancel(ctx), func(ctx context.Context, _ *Held) error { return own })
		},
	} {
		for _, session := range []bool{false, true} {
			m := newTestClient(t, c, WithTTL(time.Minute)).Mutex(lockName(t))
			var losing time.Time
			err := m.Do(testCtx(t), func(ctx context.Context, h *Held) error {
				return m.Do(ctx, func(ctx context.Context, h *Held) error {
					losing = time.Now()
					if session {
						revoke(t, h.s)
					} else {
						_, err := c.Delete(testCtx(t), h.Key())
						require.NoError(t, err)
					}
					<-ctx.Done()
					return fn(ctx, m, h)
				})
			})
			require.ErrorIs(t, err, ErrLost, what)
			require.NotContains(t, err.Error(), "\n", what)
			require.Equal(t, 1, strings.Count(err.Error(), "etcdlock: "), err.Error())
			if session {
				harness.RequireCause(t, losing, err, ErrSessionExpired, ErrLost, what)
			} else {
				require.NotErrorIs(t, err, ErrSessionExpired, what)
			}
			if strings.Contains(what, "own") || strings.Contains(what, "another") {
				require.ErrorIs(t, err, own)
			}
		}
	}
}

// Locks of NewSession end with it, and say what to do; those of New go on.
func TestErrors_ExpiredSession(t *testing.T) {
	t.Parallel()
	s := newTestSession(t, cluster.Client(t))
	m := NewMutex(s, lockName(t))
	s.lease.End(ErrSessionExpired, "test")
	for _, lock := range []func(context.Context) (*Held, error){m.Lock, m.TryLock} {
		_, err := lock(testCtx(t))
		require.ErrorIs(t, err, ErrSessionExpired)
		require.ErrorContains(t, err, "New")
	}
}

// The ctx of a hold has no values of Lock's; that of Do has.
func TestHeld_ContextHasNoValues(t *testing.T) {
	t.Parallel()
	type key struct{}
	s := newTestSession(t, cluster.Client(t))
	m := NewMutex(s, lockName(t))
	ctx := context.WithValue(testCtx(t), key{}, "v")
	h, err := m.Lock(ctx)
	require.NoError(t, err)
	require.Nil(t, h.Context().Value(key{}))
	require.NoError(t, h.Unlock(ctx))
	require.NoError(t, m.Do(ctx, func(ctx context.Context, _ *Held) error {
		require.Equal(t, "v", ctx.Value(key{}))
		return nil
	}))
}

// A call that ends with its ctx in an outage says so, and why, in one line.
func TestErrors_Outage(t *testing.T) {
	t.Parallel()
	other := newTestSession(t, cluster.Client(t), WithOwner("web1"))
	const refused = "etcd does not answer: " + harness.Broken + ".*: "
	for what, test := range map[string]struct {
		session, waits bool   // before the outage
		silent         bool   // no connection breaks
		asks           string // of a call that comes in the outage
		asked          int    // how often, when it is given up
		says           string
	}{
		"no session yet":    {asks: "LeaseGrant", asked: 1, says: "new session: " + refused},
		"the first request": {session: true, asks: "Txn", asked: 1, says: refused},
		"its silence":       {session: true, silent: true, asks: "Txn", asked: 4, says: `etcd does not answer: no reply within \S+s: `}, // an attempt sends it three times at the most
		"a wait":            {session: true, waits: true, says: `1 ahead, held by web1 \(token \d+\): ` + refused},
		"a wait in silence": {session: true, waits: true, silent: true, says: `1 ahead, held by web1 \(token \d+\): etcd does not answer: (no watch tells of etcd's changes|no answer to the renewal of the lease): `},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			p := cluster.Proxy(t)
			if !test.session {
				p.Refuse() // before the client connects
			}
			tap := etcdtest.NewTap()
			c := cluster.Client(t, p, tap)
			var log logtest.Log
			locks := newTestClient(t, c, WithTTL(12*time.Second), WithLogger(log.Logger()))
			t.Cleanup(p.Heal) // without etcd the client takes seconds to close
			name := lockName(t)
			if test.session {
				require.NoError(t, locks.Ready(testCtx(t)))
			}
			ctx, cancel := context.WithCancel(testCtx(t))
			defer cancel()
			var left <-chan error
			lock := func() { left = async(func() error { _, err := locks.Mutex(name).Lock(ctx); return err }) }
			if test.waits {
				h := mustLock(t, other, name)
				lock()
				awaitWhom(t, locks, name, h.rev+1)
			}
			switch {
			case test.silent:
				p.Hold(etcdtest.Both)
			case test.session:
				harness.Away(t, p, c)
			}
			switch {
			case !test.waits:
				lock()
				require.Eventually(t, func() bool { return tap.Calls(test.asks) >= test.asked }, hang, tick)
				require.Eventually(t, func() bool {
					return test.silent || c.ActiveConnection().GetState().String() == "TRANSIENT_FAILURE"
				}, hang, tick)
				cancel()
			case test.silent:
				// On a machine that stalls, the log also has one from before the session was up.
				require.Eventually(t, func() bool {
					m := log.Messages()
					return slices.Equal(m[max(0, len(m)-2):], []string{logtest.Up, logtest.Outage})
				}, hang, tick)
				cancel()
			default:
				cancel()
			}
			err := result(t, left)
			require.ErrorIs(t, err, context.Canceled)
			require.Regexp(t, `^etcdlock: lock "`+name+`": `+test.says+"context canceled$", err.Error())
			require.NotContains(t, err.Error(), "\n")
		})
	}
}

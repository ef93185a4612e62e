package etcdlock

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
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
		"another's":     func(context.Context, *Mutex, *Held) error { return wrap("lock", "b", own) },
		"unlock's":      func(ctx context.Context, _ *Mutex, h *Held) error { return h.Unlock(context.WithoutCancel(ctx)) },
		"nested": func(ctx context.Context, m *Mutex, h *Held) error {
			return m.Do(context.WithoutCancel(ctx), func(ctx context.Context, _ *Held) error { return own })
		},
	} {
		for _, session := range []bool{false, true} {
			m := newTestClient(t, c, WithTTL(time.Minute)).Mutex(lockName(t))
			err := m.Do(testCtx(t), func(ctx context.Context, h *Held) error {
				return m.Do(ctx, func(ctx context.Context, h *Held) error {
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
			require.Equal(t, session, errors.Is(err, ErrSessionExpired), err.Error())
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
	s.terminate(ErrSessionExpired, "test")
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

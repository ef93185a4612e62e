package etcdlock

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRWMutex_ReadersTogether(t *testing.T) {
	const readers = 50
	name := lockName(t)
	s := newTestSession(t, cluster.Client(t))
	rw := NewRWMutex(s, name)
	w, err := rw.Lock(testCtx(t))
	require.NoError(t, err)
	var inside, done sync.WaitGroup
	inside.Add(readers)
	for range readers {
		done.Go(func() {
			h, err := rw.RLock(testCtx(t))
			if err != nil {
				t.Error(err)
				inside.Done()
				return
			}
			inside.Done()
			inside.Wait() // returns only if all readers are inside together
			if err := h.Unlock(testCtx(t)); err != nil {
				t.Error(err)
			}
		})
	}
	require.Eventually(t, func() bool { return len(entries(t, s.Client(), name)) == readers+2 }, hang, tick)
	require.NoError(t, w.Unlock(testCtx(t)))
	done.Wait()
	queueIs(t, s.Client(), name, 0)
	requireSettled(t, s)
}

// requireSettled waits until no key of the session is in use. After a request that was
// repeated because it was slow, this takes until the session stops looking for its first
// attempt.
func requireSettled(t *testing.T, s *Session) {
	t.Helper()
	require.Eventually(t, func() bool { return !s.keys.InUse() }, hang, tick, "the session's keys must become free again")
}

func TestRWMutex_TryReadWithReaders(t *testing.T) {
	rw := NewRWMutex(newTestSession(t, cluster.Client(t)), lockName(t))
	a, err := rw.TryRLock(testCtx(t))
	require.NoError(t, err)
	b, err := rw.TryRLock(testCtx(t))
	require.NoError(t, err)
	require.NotEqual(t, a.Key(), b.Key())
	_, err = rw.TryLock(testCtx(t))
	require.ErrorIs(t, err, ErrLocked)
	require.NoError(t, a.Unlock(testCtx(t)))
	require.NoError(t, b.Unlock(testCtx(t)))
}

func TestRWMutex_CounterUnderRace(t *testing.T) {
	name := lockName(t)
	c := cluster.Client(t)
	sessions := []*Session{newTestSession(t, c), newTestSession(t, c)}
	value := 0
	var wg sync.WaitGroup
	for i := range 60 {
		rw := NewRWMutex(sessions[i%2], name)
		wg.Go(func() {
			var err error
			switch i % 3 {
			case 0:
				err = rw.Do(testCtx(t), func(context.Context, *Held) error { value++; return nil })
			case 1:
				err = rw.RDo(testCtx(t), func(context.Context, *Held) error { _ = value; return nil })
			default:
				err = rw.Do(testCtx(t), func(ctx context.Context, h *Held) error {
					value++
					if err := h.Downgrade(ctx); err != nil {
						return err
					}
					_ = value
					return nil
				})
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	require.Equal(t, 40, value)
	queueIs(t, c, name, 0)
}

// A check of the session's entries that began before Downgrade finds no exclusive key afterwards. That is no loss: the
// hold is known by its shared key since.
func TestRWMutex_DowngradedBesideACheck(t *testing.T) {
	onStage(t, func(st *stage) {
		h := st.lock(st.rw().Lock)
		tk := st.ticket(st.rw().REnqueue)
		before := inQueue(st.s.parts())
		require.NoError(st, h.Downgrade(st.Context()))
		require.NoError(st, st.s.loseMissing(st.Context(), before, 0))
		require.NoError(st, h.Err())
		require.NoError(st, st.s.loseMissing(st.Context(), inQueue(st.s.parts()), 0))
		require.NoError(st, h.Err())
		reader := st.wait(tk)
		require.NoError(st, h.Unlock(st.Context()))
		require.NoError(st, reader.Unlock(st.Context()))
	})
}

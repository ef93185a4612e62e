package faults

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/test/harness"
	"github.com/etcdlock/etcdlock/internal/test/leaks"
)

// drains reports whether an Orphan waits for the requests on their way: what is wanted from now on is wanted later.
func drains() bool {
	return slices.ContainsFunc(strings.Split(leaks.Library(), "\n\n"), func(stack string) bool {
		return strings.Contains(stack, "[select") && strings.Contains(stack, "(*Client).Drain(")
	})
}

// Orphan returns when etcd has answered what the session has on its way. So nothing of it is carried out after the
// successor has adopted the lock, and what is wanted later is not sent any more.
func TestAdopt_OrphanedWithARequestOnItsWay(t *testing.T) {
	for what, start := range map[string]func(t *testing.T, s *etcdlock.Session, name string, tap *etcdtest.Tap) (w *writing, left int){
		"lock": func(t *testing.T, s *etcdlock.Session, name string, tap *etcdtest.Tap) (*writing, int) {
			w := holdWrites(t, tap)
			go func() { _, _ = etcdlock.NewMutex(s, name).Lock(harness.Ctx(t)) }()
			return w, 1
		},
		"release": func(t *testing.T, s *etcdlock.Session, name string, tap *etcdtest.Tap) (*writing, int) {
			h, err := etcdlock.NewMutex(s, name).Lock(harness.Ctx(t))
			require.NoError(t, err)
			w := holdWrites(t, tap)
			h.Release()
			return w, 0
		},
		"downgrade": func(t *testing.T, s *etcdlock.Session, name string, tap *etcdtest.Tap) (*writing, int) {
			h, err := etcdlock.NewRWMutex(s, name).Lock(harness.Ctx(t))
			require.NoError(t, err)
			w := holdWrites(t, tap)
			go func() { _ = h.Downgrade(harness.Ctx(t)) }()
			return w, 1
		},
	} {
		t.Run(what, func(t *testing.T) {
			c, tap := cluster.Client(t), etcdtest.NewTap()
			name := harness.LockName(t)
			s := newSession(t, cluster.Client(t, tap))
			kept, err := etcdlock.NewMutex(s, name+".kept").Lock(harness.Ctx(t))
			require.NoError(t, err)
			w, left := start(t, s, name, tap)
			<-w.caught
			orphaned := harness.Async(func() error { s.Orphan(); return nil })
			require.Eventually(t, drains, harness.Hang, harness.Tick)
			harness.Hangs(t, orphaned, 50*time.Millisecond)
			kept.Release()
			w.send()
			require.NoError(t, harness.Result(t, orphaned))
			s2 := newSession(t, c, etcdlock.WithLease(s.Lease()))
			h, err := s2.Adopt(harness.Ctx(t), name+".kept")
			require.NoError(t, err, "its release came after Orphan was called")
			require.Equal(t, kept.Token(), h.Token())
			require.Len(t, harness.Entries(t, c, name), left)
			if h, err = s2.Adopt(harness.Ctx(t), name); left == 0 {
				require.ErrorIs(t, err, etcdlock.ErrNotFound)
				return
			}
			require.NoError(t, err)
			require.NoError(t, h.Check(harness.Ctx(t)))
			require.NoError(t, h.Unlock(harness.Ctx(t)))
			harness.RequireGone(t, c, name)
		})
	}
}

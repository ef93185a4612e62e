package wait

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/test/fakeetcd"
	"github.com/etcdlock/etcdlock/internal/waitlist"
)

// mute has the watches that are opened tell nothing but that they are there.
func (s *scene) mute() {
	ch := make(chan clientv3.WatchResponse, 1)
	ch <- fakeetcd.Response(s.f.Write("x"), clientv3.WatchResponse{Created: true})
	s.Client.UseWatcher(scripted{s.f, ch})
}

func (s *scene) recheck() (all bool) {
	defer synctest.Wait()
	return s.Recheck(s.Context(), []*waitlist.List{s.l})
}

// While what an entry waits for is there, a recheck is one request, and asks nothing else. When the watch has missed that
// it has gone, the recheck finds that out.
func TestRecheck(t *testing.T) {
	play(t, func(s *scene) {
		s.mute()
		s.f.Write("a/1")
		ended := s.wait(s.enqueue("a/5"))
		before := len(s.asked())
		require.True(s, s.recheck())
		require.Equal(s, []string{"Range"}, s.asked()[before:])
		s.f.Remove("a/1")
		require.False(s, s.recheck(), "its agent may hang")
		s.grants(ended)
	})
}

// The key that an entry waits for is removed, which the watch misses, and then written anew, behind the entry. That is
// another entry, which waits for this one.
func TestRecheck_KeyUsedAnew(t *testing.T) {
	play(t, func(s *scene) {
		s.mute()
		s.f.Write("a/1")
		ended := s.wait(s.enqueue("a/5"))
		s.f.Remove("a/1")
		s.f.Write("a/1")
		s.recheck()
		s.grants(ended)
	})
}

// Where etcd refuses to show one of the keys, as rights were taken away, each list asks for itself.
func TestRecheck_Refused(t *testing.T) {
	play(t, func(s *scene) {
		s.mute()
		s.f.Write("a/1")
		ended := s.wait(s.enqueue("a/5"))
		s.f.Remove("a/1")
		s.fail = rpctypes.ErrGRPCPermissionDenied
		require.False(s, s.recheck())
		s.grants(ended)
	})
}

// An agent whose request never returns, whatever ends, is replaced. The keys before the entry leave before the watch is
// there, behind which they are read, or a watch misses that. One recheck replaces no agent, however many keys have left.
func TestRecheck_AgentHangs(t *testing.T) {
	for _, what := range []string{"Watch", "pinned Range", "Range"} {
		t.Run(what, func(t *testing.T) {
			play(t, func(s *scene) {
				hang, step := make(chan struct{}), s.f.Step
				hung := false
				s.f.Step = func(ctx context.Context, w string) error {
					if w == "Watch" && what == "pinned Range" {
						s.f.Remove("a/1", "a/2")
					}
					if w == what && !hung {
						hung = true
						<-hang
					}
					return step(ctx, w)
				}
				if what == "Range" {
					s.mute()
				}
				s.f.Write("a/1")
				s.f.Write("a/2")
				ended := s.wait(s.enqueue("a/5"))
				if what == "Range" {
					require.False(s, hung)
					s.l.Refresh()
					synctest.Wait()
				}
				require.True(s, hung)
				s.f.Remove("a/1", "a/2")
				require.Empty(s, ended)
				s.recheck()
				require.Empty(s, ended)
				s.recheck()
				s.grants(ended)
				close(hang)
			})
		})
	}
}

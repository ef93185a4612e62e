package wait

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/keyspace"
	"github.com/etcdlock/etcdlock/internal/queue"
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

// crowd has entries of many lists wait, each for a key of another session.
func (s *scene) crowd(n int) (lists []*waitlist.List, ended []<-chan error) {
	s.Opened = func() {} // by many at once
	for i := range n {
		s.l = s.NewList(fmt.Sprint("a", i))
		s.f.Write(s.l.Name + "/1")
		key := s.l.Name + "/5"
		e := register(s.l, keyspace.Exclusive, key)
		before := queue.Entries(s.f.Keys(s.l.Name + "/"))
		rev := s.f.Write(key)
		e.Enqueued(rev, &waitlist.Listing{At: rev, UpTo: rev, Shared: true, Keys: before, Size: int64(len(before))})
		lists, ended = append(lists, s.l), append(ended, s.wait(e))
	}
	return lists, ended
}

// hangs has the reads of the crowd hang, whatever their ctxs do, until goOn is called. asked is how many there are.
func (s *scene) hangs() (asked *atomic.Int32, goOn func()) {
	asked, goesOn, step := &atomic.Int32{}, make(chan struct{}), s.f.Step
	s.f.Step = func(ctx context.Context, what string) error {
		if what == "Range" {
			asked.Add(1)
			<-goesOn
		}
		return step(ctx, what)
	}
	return asked, func() { close(goesOn) }
}

// However many lists lose their watches at once, as when etcd has no leader, few of them read at a time.
func TestRead_NoStorm(t *testing.T) {
	play(t, func(s *scene) {
		lists, ended := s.crowd(2 * maxReading)
		asked, goOn := s.hangs()
		s.f.BreakWatches()
		<-time.After(etcd.HedgeMin / 2) // later each is sent again
		together := int(asked.Load())
		goOn()
		for _, l := range lists {
			s.f.Remove(l.Name + "/1")
		}
		for i := range ended {
			require.NoError(s, <-ended[i])
		}
		require.LessOrEqual(s, together, maxReading)
	})
}

// Agents that were replaced, and whose requests never return, keep no others from reading.
func TestRead_AgentsHang(t *testing.T) {
	play(t, func(s *scene) {
		lists, ended := s.crowd(maxReading + 1)
		asked, goOn := s.hangs()
		s.Client.NeverHedge()
		for range 4 {
			for _, l := range lists {
				l.Refresh()
			}
			synctest.Wait()
		}
		all := int(asked.Load())
		goOn()
		for i, l := range lists {
			s.f.Remove(l.Name + "/1")
			s.grants(ended[i])
		}
		require.Greater(s, all, maxReading)
	})
}

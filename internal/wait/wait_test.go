package wait

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/keyspace"
	"github.com/etcdlock/etcdlock/internal/outage"
	"github.com/etcdlock/etcdlock/internal/queue"
	"github.com/etcdlock/etcdlock/internal/test/fakeetcd"
	"github.com/etcdlock/etcdlock/internal/test/logtest"
	"github.com/etcdlock/etcdlock/internal/waitlist"
)

// scene is a list in front of a fake of etcd, in a bubble. The list has no session: its entries are put into
// the queue, and taken out, by the test.
type scene struct {
	*testing.T
	*Waits
	f         *fakeetcd.Server
	l         *waitlist.List
	opened    int
	forgotten atomic.Int32

	mu    sync.Mutex // guards what follows
	steps []string   // the requests and watches that were asked for
	fail  error      // of the next one
	lost  []*waitlist.Part

	end   context.CancelCauseFunc
	close context.CancelFunc // of the client
}

var errEnded = errors.New("ended")

func play(t *testing.T, do func(*scene)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &scene{T: t, f: fakeetcd.New()}
		ctx, stop := context.WithCancel(context.Background())
		client := clientv3.NewCtxClient(ctx)
		client.KV, client.Watcher, s.close = clientv3.NewKVFromKVClient(s.f, client), s.f, stop
		s.Waits = &Waits{
			Config: waitlist.Config{WatchOwnAfter: 100 * time.Millisecond},
			Client: etcd.NewClient(client), Opened: func() { s.opened++ },
			Go:      func(f func(context.Context)) bool { go f(nil); return true },
			Removed: func(*waitlist.Part) bool { return false }, EndError: context.Cause,
			Lost: func(lost []*waitlist.Part) {
				s.mu.Lock()
				defer s.mu.Unlock()
				s.lost = append(s.lost, lost...)
			},
		}
		s.Life, s.end = context.WithCancelCause(context.Background())
		s.Outages = &outage.Source{All: &outage.Outages{}, Client: s.Client, Life: s.Life, Log: slog.New(slog.DiscardHandler), Lease: logtest.NoLease{}}
		s.Forget = func(string) { s.forgotten.Add(1) }
		s.l = s.NewList("a")
		s.f.Step = func(_ context.Context, what string) error {
			if what[len(what)-1] == '.' {
				return nil
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			s.steps = append(s.steps, what)
			err := s.fail
			s.fail = nil
			return err
		}
		do(s)
		s.end(errEnded)
		synctest.Wait()
		require.Empty(t, s.f.Watches())
	})
}

func register(l *waitlist.List, kind keyspace.Kind, key string) *waitlist.Part {
	p := &waitlist.Part{}
	p.Rekey(key, "")
	l.Register(p, kind)
	return p
}

// enqueue puts an entry into the queue. Its txn shows what is before.
func (s *scene) enqueue(key string) *waitlist.Part {
	e := register(s.l, keyspace.KindOf("a", key), key)
	before := queue.Entries(s.f.Keys("a/"))
	rev := s.f.Write(key)
	e.Enqueued(rev, &waitlist.Listing{At: rev, UpTo: rev, Shared: true, Keys: before, Size: int64(len(before))})
	return e
}

// wait has an entry wait until all sleep.
func (s *scene) wait(e *waitlist.Part) (ended <-chan error) {
	ch := make(chan error, 1)
	go func() { ch <- s.Wait(s.Context(), e) }()
	synctest.Wait()
	return ch
}

// grants requires that a wait ends with a grant, now.
func (s *scene) grants(ended <-chan error) {
	s.Helper()
	synctest.Wait()
	require.Len(s, ended, 1)
	require.NoError(s, <-ended)
}

// leaves gives an entry back, and removes its key.
func (s *scene) leaves(e *waitlist.Part, key string) {
	e.Leave(false)
	s.f.Remove(key)
	e.Removed(s.f.Write("x"), true, nil, nil)
}

// idle has time pass until no watch is kept to which nobody listens.
func (s *scene) idle() {
	<-time.After(200 * time.Millisecond)
	synctest.Wait()
}

func TestWait_Grant(t *testing.T) {
	play(t, func(s *scene) {
		bound := &counted{Context: s.Life}
		s.Life = bound
		s.f.Write("a/1")
		e := s.enqueue("a/5")
		ended := s.wait(e)
		require.Empty(s, ended)
		require.Equal(s, []string{"Watch"}, s.asked(), "nothing was written since, so nothing is read")
		require.Equal(s, 1, s.opened)
		require.Positive(s, bound.n.Load())
		s.f.Remove("a/1")
		s.grants(ended)
		require.Equal(s, []string{"Watch"}, s.asked())
		require.Len(s, s.f.Watches(), 1, "it is kept for a while")
		e.Leave(false)
		e.Removed(s.f.Write("x"), true, nil, nil)
		require.Zero(s, s.forgotten.Load())
		s.idle()
		require.Empty(s, s.f.Watches())
		require.Positive(s, s.forgotten.Load())
		require.Zero(s, bound.n.Load(), "nothing hangs on Life any more")
	})
}

// counted is a ctx that counts what waits for its end.
type counted struct {
	context.Context
	n atomic.Int32
}

// Value hides the ctx inside, so that package context asks AfterFunc.
func (c *counted) Value(any) any { return nil }

func (c *counted) AfterFunc(f func()) func() bool {
	c.n.Add(1)
	stop := context.AfterFunc(c.Context, f)
	return func() bool { c.n.Add(-1); return stop() }
}

// When a wait is given up, the next entry of the list has the watch on all of the queue, and asks when that breaks.
func TestWait_NextAsks(t *testing.T) {
	play(t, func(s *scene) {
		s.f.Write("a/1")
		ctx, cancel := context.WithCancel(s.Context())
		first := s.enqueue("a/5")
		go func() { _ = s.Wait(ctx, first) }()
		synctest.Wait()
		ended := s.wait(s.enqueue("a/5-1"))
		breakAll := func() {
			<-time.After(2 * etcd.RetryMax) // it has lasted
			s.f.BreakWatches()
			<-time.After(2 * etcd.RetryMin)
			synctest.Wait()
			require.Len(s, s.f.Watches(), 1)
		}
		breakAll()
		breakAll()
		watches := len(s.asked())
		cancel()
		require.Len(s, s.asked(), watches)
		breakAll()
		first.Leave(false) // and is removed late
		s.f.Remove("a/1")
		s.grants(ended)
		s.idle()
		require.False(s, s.Client.Watches())
	})
}

// What a watch tells is taken for a sign that its stream lives.
func TestWait_Heard(t *testing.T) {
	play(t, func(s *scene) {
		s.f.Write("a/1")
		_ = s.wait(s.enqueue("a/5"))
		for range 5 {
			require.False(s, s.Client.Probe(s.Context()))
			<-time.After(2 * etcd.AttemptMin)
		}
	})
}

// A ctx that ends ends the pause after an error too.
func TestWait_CtxEndsInAPause(t *testing.T) {
	play(t, func(s *scene) {
		s.f.Write("a/1")
		s.f.Refuse = func(*fakeetcd.Watch) bool { return true }
		ctx, cancel := context.WithCancel(s.Context())
		ended := make(chan error, 1)
		e := s.enqueue("a/5")
		go func() { ended <- s.Wait(ctx, e) }()
		<-time.After(time.Minute)
		for n := len(s.asked()); len(s.asked()) == n; { // until it begins a pause
			<-time.After(time.Millisecond)
		}
		start := time.Now()
		cancel()
		require.ErrorIs(s, <-ended, context.Canceled)
		require.Zero(s, time.Since(start))
	})
}

// What ends a wait for good.
func TestWait_Ends(t *testing.T) {
	why := errors.New("why")
	for name, c := range map[string]struct {
		end  func(s *scene, e *waitlist.Part, cancel func())
		want error
	}{
		"ctx":  {func(_ *scene, _ *waitlist.Part, cancel func()) { cancel() }, context.Canceled},
		"life": {func(s *scene, _ *waitlist.Part, _ func()) { s.end(why) }, why},
		"refused": {func(s *scene, _ *waitlist.Part, _ func()) {
			s.fail = rpctypes.ErrGRPCInvalidAuthToken
			s.f.BreakWatches()
		}, rpctypes.ErrInvalidAuthToken},
		"client closed": {func(s *scene, _ *waitlist.Part, _ func()) { s.close(); s.f.BreakWatches() }, etcd.ErrClientClosed},
		"entry removed": {func(s *scene, _ *waitlist.Part, _ func()) { s.f.Remove("a/5") }, waitlist.ErrRemoved},
		"another is gone": {func(s *scene, e *waitlist.Part, _ func()) {
			part := register(s.l, keyspace.Exclusive, "a/5-1")
			part.WakeWith(e)
			rev := s.f.Write("a/5-1")
			part.Enqueued(rev, nil)
			s.Removed = func(*waitlist.Part) bool { return true }
			part.Missing("a/5-1", rev)
		}, waitlist.ErrRemoved},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, func(s *scene) {
				s.f.Write("a/1")
				ctx, cancel := context.WithCancel(s.Context())
				e := s.enqueue("a/5")
				ended := make(chan error, 1)
				go func() { ended <- s.Wait(ctx, e) }()
				synctest.Wait()
				start := time.Now()
				c.end(s, e, cancel)
				require.ErrorIs(s, <-ended, c.want)
				require.LessOrEqual(s, time.Since(start), 2*etcd.RetryMin)
				e.Leave(false)
				s.idle()
				require.Empty(s, s.f.Watches())
			})
		})
	}
}

// If a role is without rights for a moment, the wait goes on. If the rights stay away, all waits end, and each list asks twice.
func TestWait_Denied(t *testing.T) {
	for _, passes := range []bool{true, false} {
		play(t, func(s *scene) {
			s.f.Write("a/1")
			first, second := s.wait(s.enqueue("a/5")), s.wait(s.enqueue("a/6"))
			s.asked()
			var granted atomic.Bool
			step := s.f.Step
			s.f.Step = func(ctx context.Context, what string) error {
				_ = step(ctx, what)
				if !granted.Load() && strings.HasSuffix(what, "Range") {
					return rpctypes.ErrGRPCPermissionDenied
				}
				return nil
			}
			s.f.BreakWatches()
			<-time.After(roleChange / 2)
			require.Empty(s, first)
			granted.Store(passes)
			<-time.After(roleChange)
			require.LessOrEqual(s, len(s.asked()), 4)
			if !passes {
				require.ErrorIs(s, <-first, rpctypes.ErrPermissionDenied)
				require.ErrorIs(s, <-second, rpctypes.ErrPermissionDenied)
				return
			}
			granted.Store(false) // and once more
			s.f.BreakWatches()
			<-time.After(roleChange / 2)
			require.Empty(s, first)
			granted.Store(true)
			<-time.After(roleChange)
			s.f.Remove("a/1")
			s.grants(first)
			require.Empty(s, second)
		})
	}
}

// Two of many ask; the others begin to when it is their turn.
func TestWait_Turn(t *testing.T) {
	play(t, func(s *scene) {
		s.f.Write("a/1")
		var all []*waitlist.Part
		var ended []<-chan error
		for i := range 5 {
			all = append(all, s.enqueue(fmt.Sprint("a/5-", i+1)))
			ended = append(ended, s.wait(all[i]))
		}
		require.Len(s, s.f.Watches(), 1)
		s.f.Remove("a/1")
		for i, e := range all {
			s.grants(ended[i])
			s.leaves(e, fmt.Sprint("a/5-", i+1))
		}
		require.Equal(s, 1, len(s.asked())-len(s.reads()))
	})
}

// asked are the requests and watches up to now, when all sleep.
func (s *scene) asked() []string {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.steps)
}

// reads are those that were no watch.
func (s *scene) reads() []string {
	return slices.DeleteFunc(s.asked(), func(step string) bool { return step == "Watch" })
}

// Many readers of a list wait for a writer, behind more readers of another session than a reading from the front of the queue
// shows. Their watch was opened after they had entered. So when the writer has left, etcd must be asked whether they were
// there: for all of them together, not one after the other.
func TestWait_ManyReaders(t *testing.T) {
	play(t, func(s *scene) {
		entered, step := make(chan struct{}), s.f.Step
		s.f.Step = func(ctx context.Context, what string) error {
			if what == "Watch" {
				<-entered
			}
			return step(ctx, what)
		}
		writer := queue.Entry{Key: "a/1", Rev: s.f.Write("a/1")}
		for i := range 2 * waitlist.UpLimit {
			s.f.Write(fmt.Sprintf("a/r2-%x", i+1))
		}
		var readers []*waitlist.Part
		for i := range 60 {
			key := fmt.Sprintf("a/r5-%x", i+1)
			e, rev := register(s.l, keyspace.Shared, key), s.f.Write(key)
			e.Enqueued(rev, &waitlist.Listing{At: rev, UpTo: rev, Keys: []queue.Entry{writer}})
			readers = append(readers, e)
		}
		close(entered)
		var ended []<-chan error
		for _, e := range readers {
			ended = append(ended, s.wait(e))
		}
		before := len(s.reads())
		s.f.Remove("a/1")
		for _, ch := range ended {
			s.grants(ch)
		}
		require.LessOrEqual(s, len(s.reads())-before, 2)
	})
}

// A watch that ends may not have told all: what it was to tell of is read.
func TestWait_WatchEnds(t *testing.T) {
	play(t, func(s *scene) {
		s.f.Write("a/1")
		ended := s.wait(s.enqueue("a/5"))
		s.f.BreakWatches()
		s.f.Remove("a/1")
		<-time.After(2 * etcd.RetryMin)
		s.grants(ended)
		require.Equal(s, []string{"Range"}, s.reads())
	})
}

// What fails is tried again, in the same place, and reads the present then. The log tells of it, and of its end.
func TestWait_ErrorPasses(t *testing.T) {
	for _, first := range []error{rpctypes.ErrGRPCNoLeader, rpctypes.ErrGRPCPermissionDenied} { // of a watch: a read tells
		for _, patient := range []bool{true, false} {
			play(t, func(s *scene) {
				var log logtest.Log
				s.Outages.Log = log.Logger()
				s.f.Write("a/1")
				s.fail = first
				ctx, cancel := context.WithCancel(s.Context())
				defer cancel()
				e := s.enqueue("a/5")
				ended := make(chan error, 1)
				go func() { ended <- s.Wait(ctx, e) }()
				synctest.Wait()
				require.Empty(s, ended)
				if !patient {
					s.EndError = func(context.Context) error { return s.Outages.All.Why() }
					cancel()
					require.ErrorIs(s, <-ended, etcd.ErrWatch, "why it has waited in vain")
					e.Leave(false)
					synctest.Wait()
					log.Require(t, logtest.Outage, logtest.Nobody)
					return
				}
				<-time.After(2 * etcd.RetryMin)
				require.Equal(s, []string{"Watch", "Range", "Watch"}, s.asked())
				log.Require(t, logtest.Outage, logtest.Over)
				s.f.Remove("a/1")
				s.grants(ended)
			})
		}
	}
}

// breaks has each watch break, lasting after it was opened, while its agent, which never rests, reads behind it. It waits
// for n breaks, and returns how long that took.
func (s *scene) breaks(n int32, lasting time.Duration) time.Duration {
	s.f.Write("a/1")
	var broken atomic.Int32
	start, step := time.Now(), s.f.Step
	s.f.Step = func(ctx context.Context, what string) error {
		if what == "Watch" && broken.Load() < n {
			s.f.Write("x") // so that it has to read behind the watch
		}
		if strings.HasSuffix(what, "Range") && len(s.f.Watches()) > 0 {
			<-time.After(lasting)
			broken.Add(1)
			s.f.BreakWatches()
			<-time.After(time.Millisecond) // until the list has heard of it
		}
		return step(ctx, what)
	}
	ended := s.wait(s.enqueue("a/5"))
	for broken.Load() < n {
		<-time.After(etcd.RetryMin)
		require.Less(s, time.Since(start), time.Hour)
	}
	took := time.Since(start)
	<-time.After(2 * etcd.RetryMax)
	s.f.Remove("a/1")
	s.grants(ended)
	return took
}

// After a watch that has lasted, the pauses begin anew, also of an agent that never rests.
func TestWait_PausesBeginAnew(t *testing.T) {
	play(t, func(s *scene) {
		const n, lasting = 2 * maxAsked, 2 * etcd.RetryMax
		require.Less(s, s.breaks(n, lasting), n*(lasting+4*etcd.RetryMin))
	})
}

// A watch that breaks as soon as it is opened is opened again more and more seldom: by an agent that never rests, and by
// one agent after the other.
func TestWait_BreaksAtOnce(t *testing.T) {
	play(t, func(s *scene) {
		require.Greater(s, s.breaks(60, 0), 10*time.Second)
	})
	play(t, func(s *scene) {
		s.f.Write("a/1")
		ended := s.wait(s.enqueue("a/5"))
		for start := time.Now(); time.Since(start) < 30*time.Second; <-time.After(time.Millisecond) {
			s.f.BreakWatches()
		}
		opened := len(s.asked()) - len(s.reads())
		require.Less(s, opened, 100)
		require.Greater(s, opened, 50, "it goes on")
		<-time.After(2 * etcd.RetryMax)
		s.f.Remove("a/1")
		s.grants(ended)
	})
}

// A waiter that asks now and then asks at once.
func TestWait_AsksNowAndThen(t *testing.T) {
	play(t, func(s *scene) {
		s.f.Write("a/1")
		ended := s.wait(s.enqueue("a/5"))
		for range 2 * maxAsked {
			before := len(s.asked())
			s.l.Refresh()
			require.Greater(s, len(s.asked()), before)
			<-time.After(2 * time.Second)
		}
		s.f.Remove("a/1")
		s.grants(ended)
	})
}

// An agent that never rests does not pause if it asks a few times for each of many entries.
func TestWait_AsksForMany(t *testing.T) {
	play(t, func(s *scene) {
		s.f.Write("a/1")
		var all []*waitlist.Part
		for i := range 8 {
			all = append(all, s.enqueue(fmt.Sprint("a/5-", i+1)))
		}
		synctest.Wait()
		start, asked, step := time.Now(), 0, s.f.Step
		s.f.Step = func(ctx context.Context, what string) error {
			if what == "Range" && len(all) > 1 {
				if asked++; asked%(maxAsked/2) == 0 {
					all[0].Leave(false)
					all = all[1:]
				}
				s.l.Refresh() // so that it asks again
			}
			return step(ctx, what)
		}
		s.l.Refresh()
		synctest.Wait()
		require.Greater(s, asked, 3*maxAsked)
		require.Zero(s, time.Since(start))
	})
}

// Whatever a list believes, its entries do not ask without a pause. Here it waits for revisions that were lost when a
// snapshot was restored, and there is no session that ends.
func TestWait_NeverWithoutAPause(t *testing.T) {
	play(t, func(s *scene) {
		s.f.Write("a/1")
		first := s.enqueue("a/5")
		ended := s.wait(first)
		restored := s.f.Write("x")
		s.f.Remove("a/1")
		s.grants(ended)
		for range 1000 {
			s.f.Write("x")
		}
		first.Missing("a/5", s.f.Write("x"))
		s.f.Restore(restored)
		s.f.Remove("a/1")
		before, step := len(s.asked()), s.f.Step
		s.f.Step = func(ctx context.Context, what string) error {
			if s.mu.Lock(); len(s.steps) > before+10_000 {
				s.end(errEnded) // else it would not stop
			}
			s.mu.Unlock()
			return step(ctx, what)
		}
		e := register(s.l, keyspace.Exclusive, "a/5-1")
		e.Enqueued(s.f.Write("a/5-1"), nil)
		s.leaves(first, "a/5")
		ended = s.wait(e)
		<-time.After(10 * time.Second)
		require.Empty(s, ended, "what the list waits for never comes")
		require.Less(s, len(s.asked())-before, 200)
		require.Greater(s, len(s.asked())-before, maxAsked, "it goes on asking")
	})
}

// behind is a waiter that watches, since it has waited for a while for a holder of its own list.
func (s *scene) behind() (holder, e *waitlist.Part, ended <-chan error) {
	holder, e = s.enqueue("a/5"), s.enqueue("a/5-1")
	ended = s.wait(e)
	require.Empty(s, s.asked())
	<-time.After(s.WatchOwnAfter)
	synctest.Wait()
	require.Equal(s, []string{"Watch"}, s.asked())
	return holder, e, ended
}

// A holder of the list that somebody removes is told of that by those behind it, also if it was removed before
// they watched.
func TestWait_Guard(t *testing.T) {
	play(t, func(s *scene) {
		holder, _, ended := s.behind()
		s.f.Remove("a/5")
		synctest.Wait()
		require.Equal(s, []*waitlist.Part{holder}, s.lost)
		require.Empty(s, ended)
		holder.Removed(s.f.Write("x"), false, nil, nil)
		s.grants(ended)
	})
	play(t, func(s *scene) {
		holder := s.enqueue("a/5")
		_ = s.wait(s.enqueue("a/5-1"))
		<-time.After(s.WatchOwnAfter / 2)
		s.f.Remove("a/5")
		register(s.l, keyspace.Exclusive, "a/5-2") // which wakes the waiter: it does not begin anew
		<-time.After(s.WatchOwnAfter / 2)
		synctest.Wait()
		require.Equal(s, []string{"Watch", "pinned Range"}, s.asked())
		require.Equal(s, []*waitlist.Part{holder}, s.lost)
	})
}

// One that has watched others does so too, with a watch in place of its first.
func TestWait_GuardBehindOthers(t *testing.T) {
	play(t, func(s *scene) {
		reader := s.enqueue("a/r5")
		s.f.Write("a/r1")
		_ = s.wait(s.enqueue("a/5-1"))
		s.f.Remove("a/r1")
		synctest.Wait()
		require.Equal(s, []string{"Watch"}, s.asked())
		<-time.After(s.WatchOwnAfter)
		synctest.Wait()
		require.Len(s, s.f.Watches(), 1)
		s.f.Remove("a/r5")
		synctest.Wait()
		require.Equal(s, []*waitlist.Part{reader}, s.lost)
	})
}

// An entry that is handed the lock during the pause after an error has it at once.
func TestWait_HandOverInAPause(t *testing.T) {
	play(t, func(s *scene) {
		holder, _, ended := s.behind()
		s.f.BreakWatches()
		synctest.Wait()
		require.Empty(s, s.f.Watches())
		holder.Leave(false)
		s.grants(ended)
	})
}

// A watch that breaks as the lock is handed over is no outage any more.
func TestWait_HandOverAsTheWatchBreaks(t *testing.T) {
	play(t, func(s *scene) {
		var log logtest.Log
		s.Outages.Log = log.Logger()
		ch := make(chan clientv3.WatchResponse, 2)
		s.Client.UseWatcher(scripted{s.f, ch})
		ch <- fakeetcd.Response(3, clientv3.WatchResponse{Created: true})
		holder := s.enqueue("a/5")
		ended := s.wait(s.enqueue("a/5-1"))
		<-time.After(s.WatchOwnAfter)
		synctest.Wait()
		s.Lost = func([]*waitlist.Part) { holder.Leave(false) } // between the event and the look at the watch
		ch <- fakeetcd.Response(0, clientv3.WatchResponse{Canceled: true, Events: []*clientv3.Event{{Kv: &mvccpb.KeyValue{Key: []byte("a/6"), ModRevision: 4}}}})
		s.grants(ended)
		require.Empty(s, log.Lines())
	})
}

// scripted is a Watcher whose watch is what the test sends.
type scripted struct {
	*fakeetcd.Server
	ch chan clientv3.WatchResponse
}

func (s scripted) Watch(context.Context, string, ...clientv3.OpOption) clientv3.WatchChan {
	return s.ch
}

// One reading shows what is before all parts that still wait.
func TestWait_Survey(t *testing.T) {
	play(t, func(s *scene) {
		b := s.NewList("b")
		s.f.Write("a/1")
		at := s.f.Write("b/1")
		part := func(l *waitlist.List, key, before string) *waitlist.Part {
			e := register(l, keyspace.Exclusive, key)
			e.WakeWith(e)
			rev := s.f.Write(key)
			e.Enqueued(rev, &waitlist.Listing{At: rev, UpTo: rev, Shared: true, Keys: []queue.Entry{{Key: before, Rev: at}}, Size: 1})
			return e
		}
		parts := []*waitlist.Part{part(s.l, "a/5", "a/1"), part(b, "b/5", "b/1")}
		s.fail = rpctypes.ErrGRPCPermissionDenied
		s.Survey(s.Context(), parts...)
		require.Equal(s, []string{"Range"}, s.asked())
		s.f.Remove("a/1", "b/1")
		s.Survey(s.Context(), parts...)
		require.Equal(s, []string{"Range", "Range"}, s.asked())
		for _, p := range parts {
			require.True(s, p.Granted())
		}
		s.Survey(s.Context(), parts...)
		require.Len(s, s.asked(), 2, "nothing is left to ask")
	})
}

// That a watch is closed is no sign that its stream lives.
func TestWait_ClosingIsNoSign(t *testing.T) {
	play(t, func(s *scene) {
		s.Client.UseWatcher(silent{s.f})
		s.f.Write("a/1")
		s.f.Write("b/1")
		ctx, cancel := context.WithCancel(s.Context())
		_ = s.wait(s.enqueue("a/5"))
		b := s.NewList("b")
		e := register(b, keyspace.Exclusive, "b/5")
		e.Enqueued(s.f.Write("b/5"), nil)
		go func() { _ = s.Wait(ctx, e) }()
		synctest.Wait()
		require.False(s, s.Client.Probe(s.Context()), "the watches were opened")
		require.False(s, s.Client.Probe(s.Context()), "it is asked")
		cancel()
		e.Leave(false)
		<-time.After(2 * etcd.AttemptMin)
		require.True(s, s.Client.Probe(s.Context()))
	})
}

// silent does not answer whether it lives.
type silent struct{ *fakeetcd.Server }

func (silent) RequestProgress(context.Context) error { return nil }

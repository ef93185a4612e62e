package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/test/harness"
)

// recorder is a set of hooks that records its calls.
type recorder struct {
	mu     sync.Mutex
	events []event
	// on, if set, is called for each event while r.mu is not held.
	on func(event)
}

// event is one call of a hook.
type event struct {
	what  string
	about Acquisition
	ctx   context.Context
	took  time.Duration // Wait, Held or RoundTrip
	err   error         // Err or Cause
}

func (r *recorder) note(e event) {
	r.mu.Lock()
	r.events = append(r.events, e)
	r.mu.Unlock()
	if r.on != nil {
		r.on(e)
	}
}

func (r *recorder) hooks() *Hooks {
	return &Hooks{
		SessionUp: func(i SessionUpInfo) { r.note(event{what: "up", about: Acquisition{Session: i.Session}}) },
		Renewed: func(i RenewedInfo) {
			r.note(event{"renewed", Acquisition{Session: i.Session}, nil, i.RoundTrip, i.Err})
		},
		SessionEnded: func(i SessionEndedInfo) { r.note(event{"ended", Acquisition{Session: i.Session}, nil, 0, i.Cause}) },
		Enqueued:     func(ctx context.Context, i EnqueuedInfo) { r.note(event{"enqueued", i.Acquisition, ctx, 0, nil}) },
		Granted:      func(ctx context.Context, i GrantedInfo) { r.note(event{"granted", i.Acquisition, ctx, i.Wait, nil}) },
		Abandoned: func(ctx context.Context, i AbandonedInfo) {
			r.note(event{"abandoned", i.Acquisition, ctx, i.Wait, i.Err})
		},
		NoSession: func(ctx context.Context, i NoSessionInfo) {
			r.note(event{"no session", i.Acquisition, ctx, i.Wait, i.Err})
		},
		Released: func(ctx context.Context, i ReleasedInfo) {
			r.note(event{"released", i.Acquisition, ctx, i.Held, i.Err})
		},
		Lost: func(ctx context.Context, i LostInfo) { r.note(event{"lost", i.Acquisition, ctx, i.Held, i.Cause}) },
	}
}

// all returns the events so far; acquisitions returns those of acquisitions only.
func (r *recorder) all() []event {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.events)
}

func (r *recorder) acquisitions() []event {
	return slices.DeleteFunc(r.all(), func(e event) bool { return e.about.Name == "" })
}

// errWord returns a word for each error that the tests distinguish.
func errWord(err error) string {
	if err == nil {
		return ""
	}
	for _, s := range []struct {
		err  error
		word string
	}{
		{ErrSessionExpired, "expired"}, {ErrSessionClosed, "closed"}, {ErrLost, "lost"}, {ErrLocked, "locked"}, {ErrNotHeld, "cancelled"},
		{context.Canceled, "ctx"}, {context.DeadlineExceeded, "ctx"},
	} {
		if errors.Is(err, s.err) {
			return s.word
		}
	}
	return err.Error()
}

// words returns the events of one acquisition, or of a session, in short form.
func words(events []event) string {
	var out []string
	for _, e := range events {
		w := e.what
		if e.err != nil {
			w += ":" + errWord(e.err)
		}
		out = append(out, w)
	}
	return strings.Join(out, " ")
}

// stories returns the events of each acquisition in short form, sorted. An acquisition that
// was never enqueued has one event.
func (r *recorder) stories() []string {
	type entry struct {
		name  string
		token int64
	}
	enqueued, out := map[entry][]event{}, []string{}
	for _, e := range r.acquisitions() {
		if id := (entry{e.about.Name, e.about.Token}); id.token != 0 {
			enqueued[id] = append(enqueued[id], e)
		} else {
			out = append(out, words([]event{e}))
		}
	}
	for _, events := range enqueued {
		out = append(out, words(events))
	}
	return sorted(out)
}

// requireStories waits until the acquisitions have the wanted events, and requires that there
// are no others.
func (r *recorder) requireStories(t *testing.T, want ...string) {
	t.Helper()
	slices.Sort(want)
	assert.Eventually(t, func() bool { return slices.Equal(want, r.stories()) }, hang, tick)
	require.Equal(t, want, r.stories())
}

// whole matches a complete story.
var whole = regexp.MustCompile(`^((enqueued )?abandoned:[^ ].*|enqueued granted (released|lost)(:[^ ].*)?)$`)

type hookKey struct{}

// The hooks that an ordinary acquisition calls.
func TestHooks_LockAndUnlock(t *testing.T) {
	t.Parallel()
	for kind := range lockFuncs(nil, "a") {
		t.Run(kind, func(t *testing.T) {
			c, w := wiredClient(t, cluster)
			r := &recorder{}
			s := newTestSession(t, c, WithHooks(r.hooks()))
			s.etcd.NeverHedge() // the first Txn after the grant must be that of Unlock
			name := lockName(t)
			ctx := context.WithValue(testCtx(t), hookKey{}, kind)
			start := time.Now()
			h, err := lockFuncs(s, name)[kind](ctx)
			require.NoError(t, err)
			got := time.Now()
			reported(t, s)
			require.Equal(t, "enqueued granted", words(r.acquisitions()))
			var sent time.Time
			w.Once("Txn", func(ctx context.Context, send func(context.Context) error) error {
				sent = time.Now()
				return send(ctx)
			})
			require.NoError(t, h.Unlock(testCtx(t)))
			require.ErrorIs(t, h.Unlock(testCtx(t)), ErrNotHeld)
			reported(t, s)
			require.Equal(t, "enqueued granted released", words(r.acquisitions()))
			for i, e := range r.acquisitions() {
				a := e.about
				require.Equal(t, kind, e.ctx.Value(hookKey{}), "the hook must get the ctx of the call")
				require.Same(t, s, a.Session)
				require.Equal(t, name, a.Name)
				require.Equal(t, strings.HasSuffix(kind, "read"), a.Read)
				require.Equal(t, h.Token(), a.Token)
				require.Equal(t, h.Key(), a.Key)
				require.False(t, a.Asked.Before(start))
				require.False(t, a.Enqueued.Before(a.Asked))
				if i == 0 {
					require.Zero(t, a.Granted)
					continue
				}
				require.False(t, a.Granted.Before(a.Enqueued))
				require.False(t, a.Granted.After(got))
				if e.what == "granted" {
					require.Equal(t, a.Granted.Sub(a.Asked), e.took)
				} else {
					require.False(t, a.Granted.Add(e.took).Before(got))
					require.False(t, a.Granted.Add(e.took).After(sent), "the round trip of the release must not count")
				}
			}
		})
	}
}

// Each end of a wait or a hold is reported exactly once.
func TestHooks_Stories(t *testing.T) {
	t.Parallel()
	for what, tc := range map[string]struct {
		want []string
		play func(t *testing.T, s *Session, r *recorder, name string)
	}{
		"Try on a taken lock": {[]string{"enqueued granted released", "abandoned:locked"}, func(t *testing.T, s *Session, r *recorder, name string) {
			h := mustLock(t, s, name)
			_, err := NewMutex(s, name).TryLock(testCtx(t))
			require.ErrorIs(t, err, ErrLocked)
			require.NoError(t, h.Unlock(testCtx(t)))
		}},
		"ctx ends while waiting": {[]string{"enqueued granted released", "enqueued abandoned:ctx"}, func(t *testing.T, s *Session, r *recorder, name string) {
			h := mustLock(t, s, name)
			ctx, cancel := context.WithCancel(testCtx(t))
			ended := make(chan error, 1)
			go func() {
				_, err := NewMutex(s, name).Lock(ctx)
				ended <- err
			}()
			require.Eventually(t, func() bool { // the hold's own story begins like that too
				return slices.Contains(r.stories(), "enqueued") && slices.Contains(r.stories(), "enqueued granted")
			}, hang, tick)
			cancel()
			require.ErrorIs(t, <-ended, context.Canceled)
			require.NoError(t, h.Unlock(testCtx(t)))
		}},
		"tickets: claimed, cancelled when granted, cancelled before": {[]string{"enqueued granted released", "enqueued granted released", "enqueued abandoned:cancelled"}, func(t *testing.T, s *Session, r *recorder, name string) {
			var tickets []*Ticket
			for range 3 {
				tk, err := NewMutex(s, name).Enqueue(testCtx(t))
				require.NoError(t, err)
				tickets = append(tickets, tk)
			}
			h, err := tickets[0].Wait(testCtx(t))
			require.NoError(t, err)
			require.NoError(t, tickets[0].Cancel(testCtx(t)))
			require.NoError(t, tickets[2].Cancel(testCtx(t)))
			require.NoError(t, h.Unlock(testCtx(t)))
			<-tickets[1].Done()
			require.NoError(t, tickets[1].Cancel(testCtx(t)))
			require.NoError(t, tickets[1].Cancel(testCtx(t)))
		}},
		"Do, and Do in it": {[]string{"enqueued granted released"}, func(t *testing.T, s *Session, r *recorder, name string) {
			m := NewMutex(s, name)
			require.NoError(t, m.Do(testCtx(t), func(ctx context.Context, h *Held) error {
				_, err := m.Lock(ctx)
				require.ErrorIs(t, err, ErrWouldDeadlock)
				return m.Do(ctx, func(context.Context, *Held) error { return nil })
			}))
		}},
		"downgraded": {[]string{"enqueued granted released"}, func(t *testing.T, s *Session, r *recorder, name string) {
			h, err := NewRWMutex(s, name).Lock(testCtx(t))
			require.NoError(t, err)
			require.NoError(t, h.Downgrade(testCtx(t)))
			require.NoError(t, h.Unlock(testCtx(t)))
		}},
		"the lease is revoked, and no call notices it": {[]string{"enqueued granted lost:expired", "enqueued granted lost:expired", "enqueued granted lost:expired"}, func(t *testing.T, s *Session, r *recorder, name string) {
			for i := range 3 {
				mustLock(t, s, fmt.Sprint(name, i))
			}
			revoke(t, s)
			require.ErrorIs(t, s.Refresh(testCtx(t)), ErrSessionExpired)
		}},
		"the session expires, and all calls notice it": {[]string{"enqueued granted lost:expired", "enqueued granted lost:expired", "enqueued abandoned:expired"}, func(t *testing.T, s *Session, r *recorder, name string) {
			h, h2 := mustLock(t, s, name), mustLock(t, s, name+"2")
			done := h.Done()
			tk, err := NewMutex(s, name).Enqueue(testCtx(t))
			require.NoError(t, err)
			s.lease.End(ErrSessionExpired, "test")
			<-done
			_, err = tk.Wait(testCtx(t))
			require.ErrorIs(t, err, ErrSessionExpired)
			for _, h := range []*Held{h, h2} {
				require.ErrorIs(t, h.Err(), ErrSessionExpired)
				require.ErrorIs(t, h.Unlock(testCtx(t)), ErrSessionExpired)
			}
		}},
		"closed": {[]string{"enqueued granted lost:closed", "enqueued granted lost:closed", "enqueued abandoned:closed"}, func(t *testing.T, s *Session, r *recorder, name string) {
			mustLock(t, s, name+"2").Done()
			mustLock(t, s, name)
			_, err := NewMutex(s, name).Enqueue(testCtx(t))
			require.NoError(t, err)
			require.NoError(t, s.Close())
			_, err = NewMutex(s, name).Lock(testCtx(t))
			require.ErrorIs(t, err, ErrSessionClosed) // no other hook is called for it
		}},
		"orphaned": {[]string{"enqueued granted lost:closed"}, func(t *testing.T, s *Session, r *recorder, name string) {
			mustLock(t, s, name)
			s.Orphan()
		}},
		"the entries are deleted: one watched, one unlocked, one checked": {[]string{"enqueued granted lost:lost", "enqueued granted lost:lost", "enqueued granted lost:lost"}, func(t *testing.T, s *Session, r *recorder, name string) {
			s.etcd.NeverHedge() // a copy that has no answer may be what has removed one
			var holds []*Held
			for i := range 3 {
				holds = append(holds, mustLock(t, s, fmt.Sprint(name, i)))
			}
			done := holds[0].Done()
			_, err := s.Client().Delete(testCtx(t), name, clientv3.WithPrefix())
			require.NoError(t, err)
			<-done
			require.ErrorIs(t, holds[1].Unlock(testCtx(t)), ErrLost)
			require.ErrorIs(t, holds[2].Check(testCtx(t)), ErrLost)
			require.ErrorIs(t, holds[2].Unlock(testCtx(t)), ErrLost)
		}},
		"a waiter's entry is deleted": {[]string{"enqueued granted released", "enqueued abandoned:lost"}, func(t *testing.T, s *Session, r *recorder, name string) {
			h := mustLock(t, s, name)
			tk, err := NewMutex(s, name).Enqueue(testCtx(t))
			require.NoError(t, err)
			_, err = s.Client().Delete(testCtx(t), exclusiveBase(name, s.Lease())+"-1")
			require.NoError(t, err)
			_, err = tk.Wait(testCtx(t))
			require.ErrorIs(t, err, ErrLost)
			require.NoError(t, h.Unlock(testCtx(t)))
		}},
		"Unlock with a ctx that has ended": {[]string{"enqueued granted released:ctx"}, func(t *testing.T, s *Session, r *recorder, name string) {
			h := mustLock(t, s, name)
			ctx, cancel := context.WithCancel(testCtx(t))
			cancel()
			require.ErrorIs(t, h.Unlock(ctx), context.Canceled)
		}},
		"nothing could begin": {[]string{}, func(t *testing.T, s *Session, r *recorder, name string) {
			ctx, cancel := context.WithCancel(testCtx(t))
			cancel()
			_, err := NewMutex(s, name).Lock(ctx)
			require.ErrorIs(t, err, context.Canceled)
			_, err = NewMutex(s, name+"/").Lock(testCtx(t))
			require.ErrorIs(t, err, ErrInvalidName)
		}},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			r := &recorder{}
			s, err := NewSession(testCtx(t), cluster.Client(t), WithTTL(time.Minute), WithHooks(r.hooks()))
			require.NoError(t, err)
			tc.play(t, s, r, lockName(t))
			r.requireStories(t, tc.want...)
			_ = s.Close()
			require.Equal(t, sorted(tc.want), r.stories(), "Close must not add events")
		})
	}
}

// reported waits until the hooks and the log have been told all that has happened in the session.
func reported(t testing.TB, s *Session) {
	t.Helper()
	select {
	case <-s.config.outbox.Delivered():
	case <-testCtx(t).Done():
		t.Fatal("a hook or the log blocks")
	}
}

func mustLock(t testing.TB, s *Session, name string) *Held {
	t.Helper()
	return harness.Take(t, NewMutex(s, name).Lock)
}

func revoke(t testing.TB, s *Session) {
	t.Helper()
	_, err := cluster.Client(t).Revoke(testCtx(t), s.Lease())
	require.NoError(t, err)
}

// Asked is when the call began, also of a call that had to wait for a session.
func TestHooks_AskedBeforeTheSession(t *testing.T) {
	t.Parallel()
	tap := etcdtest.NewTap()
	granted := make(chan GrantedInfo, 1)
	locks := New(cluster.Client(t, tap), WithHooks(&Hooks{Granted: func(_ context.Context, i GrantedInfo) { granted <- i }}))
	t.Cleanup(func() { _ = locks.Close() })
	var began time.Time
	tap.Next("LeaseGrant", func(ctx context.Context, call *etcdtest.Call) error {
		began = time.Now()
		return call.Send(ctx)
	})
	h, err := locks.Mutex(lockName(t)).Lock(testCtx(t))
	require.NoError(t, err)
	require.NoError(t, h.Unlock(testCtx(t)))
	i := <-granted
	require.False(t, i.Asked.After(began), "the call began before it asked for a lease")
	require.Equal(t, i.Granted.Sub(i.Asked), i.Wait)
}

// The wait of an Adopt begins with the call, and not when etcd has shown the entry.
func TestHooks_AskedBeforeAdoptReads(t *testing.T) {
	toAdopt(t, func(t *testing.T, f *fakeEtcd, s *Session) {
		r := &recorder{}
		s.config.hooks = []*Hooks{r.hooks()}
		f.Step = func(ctx context.Context, what string) error {
			if what == "Range" {
				return etcd.Sleep(ctx, 100*time.Millisecond)
			}
			return nil
		}
		began := time.Now()
		h, err := s.Adopt(t.Context(), "a")
		require.NoError(t, err)
		synctest.Wait()
		granted := r.events[1]
		require.Equal(t, "granted", granted.what)
		require.Equal(t, began, granted.about.Asked)
		require.Equal(t, 200*time.Millisecond, granted.took, "two reads")
		require.NoError(t, h.Unlock(t.Context()))
	})
}

// Each call of a Client that gets no session is reported, with why. What could not even begin is not.
func TestHooks_NoSession(t *testing.T) {
	t.Parallel()
	denied := rpctypes.ErrGRPCPermissionDenied
	for what, answer := range map[string]error{"away": etcdtest.ErrTransport, "refused": denied} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			tap, r, name := etcdtest.NewTap(), &recorder{}, lockName(t)
			locks := New(cluster.Client(t, tap), WithHooks(r.hooks()))
			tap.Every("LeaseGrant", func(context.Context, *etcdtest.Call) error { return answer })
			ended, cancel := context.WithCancel(testCtx(t))
			cancel()
			require.Error(t, second(locks.Mutex(name).Lock(ended)))
			require.Error(t, second(locks.Mutex("").Lock(testCtx(t))))

			type told struct{ read, elector bool }
			var want []told
			for i, call := range []func(ctx context.Context) error{
				func(ctx context.Context) error { return second(locks.Mutex(name).Lock(ctx)) },
				func(ctx context.Context) error { return second(locks.Mutex(name).TryLock(ctx)) },
				func(ctx context.Context) error { return second(locks.RWMutex(name).Enqueue(ctx)) },
				func(ctx context.Context) error { return second(locks.RWMutex(name).RLock(ctx)) },
				func(ctx context.Context) error { return locks.Multi(Read(name)).Do(ctx, noFn) },
				func(ctx context.Context) error { return locks.Elector(name).Run(ctx, noFn) },
			} {
				ctx, cancel := context.WithTimeout(testCtx(t), 50*time.Millisecond)
				err := call(ctx)
				require.Error(t, err)
				cancel()
				want = append(want, told{i == 3 || i == 4, i == 5})
				require.Eventually(t, func() bool { return len(r.acquisitions()) == len(want) }, hang, tick)
				e := r.acquisitions()[i]
				require.Equal(t, "no session", e.what)
				require.ErrorContains(t, err, e.err.Error())
				require.Equal(t, errWord(err) == "ctx", errWord(e.err) == "ctx")
				require.Equal(t, want[i], told{e.about.Read, e.about.Elector})
				require.Equal(t, name, e.about.Name)
				require.Equal(t, ctx, e.ctx)
				require.Nil(t, e.about.Session)
				require.False(t, e.about.Asked.IsZero())
				require.Positive(t, e.took)
			}
			require.NoError(t, locks.Close())
			require.ErrorIs(t, second(locks.Mutex(name).Lock(testCtx(t))), ErrSessionClosed)
			require.Len(t, r.all(), len(want))
		})
	}
}

// A call that waits for a session is reported, also if its ctx ends as the session comes. Ready calls no such session lost.
func TestHooks_CtxEndsAsTheSessionComes(t *testing.T) {
	t.Parallel()
	r := &recorder{}
	call := func(f func(context.Context, *Client) error) error {
		tap := etcdtest.NewTap()
		locks := New(cluster.Client(t, tap), WithHooks(r.hooks()))
		ctx, cancel := context.WithCancel(testCtx(t))
		tap.Next("LeaseGrant", func(ctx context.Context, call *etcdtest.Call) error {
			defer cancel()
			return call.Send(ctx)
		})
		err := f(ctx, locks)
		require.ErrorIs(t, err, context.Canceled)
		require.NoError(t, locks.Close())
		return err
	}
	_ = call(func(ctx context.Context, locks *Client) error { return second(locks.Mutex(lockName(t)).Lock(ctx)) })
	err := call(func(ctx context.Context, locks *Client) error { return locks.Ready(ctx) })
	require.ErrorContains(t, err, "not ready, no session in time: ")
	all := r.acquisitions()
	require.Len(t, all, 1)
	require.Equal(t, "no session", all[0].what)
	require.ErrorIs(t, all[0].err, context.Canceled)
}

func second[T any](_ T, err error) error { return err }

func noFn(context.Context, *Held) error { return nil }

// A hook may use the session from SessionUp on.
func TestHooks_UseTheSessionAtOnce(t *testing.T) {
	t.Parallel()
	used := make(chan error, 1)
	var locks *Client
	locks = New(cluster.Client(t), WithHooks(&Hooks{SessionUp: func(i SessionUpInfo) {
		ctx, cancel := context.WithTimeout(context.Background(), hang)
		defer cancel()
		used <- errors.Join(i.Session.Refresh(ctx), NewMutex(i.Session, "up").Do(ctx, func(ctx context.Context, _ *Held) error {
			return locks.Mutex("up").Do(ctx, func(context.Context, *Held) error { return nil })
		}))
	}}))
	t.Cleanup(func() { _ = locks.Close() })
	require.NoError(t, locks.Ready(testCtx(t)))
	require.NoError(t, <-used)
}

// A session reports its beginning, its renewals and its end. When Close has returned, all
// hooks have been called.
func TestHooks_Session(t *testing.T) {
	t.Parallel()
	r := &recorder{}
	c, w := wiredClient(t, cluster)
	w.LoseReply("LeaseGrant")
	s, err := NewSession(testCtx(t), c, WithHooks(r.hooks()), WithTTL(time.Minute))
	require.NoError(t, err)
	s.etcd.NeverHedge() // nor repeat a renewal that takes a second
	reported(t, s)
	require.Equal(t, "up", words(r.all()))
	require.NoError(t, s.Refresh(testCtx(t)))
	reported(t, s)
	require.Equal(t, "up renewed", words(r.all()))
	require.Eventually(t, func() bool { return !s.lease.Shared() }, hang, tick, "a stream serves one renewal until it is known to lead to etcd itself")
	w.OnRecv(func(string, any) (bool, error) { // the stream that is there breaks
		w.OnRecv(nil)
		return false, errLostReply
	})
	w.OnStream(func(context.Context, string) error { // and the next one is not opened
		w.OnStream(nil)
		return errLostReply
	})
	require.NoError(t, s.Refresh(testCtx(t)))
	reported(t, s)
	events := r.all()
	require.Len(t, events, 4)
	require.ErrorContains(t, events[2].err, "transport is closing")
	require.NoError(t, events[3].err)
	for _, e := range events {
		require.Same(t, s, e.about.Session)
		require.Equal(t, e.what == "renewed", e.took > 0)
	}
	adopted, err := NewSession(testCtx(t), c, WithHooks(r.hooks()), WithLease(s.Lease()))
	require.NoError(t, err)
	reported(t, adopted)
	require.NoError(t, s.Close())
	require.ErrorIs(t, adopted.Refresh(testCtx(t)), ErrSessionExpired)
	require.NoError(t, adopted.Close())
	require.Equal(t, "up ended:closed ended:expired", words(r.all()[4:]), "neither an end nor an adoption may count as a renewal")
}

// A session may end, and a hold be lost, after the grant and before the call has returned. The hooks are told of the
// loss after the grant.
func TestHooks_LostAtTheGrant(t *testing.T) {
	for want, lose := range map[string]func(f *fakeEtcd, s *Session, h *Held){
		"enqueued granted lost:expired": func(_ *fakeEtcd, s *Session, _ *Held) {
			s.lease.End(ErrSessionExpired, "test")
			s.sessionEnded("test", nil)
		},
		"enqueued granted lost:lost": func(f *fakeEtcd, s *Session, h *Held) {
			f.Remove(h.Key())
			_ = s.checkEntries(context.Background()) // finds that the key is gone
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := newFakeEtcd()
			s := f.session(5)
			r := &recorder{}
			s.config.hooks = []*Hooks{r.hooks()}
			l := newLock(s, "a", writing)
			h, err := l.start(t.Context(), time.Now(), nil)
			require.NoError(t, err)
			require.NoError(t, h.join(t.Context()))
			require.NoError(t, h.wait(t.Context()))
			lose(f, s, h)
			synctest.Wait()
			_, err = h.conclude(nil)
			require.NoError(t, err)
			synctest.Wait()
			require.ErrorIs(t, h.Err(), ErrLost)
			synctest.Wait()
			require.Equal(t, []string{want}, r.stories())
			s.lease.End(ErrSessionClosed, "test")
			s.lease.NotFound()
		})
	}
}

// A session may end between the last look at it and the grant, so that the end of the session finds no hold: the grant
// itself finds the loss then, and nobody has to look at the hold.
func TestHooks_EndedBeforeTheGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeEtcd().session(5)
		r := &recorder{}
		s.config.hooks = []*Hooks{r.hooks()}
		l := newLock(s, "a", writing)
		h, err := l.start(t.Context(), time.Now(), nil)
		require.NoError(t, err)
		require.NoError(t, h.join(t.Context()))
		s.lease.End(ErrSessionExpired, "test")
		s.sessionEnded("test", nil)
		require.True(t, h.becomeHeld())
		synctest.Wait()
		require.Equal(t, []string{"enqueued granted lost:expired"}, r.stories())
		s.lease.NotFound()
	})
}

// All hooks of all sets are called in order. Hooks that are nil are skipped.
func TestHooks_Several(t *testing.T) {
	t.Parallel()
	_, err := NewSession(testCtx(t), cluster.Client(t), WithHooks(nil))
	require.ErrorContains(t, err, "hooks are nil: leave WithHooks out")
	var order []string
	a, b := &recorder{on: func(e event) { order = append(order, "a "+e.what) }}, &recorder{on: func(e event) { order = append(order, "b "+e.what) }}
	s, err := NewSession(testCtx(t), cluster.Client(t), WithHooks(a.hooks(), &Hooks{}), WithHooks(b.hooks()), WithTTL(time.Minute))
	require.NoError(t, err)
	s.etcd.NeverHedge() // nor repeat a renewal that takes a second
	h := mustLock(t, s, lockName(t))
	_, err = NewMutex(s, h.label()).TryLock(testCtx(t))
	require.ErrorIs(t, err, ErrLocked)
	require.NoError(t, h.Unlock(testCtx(t)))
	mustLock(t, s, h.label())
	require.NoError(t, s.Refresh(testCtx(t)))
	require.NoError(t, s.Close())
	var want []string
	for _, what := range []string{"up", "enqueued", "granted", "abandoned", "released", "enqueued", "granted", "renewed", "ended", "lost"} {
		want = append(want, "a "+what, "b "+what)
	}
	require.Equal(t, want, order)
}

// Each hook may use its session and its locks, also wait for a lock.
func TestHooks_UseTheirSession(t *testing.T) {
	t.Parallel()
	called := map[string]int{} // of the session's acquisitions but those of the hooks
	r := &recorder{}
	name := lockName(t)
	r.on = func(e event) {
		s := e.about.Session
		if e.about.Name == name+"/hook" {
			return
		}
		called[e.what]++
		_, _, _ = s.Deadline(), s.Err(), s.TTL()
		h, err := NewMutex(s, name+"/hook").Lock(testCtx(t))
		if ended := e.what == "ended" || e.what == "lost"; err == nil {
			_ = h.Unlock(testCtx(t))
		} else if !ended && !errors.Is(err, ErrSessionExpired) {
			t.Errorf("%s: %v", e.what, err)
		}
	}
	s, err := NewSession(testCtx(t), cluster.Client(t), WithTTL(time.Minute), WithHooks(r.hooks()))
	require.NoError(t, err)
	h := mustLock(t, s, name)
	_, err = NewMutex(s, name).TryLock(testCtx(t))
	require.ErrorIs(t, err, ErrLocked)
	require.NoError(t, h.Unlock(testCtx(t)))
	mustLock(t, s, name)
	require.NoError(t, s.Refresh(testCtx(t)))
	reported(t, s)
	s.lease.End(ErrSessionExpired, "test")
	require.NoError(t, s.Close())
	require.GreaterOrEqual(t, called["renewed"], 1)
	delete(called, "renewed")
	require.Equal(t, map[string]int{"up": 1, "ended": 1, "enqueued": 2, "granted": 2, "abandoned": 1, "released": 1, "lost": 1}, called)
}

// Many acquisitions of all kinds run until the lease is revoked. Each has exactly one story, and
// it is complete.
func TestHooks_ManyAtOnce(t *testing.T) {
	t.Parallel()
	for range 3 {
		r := &recorder{}
		s, err := NewSession(testCtx(t), cluster.Client(t), WithTTL(time.Minute), WithHooks(r.hooks()))
		require.NoError(t, err)
		name := lockName(t)
		var begun, got atomic.Int64
		var wg sync.WaitGroup
		for i := range 12 {
			wg.Go(func() {
				for s.Err() == nil {
					ctx, cancel := context.WithCancel(testCtx(t))
					if rand.N(2) == 0 {
						ctx, cancel = context.WithTimeout(ctx, rand.N(50*time.Millisecond))
					}
					m := NewMutex(s, fmt.Sprint(name, i%3))
					var h *Held
					var err error
					switch rand.N(3) {
					case 0:
						h, err = m.Lock(ctx)
					case 1:
						h, err = m.TryLock(ctx)
					case 2:
						var tk *Ticket
						if tk, err = m.Enqueue(ctx); err == nil {
							if rand.N(2) == 0 {
								h, err = tk.Wait(ctx)
							}
							_ = tk.Cancel(ctx)
						}
					}
					begun.Add(1)
					if err == nil && h != nil {
						got.Add(1)
						if rand.N(2) == 0 {
							h.Done()
						}
						go func() { _ = h.Unlock(ctx) }()
						_ = h.Unlock(testCtx(t))
					}
					cancel()
				}
			})
		}
		require.Eventually(t, func() bool { return got.Load() > 20 }, hang, tick)
		revoke(t, s)
		require.ErrorIs(t, s.Refresh(testCtx(t)), ErrSessionExpired)
		wg.Wait()
		require.NoError(t, s.Close())
		stories := r.stories()
		for _, story := range stories {
			require.Regexp(t, whole, story)
		}
		require.LessOrEqual(t, got.Load(), int64(len(stories)))
		require.LessOrEqual(t, int64(len(stories)), begun.Load())
		type place struct { // entries of different names may have one revision
			name  string
			token int64
		}
		seen := map[place]bool{}
		for _, e := range r.acquisitions() {
			if e.what == "enqueued" {
				at := place{e.about.Name, e.about.Token}
				require.False(t, seen[at])
				seen[at] = true
			}
			require.Equal(t, e.about.Token != 0, !e.about.Enqueued.IsZero())
		}
	}
}

// Without hooks, no code that would call them allocates.
func TestHooks_UnsetCostNothing(t *testing.T) {
	s := newFakeEtcd().session(5)
	h := playedHold(s)
	ctx := t.Context()
	require.Zero(t, testing.AllocsPerRun(1000, func() { h.playHooks(ctx) }))
	s.config.hooks = []*Hooks{{}}
	require.NotZero(t, testing.AllocsPerRun(1000, func() { h.playHooks(ctx) }), "with hooks the same code must allocate, or the test measures nothing")
}

var mutexNamed = newLock(nil, "a", writing)

func playedHold(s *Session) *Held {
	h := newAcquisition(context.Background(), s, mutexNamed, time.Now())
	h.rev = 7
	h.parts()[0].Rekey("a/5", "")
	return h
}

// playHooks is all work for hooks during a Lock and its Unlock.
func (h *Held) playHooks(ctx context.Context) {
	h.report = h.s.newReport(ctx, mutexNamed, time.Now())
	h.notifyEnqueued()
	h.notifyGranted()
	h.mu.Lock()
	h.unlockAndNotify()
	h.notifyOver(time.Now(), nil, false)
	h.notifyAbandoned(time.Now(), nil)
	h.s.notifyRenewed(0, nil)
}

// BenchmarkHooks measures what hooks add to a Lock and its Unlock.
func BenchmarkHooks(b *testing.B) {
	count := 0
	for name, hooks := range map[string][]*Hooks{
		"unset":  nil,
		"no-ops": {{}},
		"two sets": {
			{Granted: func(context.Context, GrantedInfo) { count++ }, Released: func(context.Context, ReleasedInfo) { count++ }},
			{Enqueued: func(context.Context, EnqueuedInfo) { count++ }, Granted: func(context.Context, GrantedInfo) { count++ }, Released: func(context.Context, ReleasedInfo) { count++ }},
		},
	} {
		b.Run(name, func(b *testing.B) {
			s := newFakeEtcd().session(5)
			s.config.hooks = hooks
			h := playedHold(s)
			b.ReportAllocs()
			for b.Loop() {
				h.playHooks(b.Context())
			}
		})
	}
}

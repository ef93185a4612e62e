package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"

	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/etcd"
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

// Etcd denies the rights on a lock that is held, and so its watch. Who gives up the wait for another lock is not told of that.
func TestErrors_RightsOnAnotherLock(t *testing.T) {
	t.Parallel()
	_, as := authCluster(t)
	root, worker := as("root"), as("worker")
	_, err := root.RoleGrantPermission(testCtx(t), "worker", "a/1/", clientv3.GetPrefixRangeEnd("a/1/"), clientv3.PermissionType(clientv3.PermReadWrite))
	require.NoError(t, err)
	var log logtest.Log
	locks := newTestClient(t, worker, WithTTL(time.Minute), WithLogger(log.Logger()))
	mustLock(t, newTestSession(t, worker), "a/1")
	h, err := locks.Mutex("a/2").Lock(testCtx(t))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(testCtx(t))
	defer cancel()
	left := async(func() error { _, err := locks.Mutex("a/1").Lock(ctx); return err })
	queueIs(t, worker, "a/1", 2)
	_, err = root.RoleRevokePermission(testCtx(t), "worker", "a/", clientv3.GetPrefixRangeEnd("a/"))
	require.NoError(t, err)
	h.Context() // it would be watched from now on
	require.Eventually(t, func() bool { return slices.Contains(log.Messages(), "WARN etcd refuses this client") }, hang, tick)
	cancel()
	err = result(t, left)
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, rpctypes.ErrPermissionDenied)
	require.NotContains(t, err.Error(), "etcd does not answer")
}

// A test of a caller's may make a WaitError, which has no text then.
func TestWaitError_OfACaller(t *testing.T) {
	require.NotPanics(t, func() { _ = (&WaitError{Ahead: 1, Holder: "a"}).Error() })
}

// The cause of a ctx's end is the caller's: an errgroup puts there whatever another goroutine has failed with, and the ctx of a Do
// says that its lock was lost. Nothing of the package takes such a cause for the answer to its own request.

// endsSoon requires that a call whose ctx has ended returns.
func endsSoon(t *testing.T, done <-chan error) error {
	t.Helper()
	select {
	case err := <-done:
		return err
	case <-time.After(hang):
		t.Fatal("the call has not returned, and its ctx has ended")
		return nil
	}
}

// An Elector that campaigns under the Do of another lock, which is lost.
func TestCause_ElectorUnderALostDo(t *testing.T) {
	c := cluster.Client(t)
	locks := newTestClient(t, c)
	outer, inner := lockName(t), lockName(t)+"-inner"
	mustLock(t, newTestSession(t, c), inner)
	held := make(chan *Held, 1)
	done := async(func() error {
		return locks.Mutex(outer).Do(testCtx(t), func(ctx context.Context, h *Held) error {
			held <- h
			return locks.Elector(inner).Run(ctx, func(context.Context, *Held) error { return nil })
		})
	})
	h := <-held
	queueIs(t, c, inner, 2)
	_, err := c.Delete(testCtx(t), h.Key())
	require.NoError(t, err)
	require.ErrorIs(t, endsSoon(t, done), ErrLost)
}

// An Elector that leads within the lead of another one: their session is lost.
func TestCause_ElectorWithinAnElector(t *testing.T) {
	c := cluster.Client(t)
	locks := newTestClient(t, c)
	outer, inner := lockName(t), lockName(t)+"-inner"
	terms := make(chan *Held, 10)
	returned := make(chan error, 10)
	ctx, cancel := context.WithCancel(testCtx(t))
	defer cancel()
	go func() {
		_ = locks.Elector(outer).Run(ctx, func(ctx context.Context, _ *Held) error {
			err := locks.Elector(inner).Run(ctx, func(ctx context.Context, term *Held) error {
				terms <- term
				<-ctx.Done()
				return ctx.Err()
			})
			returned <- err
			return err
		})
	}()
	term := <-terms
	_, err := c.Revoke(testCtx(t), term.Session().Lease())
	require.NoError(t, err)
	_ = endsSoon(t, returned)
}

// An Elector in an errgroup beside a Do whose lock is lost.
func TestCause_ElectorInAnErrgroup(t *testing.T) {
	c := cluster.Client(t)
	locks := newTestClient(t, c)
	name, other := lockName(t), lockName(t)+"-other"
	mustLock(t, newTestSession(t, c), name)
	g, ctx := errgroup.WithContext(testCtx(t))
	g.Go(func() error {
		return locks.Elector(name).Run(ctx, func(context.Context, *Held) error { return nil })
	})
	held := make(chan *Held, 1)
	g.Go(func() error {
		return locks.Mutex(other).Do(ctx, func(ctx context.Context, h *Held) error {
			held <- h
			<-ctx.Done()
			return ctx.Err()
		})
	})
	h := <-held
	queueIs(t, c, name, 2)
	_, err := c.Delete(testCtx(t), h.Key())
	require.NoError(t, err)
	require.ErrorIs(t, endsSoon(t, async(g.Wait)), ErrLost)
}

// A reading under a ctx that ended because a watch of the caller's was compacted.
func TestCause_ReadsInAnErrgroupOfACompactedWatch(t *testing.T) {
	c := cluster.Client(t)
	locks := newTestClient(t, c)
	name := lockName(t)
	h := mustLock(t, newTestSession(t, c), name)
	tk, err := locks.Mutex(name).Enqueue(testCtx(t))
	require.NoError(t, err)
	for what, call := range map[string]func(ctx context.Context) error{
		"check":   h.Check,
		"ahead":   func(ctx context.Context) error { _, err := tk.Ahead(ctx); return err },
		"inspect": func(ctx context.Context) error { _, err := locks.Inspect(ctx, name); return err },
		"leader":  func(ctx context.Context) error { _, err := locks.Elector(name).Leader(ctx); return err },
		"setvalue": func(ctx context.Context) error {
			return h.SetValue(ctx, "x")
		},
		"watch": func(ctx context.Context) (err error) {
			for _, err = range locks.Watch(ctx, name) {
			}
			return err
		},
	} {
		t.Run(what, func(t *testing.T) {
			g, ctx := errgroup.WithContext(testCtx(t))
			g.Go(func() error { return rpctypes.ErrCompacted }) // what WatchResponse.Err says
			<-ctx.Done()
			require.ErrorIs(t, endsSoon(t, async(func() error { return call(ctx) })), context.Canceled)
		})
	}
}

// A Lock is given up since somebody else's lease has gone. The session of the Lock lives.
func TestCause_LockGivenUpForAnothersLease(t *testing.T) {
	onStage(t, func(st *stage) {
		h := st.lock(NewMutex(st.s, "b").Lock)
		goOn := st.holdBack()
		ctx, cancel := context.WithCancelCause(st.Context())
		done := async(func() error { _, err := st.mutex().Lock(ctx); return err })
		synctest.Wait()
		cancel(rpctypes.ErrLeaseNotFound)
		err := <-done
		goOn()
		require.ErrorIs(st, err, context.Canceled)
		require.NoError(st, st.s.Err(), "the session lives")
		require.NoError(st, h.Err(), "the hold is there")
	})
}

// The same with a real etcd, a Client and an errgroup: a goroutine's own lease is gone, and all locks of the process are lost.
func TestCause_LockGivenUpForAnothersLease_Etcd(t *testing.T) {
	c := cluster.Client(t)
	wired, w := wiredClient(t, cluster)
	locks := newTestClient(t, wired)
	h, err := locks.Mutex(lockName(t) + "-held").Lock(testCtx(t))
	require.NoError(t, err)
	sent := make(chan struct{}, 10)
	w.OnUnary(func(ctx context.Context, method string, _ any, send func(context.Context) error) error {
		if method == "Txn" {
			sent <- struct{}{}
			select { // a member that is slow
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(200 * time.Millisecond):
			}
		}
		return send(ctx)
	})
	g, ctx := errgroup.WithContext(testCtx(t))
	g.Go(func() error {
		<-sent
		_, err := c.Put(ctx, lockName(t)+".data", "", clientv3.WithLease(12345)) // which expired
		return err
	})
	g.Go(func() error {
		_, err := locks.Mutex(lockName(t)).Lock(ctx)
		return err
	})
	require.ErrorIs(t, g.Wait(), rpctypes.ErrLeaseNotFound)
	<-time.After(100 * time.Millisecond)
	require.NoError(t, h.Session().Err(), "the session lives")
	require.NoError(t, h.Err(), "the hold is there")
}

// An inner hold is unlocked with the ctx of an outer Do, which was lost. The inner hold was not.
func TestCause_UnlockUnderALostDo(t *testing.T) {
	onStage(t, func(st *stage) {
		var log logtest.Log
		hooks := &recorder{}
		st.s.config.hooks, st.s.config.log = []*Hooks{hooks.hooks()}, log.Logger()
		var inner error
		err := NewMutex(st.s, "outer").Do(st.Context(), func(ctx context.Context, outer *Held) error {
			h, err := st.mutex().Lock(ctx)
			require.NoError(st, err)
			st.f.Remove(outer.Key())
			<-ctx.Done()
			require.NoError(st, h.Err(), "the inner hold lasts")
			inner = h.Unlock(ctx)
			return nil
		})
		synctest.Wait()
		require.ErrorIs(st, err, ErrLost)
		require.ErrorIs(st, inner, context.Canceled)
		for _, line := range log.Lines() {
			if strings.Contains(line, "lock lost") && strings.Contains(line, "lock=a ") {
				t.Errorf("the log says: %s", line)
			}
		}
		for _, e := range hooks.events {
			if e.about.Name == "a" && e.what == "lost" {
				t.Errorf("a hook is told that %s is lost: %v", e.about.Name, e.err)
			}
		}
		if errors.Is(inner, ErrLost) {
			t.Errorf("Unlock says: %v", inner)
		}
	})
}

// A Do within a Do: the outer one is lost while etcd takes longer than 250 ms to answer the release of the inner one.
func TestCause_DoUnderALostDo(t *testing.T) {
	onStage(t, func(st *stage) {
		hooks := &recorder{}
		st.s.config.hooks = []*Hooks{hooks.hooks()}
		var inner error
		_ = NewMutex(st.s, "outer").Do(st.Context(), func(ctx context.Context, outer *Held) error {
			inner = st.mutex().Do(ctx, func(ctx context.Context, h *Held) error {
				st.f.Remove(outer.Key())
				<-ctx.Done()
				require.NoError(st, h.Err())
				st.change(func() { st.after = make(chan struct{}) })
				time.AfterFunc(400*time.Millisecond, func() { st.change(func() { close(st.after); st.after = nil }) })
				return nil
			})
			return nil
		})
		<-time.After(time.Second)
		require.NotErrorIs(st, inner, ErrLost, "the inner lock was not lost")
	})
}

// The ctx of an Unlock has ended, because something else of the caller's was refused. The release begins at once.
func TestCause_UnlockAfterARefusal(t *testing.T) {
	for what, cause := range map[string]error{"none": nil, "permission": rpctypes.ErrPermissionDenied, "compacted": rpctypes.ErrCompacted, "key": rpctypes.ErrKeyNotFound} {
		t.Run(what, func(t *testing.T) {
			onStage(t, func(st *stage) {
				h := st.lock(st.mutex().Lock)
				other := st.ticket(NewMutex(st.remote(), "a").Enqueue)
				ctx, cancel := context.WithCancelCause(st.Context())
				cancel(cause)
				start := time.Now()
				require.ErrorIs(st, h.Unlock(ctx), context.Canceled)
				synctest.Wait()
				<-other.Done()
				require.Zero(st, time.Since(start), "the next one waits")
			})
		})
	}
}

// A Lock that is given up says nothing of etcd's alarms, nor of its rights.
func TestCause_LockGivenUpSaysNothingOfEtcd(t *testing.T) {
	for what, cause := range map[string]error{"none": nil, "full": rpctypes.ErrNoSpace, "permission": rpctypes.ErrPermissionDenied} {
		t.Run(what, func(t *testing.T) {
			onStage(t, func(st *stage) {
				var log logtest.Log
				st.s.config.log, st.s.lease.Outages.Log = log.Logger(), log.Logger()
				goOn := st.holdBack()
				ctx, cancel := context.WithCancelCause(st.Context())
				done := async(func() error { _, err := st.mutex().Lock(ctx); return err })
				synctest.Wait()
				cancel(cause) // of another etcd, say, or of another key
				err := <-done
				goOn()
				assert.Nil(st, st.s.config.outages.Alarm())
				assert.Empty(st, log.Lines())
				assert.NotContains(st, err.Error(), "the client's role needs")
			})
		})
	}
}

// NewSession is given up, and says so, and not that the lease is gone.
func TestCause_NewSessionUnderAnEndedSession(t *testing.T) {
	c := cluster.Client(t)
	s := newTestSession(t, c)
	s.Orphan()
	expired := newTestSession(t, c)
	_, err := c.Revoke(testCtx(t), expired.Lease())
	require.NoError(t, err)
	<-expired.Done()
	_, err = NewSession(expired.Context(), c, WithLease(s.Lease()))
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, rpctypes.ErrLeaseNotFound)
}

// Adopt under the ctx of a hold that is lost leaves the entry that it could not take.
func TestCause_AdoptUnderALostHold(t *testing.T) {
	toAdopt(t, func(t *testing.T, f *fakeEtcd, s *Session) {
		s.etcd.Lease = f.Client(func(context.Context) (int64, error) { return 10, nil }).Lease
		s.lease.WallClock = func() time.Time { return time.Now().Round(0).Add(2 * time.Hour) }
		s.lease.KeepAlive = func(ctx context.Context) (int64, error) { <-ctx.Done(); return 0, ctx.Err() }
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(ErrLost) })
		_, err := s.Adopt(ctx, "a")
		require.ErrorIs(t, err, context.Canceled)
		synctest.Wait()
		<-time.After(time.Minute)
		require.Len(t, f.There("a/"), 1, "the entry stays")
	})
}

// Orphan blocks until what was released before is removed, whatever has ended the ctx of the release.
func TestCause_OrphanAfterAnUnlockWhoseCtxHadEnded(t *testing.T) {
	for what, cause := range map[string]error{"none": nil, "permission": rpctypes.ErrPermissionDenied} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFakeEtcd()
				s, s2 := f.bareSession(5), f.bareSession(5)
				h, err := NewMutex(s, "a").Lock(t.Context())
				require.NoError(t, err)
				tk, err := NewMutex(s, "a").Enqueue(t.Context())
				require.NoError(t, err)
				ctx, cancel := context.WithCancelCause(t.Context())
				cancel(cause)
				require.ErrorIs(t, h.Unlock(ctx), context.Canceled)
				next, err := tk.Wait(t.Context())
				require.NoError(t, err)
				s.Orphan()
				adopted, err := s2.Adopt(t.Context(), "a")
				require.NoError(t, err)
				require.GreaterOrEqual(t, adopted.Token(), next.Token())
				s2.lease.End(ErrSessionClosed, "test")
				s2.lease.NotFound()
			})
		})
	}
}

// Run under a lost hold of the same name, with a ctx that goes on: all calls return ErrLost there.
func TestCause_ElectorUnderALostDoOfItsName(t *testing.T) {
	onStage(t, func(st *stage) {
		start := time.Now()
		err := st.mutex().Do(st.Context(), func(ctx context.Context, h *Held) error {
			st.f.Remove(h.Key())
			<-ctx.Done()
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
			defer cancel()
			return NewElector(st.s, "a").Run(ctx, func(context.Context, *Held) error { return nil })
		})
		require.ErrorIs(st, err, ErrLost)
		require.Less(st, time.Since(start), time.Second)
	})
}

// askedAgain is a ctx that calls act when it is asked for the second time whether it runs under a hold, and every time from then on.
type askedAgain struct {
	context.Context
	asked int
	act   func(asked int)
}

func (c *askedAgain) Value(key any) any {
	if fmt.Sprintf("%T", key) == "loan.lent" {
		if c.asked++; c.asked > 1 {
			c.act(c.asked)
		}
	}
	return c.Context.Value(key)
}

// The hold is lost when Run has just begun: Run does not campaign again and again under it.
func TestCause_ElectorUnderADoThatIsLostMeanwhile(t *testing.T) {
	onStage(t, func(st *stage) {
		_ = st.mutex().Do(st.Context(), func(ctx context.Context, h *Held) error {
			again := &askedAgain{Context: ctx, act: func(asked int) {
				require.Less(st, asked, 10)
				st.f.Remove(h.Key())
				<-ctx.Done()
			}}
			err := NewElector(st.s, "a").Run(again, func(context.Context, *Held) error { return nil })
			if !errors.Is(err, ErrWouldDeadlock) {
				require.ErrorIs(st, err, ErrLost)
			}
			return nil
		})
	})
}

// Each error that callers compare is a word, so that CtxError knows it as one, also in the cause that a hold's loss is.
func TestCause_Words(t *testing.T) {
	for _, word := range []error{
		ErrLocked, ErrSessionExpired, ErrSessionClosed, ErrLost, ErrOutcomeUnknown, ErrNotHeld, ErrNotFound, ErrWouldDeadlock, ErrElectionNoLeader,
		ErrInvalidName, lossOf(ErrSessionExpired), rpctypes.ErrCompacted, etcd.ErrClientClosed,
	} {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(fmt.Errorf("another call: %w", word))
		err := etcd.CtxError(ctx, nil)
		require.ErrorIs(t, err, context.Canceled)
		require.NotErrorIs(t, err, word)
		require.ErrorContains(t, err, word.Error(), "people are told")
	}
}

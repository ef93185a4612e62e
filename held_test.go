package etcdlock

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/keyspace"
	"github.com/etcdlock/etcdlock/internal/settle"
	"github.com/etcdlock/etcdlock/internal/test/harness"
)

// The session ends while etcd drops all proposals: Commit returns then, and does not wait for
// the end of its ctx.
func TestHeld_SessionEndsWhileTxnIsRepeated(t *testing.T) {
	for _, cause := range []error{ErrSessionExpired, ErrSessionClosed} {
		synctest.Test(t, func(t *testing.T) {
			f := newFakeEtcd()
			s := f.session(1)
			h, err := NewMutex(s, "a").Lock(context.Background())
			require.NoError(t, err)
			f.Step = func(context.Context, string) error { return rpctypes.ErrGRPCNoLeader }
			time.AfterFunc(10*time.Second, func() { s.lease.End(cause, "the test says so") })
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			_, err = h.Txn(ctx).Commit()
			require.ErrorIs(t, err, ErrLost)
			require.ErrorIs(t, err, cause)
			require.NotErrorIs(t, err, ErrOutcomeUnknown, "etcd did not even propose it")
			s.lease.NotFound()
		})
	}
}

// Of a guarded transaction its caller knows whether it may have been carried out.
func TestHeld_TxnOutcome(t *testing.T) {
	c, w := harness.WiredClient(t, cluster)
	s := newTestSession(t, c)
	name := lockName(t)
	h, err := NewMutex(s, name).Lock(testCtx(t))
	require.NoError(t, err)
	put := func(value string) error {
		_, err := h.Txn(testCtx(t)).Then(clientv3.OpPut(name+".x", value)).Commit()
		return err
	}
	w.LoseReply("Txn")
	err = put("carried out")
	require.ErrorIs(t, err, ErrOutcomeUnknown)
	require.NotErrorIs(t, err, ErrLost)
	_, err = c.Delete(testCtx(t), h.Key())
	require.NoError(t, err)
	err = put("too late")
	require.ErrorIs(t, err, ErrLost)
	require.NotErrorIs(t, err, ErrOutcomeUnknown)
	got, err := c.Get(testCtx(t), name+".x")
	require.NoError(t, err)
	require.Equal(t, "carried out", string(got.Kvs[0].Value))
}

// The cause of a hold's end stays the one that was reported first, even if the session ends
// later.
func TestHeld_FirstCauseStays(t *testing.T) {
	c := cluster.Client(t)
	s, err := NewSession(testCtx(t), c)
	require.NoError(t, err)
	lost, err := NewMutex(s, lockName(t)+"/lost").Lock(testCtx(t))
	require.NoError(t, err)
	unlocked, err := NewMutex(s, lockName(t)+"/unlocked").Lock(testCtx(t))
	require.NoError(t, err)
	done := lost.Done()
	_, err = c.Delete(testCtx(t), lost.Key())
	require.NoError(t, err)
	<-done
	require.NoError(t, unlocked.Unlock(testCtx(t)))
	require.NoError(t, s.Close())
	require.Equal(t, ErrLost, lost.Err(), "the session was not the cause")
	require.Equal(t, ErrLost, context.Cause(lost.Context()))
	require.Equal(t, ErrNotHeld, unlocked.Err())
}

// The session ends while a request about its hold is in flight.
func TestHeld_SessionEndsMeanwhile(t *testing.T) {
	for what, call := range map[string]func(h *Held, ctx context.Context) error{"Check": (*Held).Check, "Downgrade": (*Held).Downgrade} {
		synctest.Test(t, func(t *testing.T) {
			f := newFakeEtcd()
			s := f.session(1)
			h, err := NewRWMutex(s, "a").Lock(context.Background())
			require.NoError(t, err)
			f.Step = func(context.Context, string) error {
				s.lease.End(ErrSessionExpired, "the test says so")
				return rpctypes.ErrGRPCNoLeader
			}
			err = call(h, context.Background())
			require.ErrorIs(t, err, ErrSessionExpired, what)
			require.ErrorIs(t, err, ErrLost, what)
			s.lease.NotFound()
		})
	}
}

func TestDowngrade(t *testing.T) {
	c := cluster.Client(t)
	s := newTestSession(t, c)
	name := lockName(t)
	rw := NewRWMutex(s, name)
	h, err := rw.Lock(testCtx(t))
	require.NoError(t, err)
	require.Equal(t, keyspace.Exclusive, keyspace.KindOf(name, h.Key()))
	require.Equal(t, []string{exclusiveBase(name, s.Lease()), sharedBase(name, s.Lease())}, sorted(entries(t, c, name)))
	token := h.Token()
	done := h.Done()

	reader, err := rw.REnqueue(testCtx(t))
	require.NoError(t, err)
	writer, err := rw.Enqueue(testCtx(t))
	require.NoError(t, err)
	mutex, err := NewMutex(newTestSession(t, c), name).Enqueue(testCtx(t))
	require.NoError(t, err)
	notGranted(t, reader, 1)
	notGranted(t, writer, 2)

	require.NoError(t, h.Downgrade(testCtx(t)))
	require.NoError(t, h.Downgrade(testCtx(t)), "a second Downgrade must do nothing")
	require.Equal(t, keyspace.Shared, keyspace.KindOf(name, h.Key()))
	require.Equal(t, token, h.Token())
	require.NoError(t, h.Check(testCtx(t)))
	hr, err := reader.Wait(testCtx(t))
	require.NoError(t, err, "the next reader must be granted")
	notGranted(t, writer, 2)
	notGranted(t, mutex, 3)
	resp, err := h.Txn(testCtx(t)).Then(clientv3.OpGet(name)).Commit()
	require.NoError(t, err)
	require.True(t, resp.Succeeded)
	require.NoError(t, hr.Unlock(testCtx(t)))
	notGranted(t, writer, 1)
	select {
	case <-done:
		t.Fatal("Downgrade must not end the hold")
	default:
	}
	require.NoError(t, h.Unlock(testCtx(t)))
	<-done
	hw, err := writer.Wait(testCtx(t))
	require.NoError(t, err)
	require.NoError(t, hw.Unlock(testCtx(t)))
	hm, err := mutex.Wait(testCtx(t))
	require.NoError(t, err)
	require.NoError(t, hm.Unlock(testCtx(t)))
	queueIs(t, c, name, 0)
}

// A writer that waits for another writer goes on waiting after that one's downgrade, also if it
// was the next in the queue and nothing else was in the queue.
func TestDowngrade_NextWriterWaitsOn(t *testing.T) {
	t.Parallel()
	for range 20 {
		name := lockName(t)
		c := cluster.Client(t)
		rw := NewRWMutex(newTestSession(t, c), name)
		h, err := rw.Lock(testCtx(t))
		require.NoError(t, err)
		next, err := NewMutex(newTestSession(t, c), name).Enqueue(testCtx(t))
		require.NoError(t, err)
		require.NoError(t, h.Downgrade(testCtx(t)))
		// A reader that arrives now must wait too, because the writer is before it.
		r, err := rw.REnqueue(testCtx(t))
		require.NoError(t, err)
		notGranted(t, r, 1)
		notGranted(t, next, 1)
		require.NoError(t, h.Unlock(testCtx(t)))
		hn, err := next.Wait(testCtx(t))
		require.NoError(t, err)
		require.NoError(t, hn.Unlock(testCtx(t)))
		hr, err := r.Wait(testCtx(t))
		require.NoError(t, err)
		require.NoError(t, hr.Unlock(testCtx(t)))
	}
}

// A downgraded hold is lost when its shared entry is removed.
func TestDowngrade_Loss(t *testing.T) {
	c := cluster.Client(t)
	s := newTestSession(t, c)
	name := lockName(t)
	for _, inUse := range []bool{true, false} {
		h, err := NewRWMutex(s, name).Lock(testCtx(t))
		require.NoError(t, err)
		if inUse {
			h.Context()
		}
		require.NoError(t, h.Downgrade(testCtx(t)))
		_, err = c.Delete(testCtx(t), h.Key())
		require.NoError(t, err)
		select {
		case <-h.Done():
		case <-time.After(hang):
			t.Fatal("the holder is not told of the loss")
		}
		require.ErrorIs(t, h.Err(), ErrLost)
		require.NotErrorIs(t, h.Err(), ErrSessionExpired)
		require.ErrorIs(t, h.Unlock(testCtx(t)), ErrLost)
		require.ErrorIs(t, h.Downgrade(testCtx(t)), ErrLost)
	}
}

// The shared entry is gone: Downgrade notices it and fails at once.
func TestDowngrade_AfterLoss(t *testing.T) {
	c := cluster.Client(t)
	s := newTestSession(t, c)
	name := lockName(t)
	h, err := NewRWMutex(s, name).Lock(testCtx(t))
	require.NoError(t, err)
	_, err = c.Delete(testCtx(t), sharedBase(name, s.Lease()))
	require.NoError(t, err)
	err = h.Downgrade(testCtx(t))
	require.ErrorIs(t, err, ErrLost)
	require.NotErrorIs(t, err, context.DeadlineExceeded, "Downgrade must not try until its ctx ends")
	requireGone(t, c, name)
}

// The ctx of a Downgrade may ask the hold.
func TestDowngrade_CtxAsksTheHold(t *testing.T) {
	h, err := NewRWMutex(newTestSession(t, cluster.Client(t)), lockName(t)).Lock(testCtx(t))
	require.NoError(t, err)
	ctx := asksHold{testCtx(t), h}
	require.NoError(t, harness.Result(t, harness.Async(func() error { return h.Downgrade(ctx) })))
}

// asksHold is a ctx that has ended when its hold has.
type asksHold struct {
	context.Context
	h *Held
}

func (c asksHold) Err() error {
	if err := c.h.Err(); err != nil {
		return err
	}
	return c.Context.Err()
}

// A request about a hold may be executed after its downgrade and name its former exclusive
// entry. This does not end the hold.
func TestDowngrade_Beside(t *testing.T) {
	c, w := wiredClient(t, cluster)
	s := newTestSession(t, c)
	for method, request := range map[string]func(h *Held) error{
		"Range": func(h *Held) error { return h.Check(testCtx(t)) },
		"Txn": func(h *Held) error {
			resp, err := h.Txn(testCtx(t)).Then(clientv3.OpGet("x")).Commit()
			if err == nil && !resp.Succeeded {
				err = errors.New("the guard must be true")
			}
			return err
		},
	} {
		h, err := NewRWMutex(s, lockName(t)).Lock(testCtx(t))
		require.NoError(t, err)
		w.Once(method, func(ctx context.Context, send func(context.Context) error) error {
			if err := h.Downgrade(testCtx(t)); err != nil {
				return err
			}
			return send(ctx)
		})
		require.NoError(t, request(h), method)
		require.NoError(t, h.Err(), method)
		require.NoError(t, h.Check(testCtx(t)))
		require.NoError(t, h.Unlock(testCtx(t)))
	}
}

// A ticket is granted and its hold downgraded while Ahead counts the acquisitions before it. The
// count is that of the revision at which etcd was read.
func TestDowngrade_BesideAhead(t *testing.T) {
	c, w := wiredClient(t, cluster)
	m := NewRWMutex(newTestSession(t, c), lockName(t))
	reader, err := m.RLock(testCtx(t))
	require.NoError(t, err)
	tk, err := m.Enqueue(testCtx(t))
	require.NoError(t, err)
	w.OnUnary(func(ctx context.Context, _ string, req any, send func(context.Context) error) error {
		err := send(ctx)
		if reads := rangesOf(req); len(reads) > 0 && reads[0].MaxCreateRevision == tk.h.rev-1 {
			h, werr := (*Held)(nil), reader.Unlock(testCtx(t))
			if werr == nil {
				h, werr = tk.Wait(testCtx(t))
			}
			if werr == nil {
				werr = h.Downgrade(testCtx(t))
			}
			err = errors.Join(err, werr)
		}
		return err
	})
	n, err := tk.Ahead(testCtx(t))
	require.NoError(t, err)
	require.Equal(t, 1, n)
}

// The exclusive entry was removed, so a reader may have been granted: Downgrade must report the
// loss, whether the hold is watched or not.
func TestDowngrade_OthersWereIn(t *testing.T) {
	c := cluster.Client(t)
	s := newTestSession(t, c)
	s.etcd.NeverHedge() // a copy that has no answer may be what has removed it
	name := lockName(t)
	for _, watched := range []bool{true, false} {
		h, err := NewRWMutex(s, name).Lock(testCtx(t))
		require.NoError(t, err)
		if watched {
			h.Context()
		}
		_, err = c.Delete(testCtx(t), h.Key())
		require.NoError(t, err)
		require.ErrorIs(t, h.Downgrade(testCtx(t)), ErrLost)
		require.ErrorIs(t, h.Err(), ErrLost)
		require.ErrorIs(t, h.Unlock(testCtx(t)), ErrLost)
		requireGone(t, c, name)
	}

	// The repeated request finds that the first attempt was executed.
	wired, w := wiredClient(t, cluster)
	h, err := NewRWMutex(newTestSession(t, wired), name).Lock(testCtx(t))
	require.NoError(t, err)
	w.Once("Txn", func(ctx context.Context, send func(context.Context) error) error {
		if err := send(ctx); err != nil {
			return err
		}
		return errLostReply
	})
	require.NoError(t, h.Downgrade(testCtx(t)))
	require.NoError(t, h.Unlock(testCtx(t)))
}

// Another client removes the exclusive entry of a write hold: the hold is lost, and its shared
// entry is removed too, so that it does not block the lock.
func TestWriteHold_LossRemovesTheRest(t *testing.T) {
	c := cluster.Client(t)
	s := newTestSession(t, c)
	name := lockName(t)
	h, err := NewRWMutex(s, name).Lock(testCtx(t))
	require.NoError(t, err)
	done := h.Done()
	next, err := NewMutex(newTestSession(t, c), name).Enqueue(testCtx(t))
	require.NoError(t, err)
	_, err = c.Delete(testCtx(t), h.Key())
	require.NoError(t, err)
	<-done
	hn, err := next.Wait(testCtx(t))
	require.NoError(t, err)
	require.NoError(t, hn.Unlock(testCtx(t)))
	require.Eventually(t, func() bool { return len(entries(t, c, name)) == 0 }, hang, tick)
	require.NoError(t, s.Err())
}

// The client is closed, and the goroutine that renews the session's lease has not seen that yet. A hold is asked about
// first by what starts to watch it, which can't be done any more. It says that the session has ended, not that
// somebody has removed the entry.
func TestHeld_ClientClosed(t *testing.T) {
	t.Parallel()
	for what, ask := range map[string]func(h *Held) error{
		"Done":    func(h *Held) error { <-h.Done(); return context.Cause(h.Context()) },
		"Err":     (*Held).Err,
		"Session": func(h *Held) error { return errors.Join(ErrLost, h.Session().Err()) },
	} {
		client, err := cluster.NewClient()
		require.NoError(t, err)
		s := makeSession(client, config{ttl: time.Minute, log: discard})
		require.NoError(t, s.lease.Grant(testCtx(t), time.Minute)) // nothing runs yet
		h, err := NewMutex(s, lockName(t)).Lock(testCtx(t))
		require.NoError(t, err)
		require.NoError(t, client.Close())
		err = ask(h)
		require.ErrorIs(t, err, ErrLost, what)
		require.ErrorIs(t, err, ErrSessionExpired, what)
		require.ErrorIs(t, s.Err(), ErrSessionExpired, what)
		require.False(t, h.Valid(), what)
	}
}

// The value of a hold is changed exactly once, and only while it is held.
func TestSetValue(t *testing.T) {
	tap, name := etcdtest.NewTap(), lockName(t)
	c := cluster.Client(t, tap)
	h, err := NewMutex(newTestSession(t, c), name).Lock(testCtx(t))
	require.NoError(t, err)
	published := func() (value string, version int64) {
		q, err := New(c).Inspect(testCtx(t), name)
		require.NoError(t, err)
		return q.Entries[0].Value, q.Entries[0].Version
	}
	require.ErrorContains(t, h.SetValue(testCtx(t), "\xff"), "not UTF-8")

	// The reply is lost: it is not written twice.
	tap.Next("Txn", etcdtest.DropReply)
	require.NoError(t, h.SetValue(testCtx(t), "a"))
	value, version := published()
	require.Equal(t, []any{"a", int64(2)}, []any{value, version})

	// It is carried out after it was given up, and after a newer one: the newer one stays.
	late := tap.Postpone("Txn", 1)
	ctx, cancel := context.WithCancel(testCtx(t))
	setting := async(func() error { return h.SetValue(ctx, "late") })
	<-late.Caught()
	cancel()
	require.ErrorIs(t, result(t, setting), context.Canceled)
	require.NoError(t, h.SetValue(testCtx(t), "newer"))
	require.NoError(t, late.Send(testCtx(t)))
	value, _ = published()
	require.Equal(t, "newer", value)

	// Two at once.
	one, two := async(func() error { return h.SetValue(testCtx(t), "1") }), async(func() error { return h.SetValue(testCtx(t), "2") })
	require.NoError(t, result(t, one))
	require.NoError(t, result(t, two))
	value, _ = published()
	require.Contains(t, []string{"1", "2"}, value)

	// Somebody else has the key.
	_, err = c.Delete(testCtx(t), h.Key())
	require.NoError(t, err)
	_, err = c.Put(testCtx(t), h.Key(), "another's", clientv3.WithLease(h.Session().Lease()))
	require.NoError(t, err)
	require.ErrorIs(t, h.SetValue(testCtx(t), "lost"), ErrLost)
	value, _ = published()
	require.Equal(t, "another's", value)
}

// The value is larger than etcd takes. gRPC says so in the words that it also has for a reply.
func TestSetValue_TooLarge(t *testing.T) {
	t.Parallel()
	own := etcdtest.Start(t, etcdtest.WithConfig(func(c *embed.Config) { c.MaxRequestBytes = 100 << 10 }))
	tap := etcdtest.NewTap()
	h := mustLock(t, newTestSession(t, own.Client(t, tap)), lockName(t))
	before := tap.Calls("Txn")
	err := endsSoon(t, async(func() error { return h.SetValue(testCtx(t), strings.Repeat("x", 700<<10)) }))
	require.ErrorContains(t, err, "larger than etcd may")
	require.NotErrorIs(t, err, context.DeadlineExceeded)
	require.LessOrEqual(t, tap.Calls("Txn")-before, 6)
	require.NoError(t, h.Unlock(testCtx(t)))
}

// All keys of a hold have its value.
func TestSetValue_SeveralKeys(t *testing.T) {
	c := cluster.Client(t)
	name := lockName(t)
	s := newTestSession(t, c)
	w, err := NewRWMutex(s, name).Lock(testCtx(t))
	require.NoError(t, err)
	values := func(name string) (values []string) {
		got, err := c.Get(testCtx(t), name+"/", clientv3.WithPrefix())
		require.NoError(t, err)
		for _, kv := range got.Kvs {
			values = append(values, settle.ParseValue(string(kv.Value), 9).Published)
		}
		return values
	}
	require.NoError(t, w.SetValue(testCtx(t), "w"))
	require.Equal(t, []string{"w", "w"}, values(name))
	require.NoError(t, w.Downgrade(testCtx(t)))
	require.Equal(t, []string{"w"}, values(name))
	require.NoError(t, w.SetValue(testCtx(t), "r"))
	require.Equal(t, []string{"r"}, values(name))
	require.NoError(t, w.Unlock(testCtx(t)))

	m, err := NewMulti(s, Write(name+".1"), Read(name+".2")).Lock(testCtx(t))
	require.NoError(t, err)
	require.NoError(t, m.SetValue(testCtx(t), "m"))
	q, err := New(c).Inspect(testCtx(t), name+".2")
	require.NoError(t, err)
	require.Equal(t, []string{"m", name + ".1\n" + name + ".2"}, []string{q.Entries[0].Value, q.Entries[0].Names})
	require.Equal(t, []string{"m"}, values(name+".1"))
	_, err = c.Delete(testCtx(t), m.Keys()[1])
	require.NoError(t, err)
	require.ErrorIs(t, m.SetValue(testCtx(t), "lost"), ErrLost)
	requireGone(t, c, name+".1")
}

// A Downgrade begins while SetValue reads what is in the keys. The race detector sees that both had the same memory.
func TestSetValue_BesideADowngrade(t *testing.T) {
	onStage(t, func(st *stage) {
		h := st.lock(NewRWMutex(st.s, "a").Lock)
		step := st.f.Step
		st.f.Step = func(ctx context.Context, what string) error {
			if what == "Range" {
				<-time.After(time.Second)
			}
			return step(ctx, what)
		}
		var both sync.WaitGroup
		both.Go(func() { assert.NoError(st, h.SetValue(st.Context(), "v")) })
		both.Go(func() {
			<-time.After(time.Second / 2) // nothing else may make one wait for the other
			assert.NoError(st, h.Downgrade(st.Context()))
		})
		both.Wait()
		kvs := st.f.Keys("a/")
		require.Len(st, kvs, 1)
		require.Equal(st, "v", settle.ParseValue(string(kvs[0].Value), 1).Published)
		require.NoError(st, h.Unlock(st.Context()))
	})
}

// fn unlocks with the ctx that Do gave it, etcd does not answer, and the caller's ctx ends.
func TestDo_UnlockEndsWithTheCallersCtx(t *testing.T) {
	onStage(t, func(st *stage) {
		ctx, cancel := context.WithCancel(st.Context())
		start := time.Now()
		_ = st.mutex().Do(ctx, func(ctx context.Context, h *Held) error {
			st.change(func() { st.before = make(chan struct{}) })
			time.AfterFunc(time.Second, cancel)
			time.AfterFunc(9*time.Second, func() { st.change(func() { close(st.before); st.before = nil }) })
			return h.Unlock(ctx)
		})
		require.LessOrEqual(st, time.Since(start), 2*time.Second, "ctx ended after 1 s")
	})
}

// fn unlocks with a ctx that goes on when the caller's has ended: it waits for etcd's word at the end of its process.
func TestDo_UnlockWithACtxThatGoesOn(t *testing.T) {
	onStage(t, func(st *stage) {
		ctx, cancel := context.WithCancel(st.Context())
		_ = st.mutex().Do(ctx, func(ctx context.Context, h *Held) error {
			cancel()
			ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
			defer stop()
			time.AfterFunc(200*time.Millisecond, st.holdBack())
			require.NoError(st, h.Unlock(ctx))
			return nil
		})
		st.requireForgotten()
	})
}

// fn unlocks with the ctx that Do gave it, which ends with that: Unlock has etcd's word, and leaves no goroutine.
func TestDo_UnlockUnderACtxWithoutEnd(t *testing.T) {
	onStage(t, func(st *stage) {
		require.NoError(st, st.mutex().Do(context.Background(), func(ctx context.Context, h *Held) error {
			time.AfterFunc(200*time.Millisecond, st.holdBack())
			return h.Unlock(ctx)
		}))
	})
}

func TestDo_NestedWithoutAFunction(t *testing.T) {
	onStage(t, func(st *stage) {
		require.ErrorContains(st, st.mutex().Do(st.Context(), nil), "fn is nil")
		require.NoError(st, st.mutex().Do(st.Context(), func(ctx context.Context, _ *Held) error {
			require.NotPanics(st, func() { _ = st.mutex().Do(ctx, nil) })
			return nil
		}))
	})
}

// A nosyCtx asks after something each time that it is asked.
type nosyCtx struct {
	context.Context
	ask func()
}

func (c *nosyCtx) Value(key any) any {
	c.ask()
	return c.Context.Value(key)
}

// The ctx that Do is given is the caller's own code. It may ask after the hold when it is asked itself.
func TestDo_CtxAsksAfterTheHold(t *testing.T) {
	s := newTestSession(t, cluster.Client(t))
	ctx := &nosyCtx{testCtx(t), func() {}}
	done := async(func() error {
		return NewMutex(s, lockName(t)).Do(ctx, func(_ context.Context, h *Held) error {
			ctx.ask = func() { _ = h.Err() }
			return h.Unlock(testCtx(t))
		})
	})
	require.NoError(t, result(t, done))
}

package etcdlock

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/lead"
	"github.com/etcdlock/etcdlock/internal/test/harness"
	"github.com/etcdlock/etcdlock/internal/test/logtest"
	"github.com/etcdlock/etcdlock/internal/test/sample"
)

// A candidate is a running elector. Each of its leads reports that it has begun, and returns
// what the test tells it to return, even if its ctx has ended.
type candidate struct {
	*Elector
	terms  chan *testTerm
	done   chan struct{} // closed when Run has ended; err or panicked is then set
	cancel context.CancelFunc

	err      error
	panicked any
}

type testTerm struct {
	ctx   context.Context
	held  *Held
	leave chan func() error // receives the function with which lead ends
}

// candidateKey is the key of a value in the ctx of Run.
type candidateKey struct{}

// newElector makes an elector with its own Client. Each opt is an Option or an ElectorOption.
func newElector(t testing.TB, c *clientv3.Client, name string, opts ...any) *Elector {
	t.Helper()
	var options []Option
	var electorOptions []ElectorOption
	for _, o := range opts {
		switch o := o.(type) {
		case Option:
			options = append(options, o)
		case ElectorOption:
			electorOptions = append(electorOptions, o)
		default:
			t.Fatalf("%T is not an option", o)
		}
	}
	return newTestClient(t, c, options...).Elector(name, electorOptions...)
}

func runElector(t testing.TB, e *Elector) *candidate {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithValue(context.Background(), candidateKey{}, e))
	c := &candidate{Elector: e, terms: make(chan *testTerm, 100), done: make(chan struct{}), cancel: cancel}
	over := make(chan struct{})
	go func() {
		defer close(c.done)
		defer func() { c.panicked = recover() }()
		c.err = e.Run(ctx, func(ctx context.Context, held *Held) error {
			term := &testTerm{ctx, held, make(chan func() error, 1)}
			c.terms <- term
			select {
			case f := <-term.leave:
				return f()
			case <-over:
				return nil
			}
		})
	}()
	t.Cleanup(func() {
		cancel()
		close(over)
		<-c.done
	})
	return c
}

// leads waits until the candidate leads.
func (c *candidate) leads(t testing.TB) *testTerm {
	t.Helper()
	select {
	case term := <-c.terms:
		return term
	case <-c.done:
		t.Fatalf("Run has ended: %v %v", c.err, c.panicked)
	case <-time.After(hang):
		t.Fatal("the candidate does not lead")
	}
	return nil
}

func (c *candidate) result(t testing.TB) error {
	t.Helper()
	select {
	case <-c.done:
		return c.err
	case <-time.After(hang):
		t.Fatal("Run does not end")
		return nil
	}
}

func (c *candidate) leadsNot(t testing.TB) {
	t.Helper()
	require.False(t, c.IsLeader())
	require.Empty(t, c.terms)
}

// returns makes lead return err.
func (term *testTerm) returns(err error) { term.leave <- func() error { return err } }

// ended waits for the end of lead's ctx and returns its cause.
func (term *testTerm) ended(t testing.TB) error {
	t.Helper()
	select {
	case <-term.ctx.Done():
		return context.Cause(term.ctx)
	case <-time.After(hang):
		t.Fatal("lead's ctx does not end")
		return nil
	}
}

// entryGone requires that the term's entry is not in the queue any more.
func entryGone(t testing.TB, c *clientv3.Client, term *Held) {
	t.Helper()
	resp, err := c.Txn(testCtx(t)).If(term.IsOwner()).Then(clientv3.OpGet("x")).Else(clientv3.OpGet("x")).Commit()
	require.NoError(t, err)
	require.False(t, resp.Succeeded, "the entry must be removed")
}

// Electors lead in the order of their arrival. Each resigns when its ctx ends or when its
// lead returns, so no elector waits for a lease to expire.
func TestElector_InTurn(t *testing.T) {
	c := cluster.Client(t)
	name := lockName(t)
	a := runElector(t, newElector(t, cluster.Client(t), name, WithOwner("a"), WithTTL(time.Minute)))
	term := a.leads(t)
	require.True(t, a.IsLeader())
	require.NoError(t, a.Check(0))
	require.Same(t, a.Elector, term.ctx.Value(candidateKey{}))
	require.NoError(t, term.held.Check(testCtx(t)))
	b := runElector(t, newElector(t, cluster.Client(t), name, WithOwner("b"), WithTTL(time.Minute)))
	queueIs(t, c, name, 2)
	tap := etcdtest.NewTap()
	d := runElector(t, newElector(t, cluster.Client(t, tap), name, WithOwner("d"), WithTTL(time.Minute)))
	queueIs(t, c, name, 3)
	require.Eventually(t, func() bool { return len(tap.WatchCreates()) > 0 }, hang, tick, "it must know that it is in the queue")
	for _, e := range []*Elector{a.Elector, b.Elector} {
		leader, err := e.Leader(testCtx(t))
		require.NoError(t, err)
		require.Equal(t, term.held.Token(), leader.Token)
		require.Equal(t, "a", leader.Owner)
	}

	a.cancel()
	require.ErrorIs(t, term.ended(t), context.Canceled)
	require.True(t, a.IsLeader(), "the elector must lead until lead has returned")
	b.leadsNot(t)
	require.NoError(t, term.held.Check(testCtx(t)), "the elector must not resign before lead has returned")
	term.returns(term.ctx.Err())
	require.Equal(t, context.Canceled, a.result(t), "Run must return lead's error")
	require.False(t, a.IsLeader())
	entryGone(t, c, term.held)
	next := b.leads(t)
	require.Greater(t, next.held.Token(), term.held.Token())

	// A candidate that does not lead also leaves the queue before Run returns.
	caught, open := make(chan struct{}, 10), make(chan struct{})
	stop := tap.Every("Txn", func(ctx context.Context, c *etcdtest.Call) error {
		caught <- struct{}{}
		<-open
		return c.Send(ctx)
	})
	defer stop()
	d.cancel()
	<-caught
	select {
	case <-d.done:
		t.Fatal("Run does not wait for etcd")
	case <-time.After(20 * time.Millisecond):
	}
	close(open)
	require.ErrorIs(t, d.result(t), context.Canceled)
	require.ErrorContains(t, d.result(t), name)
	require.Equal(t, []string{next.held.Key()}, entries(t, c, name))

	next.returns(nil)
	require.NoError(t, b.result(t))
	entryGone(t, c, next.held)
	queueIs(t, c, name, 0)
	_, err := b.Leader(testCtx(t))
	require.ErrorIs(t, err, ErrElectionNoLeader)
}

func TestElector_LeadFails(t *testing.T) {
	c := cluster.Client(t)
	boom := errors.New("boom")
	for kind, fails := range map[string]func() error{
		"error":  func() error { return boom },
		"panic":  func() error { panic(boom) },
		"goexit": func() error { runtime.Goexit(); return nil },
	} {
		name := lockName(t)
		e := newElector(t, cluster.Client(t), name, WithTTL(time.Minute))
		a := runElector(t, e)
		term := a.leads(t)
		b := runElector(t, newElector(t, cluster.Client(t), name, WithTTL(time.Minute)))
		queueIs(t, c, name, 2)
		term.leave <- fails
		err := a.result(t)
		switch kind {
		case "error":
			require.Equal(t, boom, err, "Run must return lead's own error, not wrapped")
		case "panic":
			require.Equal(t, boom, a.panicked)
		default:
			require.NoError(t, err) // Run did not return
		}
		require.False(t, a.IsLeader())
		entryGone(t, c, term.held)
		b.leads(t).returns(nil)
		require.NoError(t, b.result(t))
		queueIs(t, c, name, 0)

		again := runElector(t, e)
		again.leads(t).returns(nil)
		require.NoError(t, again.result(t), "the elector must be able to run again")
	}
}

// When a term is lost, lead's ctx ends with the cause. Run goes on, whether lead returns an
// error or not.
func TestElector_Lost(t *testing.T) {
	t.Parallel()
	c := cluster.Client(t)
	name := lockName(t)
	var mu sync.Mutex
	var logged bytes.Buffer
	log := slog.New(slog.NewTextHandler(writer(func(p []byte) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		return logged.Write(p)
	}), nil))
	a := runElector(t, newElector(t, cluster.Client(t), name, WithTTL(time.Minute), WithLogger(log)))
	var before *testTerm
	for _, how := range []struct {
		name    string
		lose    func(h *Held) error
		expired bool
		returns error
	}{
		{"revoked", func(h *Held) error { _, err := c.Revoke(testCtx(t), h.s.Lease()); return err }, true, nil},
		{"broken", func(h *Held) error {
			return New(c).Break(testCtx(t), Entry{Name: name, Key: h.Key(), Token: h.Token()})
		}, false, context.Canceled},
		{"revoked again", func(h *Held) error { _, err := c.Revoke(testCtx(t), h.s.Lease()); return err }, true, errors.New("boom")},
	} {
		term := a.leads(t)
		if before != nil {
			require.Greater(t, term.held.Token(), before.held.Token())
			require.Equal(t, before.held.s.Err() != nil, before.held.s != term.held.s)
		}
		b, err := NewMutex(newTestSession(t, c), name).Enqueue(testCtx(t))
		require.NoError(t, err)
		losing := time.Now()
		require.NoError(t, how.lose(term.held))
		cause := term.ended(t)
		require.ErrorIs(t, cause, ErrLost, how.name)
		if how.expired {
			harness.RequireCause(t, losing, cause, ErrSessionExpired, ErrLost, how.name)
		} else {
			require.NotErrorIs(t, cause, ErrSessionExpired, how.name)
		}
		require.False(t, a.IsLeader())
		h, err := b.Wait(testCtx(t))
		require.NoError(t, err)
		require.Len(t, entries(t, c, name), 1, "the elector must not campaign while lead runs")
		term.returns(how.returns)
		queueIs(t, c, name, 2)
		a.leadsNot(t)
		require.NoError(t, a.Check(0), "Check must succeed when lead has returned")
		require.NoError(t, h.Unlock(testCtx(t)))
		before = term
	}
	term := a.leads(t)
	require.True(t, a.IsLeader())
	reported(t, term.held.s)
	mu.Lock()
	require.Equal(t, 1, strings.Count(logged.String(), "lead failed"))
	require.Contains(t, logged.String(), "boom")
	mu.Unlock()
	// The elector notices the loss only when it resigns: Run goes on in this case too.
	_, err := c.Delete(testCtx(t), term.held.Key())
	require.NoError(t, err)
	term.returns(nil)
	term = a.leads(t)
	a.cancel()
	term.returns(nil)
	require.NoError(t, a.result(t))
}

// When the session's deadline has passed, IsLeader is false even if no timer has fired
// yet.
func TestElector_IsLeaderByTheClock(t *testing.T) {
	a := runElector(t, newElector(t, cluster.Client(t), lockName(t), WithTTL(time.Minute)))
	term := a.leads(t)
	s := term.held.s
	s.lease.SetDeadline(time.Now())
	require.False(t, a.IsLeader())
	require.ErrorIs(t, term.ended(t), ErrSessionExpired)
}

// The overrun function is called for a lead that ignores the end of its term. No other lead
// starts in this process meanwhile.
func TestElector_Overrun(t *testing.T) {
	t.Parallel()
	c := cluster.Client(t)
	name := lockName(t)
	const grace = time.Second
	told := make(chan *Held, 10)
	a := runElector(t, newElector(t, cluster.Client(t), name, WithTTL(time.Minute),
		WithOverrun(grace, func(term *Held) { told <- term })))
	term := a.leads(t)
	b := runElector(t, newElector(t, cluster.Client(t), name))
	queueIs(t, c, name, 2)
	_, err := c.Revoke(testCtx(t), term.held.s.Lease())
	require.NoError(t, err)
	require.ErrorIs(t, term.ended(t), ErrLost)
	other := b.leads(t)
	select {
	case h := <-told:
		require.Same(t, term.held, h)
	case <-time.After(hang):
		t.Fatal("the overrun function is not called")
	}
	err = a.Check(grace)
	require.ErrorIs(t, err, ErrLost)
	require.ErrorContains(t, err, name)
	require.NoError(t, a.Check(time.Hour))
	require.NoError(t, b.Check(0))
	other.returns(nil)
	require.NoError(t, b.result(t))
	queueIs(t, c, name, 0)
	a.leadsNot(t)
	require.Error(t, a.Check(0))
	term.returns(nil)

	// A lead that ends in time is not reported.
	term = a.leads(t)
	require.NoError(t, a.Check(0))
	term.leave <- func() error { <-term.ctx.Done(); return nil }
	_, err = c.Revoke(testCtx(t), term.held.s.Lease())
	require.NoError(t, err)

	// A lead that unlocks its term itself, which ends the ctx, is not reported either.
	term = a.leads(t)
	require.NoError(t, term.held.Unlock(term.ctx))
	require.ErrorIs(t, term.ended(t), ErrNotHeld)
	require.False(t, a.IsLeader())
	require.NoError(t, a.Check(0))
	queueIs(t, c, name, 0)
	select {
	case <-told:
		t.Fatal("the overrun function was called for a term that was not lost")
	case <-time.After(grace + 200*time.Millisecond):
	}
	term.returns(nil)
	require.NoError(t, a.result(t))
}

// Check compares the session's deadline. So it knows of a loss that was not reported yet, as
// when the process was paused.
func TestElector_CheckByTheClock(t *testing.T) {
	e := newElector(t, cluster.Client(t), lockName(t))
	s := newTestSession(t, cluster.Client(t), WithTTL(time.Minute))
	h, err := NewMutex(s, lockName(t)).Lock(testCtx(t))
	require.NoError(t, err)
	end := e.lead.Begin(h)
	require.NoError(t, e.Check(0))
	s.lease.SetDeadline(time.Now().Add(-10 * time.Second))
	require.ErrorIs(t, e.Check(9*time.Second), ErrSessionExpired)
	require.NoError(t, e.Check(time.Hour))
	end()
	require.NoError(t, e.Check(0))

	// A term that was released is not lost with the session.
	s = newTestSession(t, cluster.Client(t), WithTTL(time.Minute))
	h, err = NewMutex(s, lockName(t)).Lock(testCtx(t))
	require.NoError(t, err)
	defer e.lead.Begin(h)()
	require.NoError(t, h.Unlock(testCtx(t)))
	s.lease.SetDeadline(time.Now().Add(-10 * time.Second))
	require.NoError(t, e.Check(0))
}

// Run repeats after errors that can pass, with growing pauses. It returns an error that is a
// final refusal by etcd.
func TestElector_Refused(t *testing.T) {
	t.Parallel()
	c := cluster.Client(t)
	name := lockName(t)
	tap := etcdtest.NewTap()
	refuse := func(code codes.Code, err error) etcdtest.Fault {
		return func(context.Context, *etcdtest.Call) error { return status.Error(code, rpctypes.ErrorDesc(err)) }
	}
	stop := tap.Every("LeaseGrant", refuse(codes.ResourceExhausted, rpctypes.ErrGRPCNoSpace))
	a := runElector(t, newElector(t, cluster.Client(t, tap), name))
	began := time.Now()
	require.Eventually(t, func() bool { return tap.Calls("LeaseGrant") >= 4 }, hang, tick, "Run must go on")
	require.Greater(t, time.Since(began), lead.PauseMin*(1+2+4)/2, "the pauses must be at least half of the nominal ones")
	stop()
	term := a.leads(t)

	// Another client removes the candidate's entry.
	b := runElector(t, newElector(t, cluster.Client(t, tap), name))
	_, err := c.Delete(testCtx(t), queueIs(t, c, name, 2)[1])
	require.NoError(t, err)
	queueIs(t, c, name, 2)
	term.returns(nil)
	term = b.leads(t)

	stop = tap.Every("Txn", refuse(codes.PermissionDenied, rpctypes.ErrGRPCPermissionDenied))
	d := runElector(t, newElector(t, cluster.Client(t, tap), name))
	err = d.result(t)
	stop()
	require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
	require.ErrorContains(t, err, "readwrite")
	term.returns(nil)
	require.NoError(t, b.result(t))
}

func TestElector_BadInput(t *testing.T) {
	c := cluster.Client(t)
	lead := func(context.Context, *Held) error { t.Error("called"); return nil }
	for text, e := range map[string]*Elector{
		"client is nil":    newElector(t, nil, "a"),
		"made by a Client": {},
		"invalid lock":     newElector(t, c, "a/"),
		"has no function":  newElector(t, c, "a", WithOverrun(time.Second, nil)),
		"option is nil":    New(c).Elector("a", nil),
		"not UTF-8":        newElector(t, c, "a", WithValue("\xff")),
	} {
		require.ErrorContains(t, e.Run(testCtx(t), lead), text)
		_, err := e.Leader(testCtx(t))
		require.ErrorContains(t, err, text)
		n := 0
		for _, err := range e.Observe(testCtx(t)) {
			require.ErrorContains(t, err, text)
			n++
		}
		require.Equal(t, 1, n)
		require.False(t, e.IsLeader())
		require.NoError(t, e.Check(0))
	}
	for text, opt := range map[string]Option{"WithLease": WithLease(7), "TTL 0s": WithTTL(0), "logger is nil": WithLogger(nil)} {
		require.ErrorContains(t, newElector(t, c, "a", opt).Run(testCtx(t), lead), text)
	}
	require.ErrorContains(t, newElector(t, c, "a").Run(testCtx(t), nil), "lead is nil")

	a := runElector(t, newElector(t, c, lockName(t)))
	term := a.leads(t)
	require.ErrorContains(t, a.Run(testCtx(t), lead), "runs already")
	require.True(t, a.IsLeader())
	term.returns(nil)
	require.NoError(t, a.result(t))
}

// observe sends the leaders that Observe yields. Observe ends with an error; the channel is
// then closed, and err returns the error.
func observe(ctx context.Context, t testing.TB, e *Elector) (seen <-chan Entry, err func() error) {
	ch := make(chan Entry, 1000)
	var last error
	var done sync.WaitGroup
	done.Go(func() {
		defer close(ch)
		for leader, err := range e.Observe(ctx) {
			if last = err; err == nil {
				ch <- leader
			} else if leader != (Entry{}) {
				t.Error("Observe yields a leader together with an error")
			}
		}
	})
	return ch, func() error { done.Wait(); return last }
}

func nextLeader(t testing.TB, seen <-chan Entry) Entry {
	t.Helper()
	select {
	case e, ok := <-seen:
		require.True(t, ok, "Observe has ended")
		return e
	case <-time.After(hang):
		t.Fatal("Observe yields nothing")
		return Entry{}
	}
}

func TestElector_Observe(t *testing.T) {
	c := cluster.Client(t)
	name := lockName(t)
	ctx, cancel := context.WithCancel(testCtx(t))
	seen, err := observe(ctx, t, newElector(t, c, name))
	require.Equal(t, Entry{}, nextLeader(t, seen), "at first there is no leader")
	a := runElector(t, newElector(t, cluster.Client(t), name, WithOwner("a")))
	require.Equal(t, "a", nextLeader(t, seen).Owner)
	b := runElector(t, newElector(t, cluster.Client(t), name, WithOwner("b")))
	queueIs(t, c, name, 2)
	term := a.leads(t)
	term.returns(nil)
	got := nextLeader(t, seen)
	require.Equal(t, "b", got.Owner, "neither a waiting candidate nor an absent leader may be shown before")
	require.True(t, got.Holds)
	term = b.leads(t)
	require.Equal(t, term.held.Token(), got.Token)
	// Another term of the same elector.
	_, derr := c.Delete(testCtx(t), term.held.Key())
	require.NoError(t, derr)
	require.Equal(t, Entry{}, nextLeader(t, seen))
	term.returns(nil)
	got = nextLeader(t, seen)
	require.Equal(t, "b", got.Owner)
	require.Greater(t, got.Token, term.held.Token())
	b.leads(t).returns(nil)
	require.Equal(t, Entry{}, nextLeader(t, seen))
	// A reader is not a leader.
	h, rerr := NewRWMutex(newTestSession(t, c), name).RLock(testCtx(t))
	require.NoError(t, rerr)
	_, rerr = a.Leader(testCtx(t))
	require.ErrorIs(t, rerr, ErrElectionNoLeader)
	require.NoError(t, h.Unlock(testCtx(t)))
	cancel()
	require.ErrorIs(t, err(), context.Canceled)
	require.Empty(t, seen)

	n := 0
	for _, err := range a.Observe(testCtx(t)) {
		require.NoError(t, err)
		n++
		break
	}
	require.Equal(t, 1, n, "the loop must end with break")
}

// Observe makes nothing of the candidates that wait: there may be many, and each that comes or goes is a change.
func TestElector_ObserveManyCandidates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n, changes = 5000, 20
		f := newFakeEtcd()
		for i := range n {
			f.WriteOn(5, fmt.Sprintf(`{"owner":"%d"}`, i), fmt.Sprintf("a/%x", i+1))
		}
		ctx, cancel := context.WithCancel(t.Context())
		seen, _ := observe(ctx, t, New(f.Client(nil)).Elector("a"))
		require.Equal(t, "0", nextLeader(t, seen).Owner)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for i := range changes {
			f.Remove(fmt.Sprintf("a/%x", n-i))
			synctest.Wait()
		}
		runtime.ReadMemStats(&after)
		require.Less(t, (after.Mallocs-before.Mallocs)/changes, uint64(n), "for each change")
		require.Empty(t, seen)
		f.Remove("a/1")
		require.Equal(t, "1", nextLeader(t, seen).Owner)
		cancel()
	})
}

// During compactions, broken connections and leader changes, Observe shows only leaders that
// existed, in their order, and in the end the present state.
func TestElector_ObserveThroughFaults(t *testing.T) {
	t.Parallel()
	own := etcdtest.Start(t, etcdtest.WithMembers(3))
	proxy := own.Proxy(t)
	observer, err := own.NewClient(proxy)
	require.NoError(t, err)
	defer observer.Close()
	seen, _ := observe(t.Context(), t, newElector(t, observer, "a")) // all of this may take longer than a call
	require.Equal(t, Entry{}, nextLeader(t, seen))
	var existed sync.Map // by token: what etcd had, a late write too, where a request was repeated
	puts := own.Client(t).Watch(t.Context(), "a/", clientv3.WithPrefix(), clientv3.WithCreatedNotify(), clientv3.WithFilterDelete())
	<-puts
	go func() { // ends with the test's ctx
		for wr := range puts {
			for _, ev := range wr.Events {
				existed.Store(ev.Kv.CreateRevision, true)
			}
		}
	}()
	e := newElector(t, own.Client(t), "a", WithTTL(time.Minute))
	rounds := sample.Rounds(t, 18, 60) // in 18 each member leads
	for i := range rounds {
		err := e.Run(testCtx(t), func(context.Context, *Held) error { return nil })
		require.NoError(t, err)
		switch i % 6 {
		case 1:
			_, err := own.Compact(testCtx(t))
			require.NoError(t, err)
		case 3:
			proxy.Reset()
		case 5:
			require.NoError(t, own.MoveLeader(testCtx(t), i/6%3))
		}
	}
	// When this leader is shown, no earlier leader can be shown any more.
	a := runElector(t, e)
	term := a.leads(t)
	last, newest := Entry{}, int64(0)
	leaders, nones := 0, 0
	for last.Token != term.held.Token() {
		got := nextLeader(t, seen)
		require.NotEqual(t, last, got, "no state may be shown twice in a row")
		if got == (Entry{}) {
			nones++
		} else {
			leaders++
			require.Eventually(t, func() bool { _, ok := existed.Load(got.Token); return ok }, hang, tick, "only leaders that existed may be shown")
			require.Greater(t, got.Token, newest, "none may be shown again")
			newest = got.Token
		}
		last = got
	}
	term.returns(nil)
	require.Equal(t, Entry{}, nextLeader(t, seen), "in the end there is no leader")
	require.Empty(t, seen)
	t.Logf("shown: %d of %d leaders, and %d times no leader in between", leaders, rounds+1, nones)
}

// The elector must resign while etcd does not answer: Run returns when the lease must have expired. It returns what lead
// did if the term lasted until then, and ctx's error if the term was lost before.
func TestElector_ResignWithoutEtcd(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]error{"lead returns at once": nil, "lead returns late": context.Canceled} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			own := etcdtest.Start(t)
			a := runElector(t, newElector(t, own.Client(t), "a", WithTTL(5*time.Second)))
			term := a.leads(t)
			b := runElector(t, newElector(t, own.Client(t), "a", WithTTL(5*time.Second)))
			queueIs(t, own.Client(t), "a", 2)
			own.Member(0).Kill()
			require.NoError(t, term.held.Err(), "the machine stalls: the lease has expired before etcd was killed")
			a.cancel()
			b.cancel()
			if want != nil {
				closes(t, term.held.Done(), "its loss")
			}
			term.returns(nil)
			require.ErrorIs(t, b.result(t), context.Canceled)
			require.ErrorIs(t, a.result(t), want)
			require.False(t, term.held.Valid())
			require.NoError(t, own.Member(0).Restart(testCtx(t))) // without etcd the clients take seconds to close
		})
	}
}

// lead returns by itself during an outage, before its term is lost. Run returns too, although
// etcd can't confirm that the term lasted until then.
func TestElector_LeadReturnsWithoutEtcd(t *testing.T) {
	t.Parallel()
	own := etcdtest.Start(t)
	a := runElector(t, newElector(t, own.Client(t), "a", WithTTL(5*time.Second)))
	term := a.leads(t)
	own.Member(0).Kill()
	failed := errors.New("failed")
	term.returns(failed)
	require.ErrorIs(t, a.result(t), failed)
	require.NoError(t, own.Member(0).Restart(testCtx(t))) // without etcd the client takes seconds to close
}

// A value is published with the candidacy, from the start, and changed by the leader.
func TestElector_Value(t *testing.T) {
	c := cluster.Client(t)
	name := lockName(t)
	seen, _ := observe(testCtx(t), t, newElector(t, c, name))
	require.Equal(t, Entry{}, nextLeader(t, seen))
	a := runElector(t, newElector(t, c, name, WithOwner("a"), WithValue("10.0.0.1:80")))
	term := a.leads(t)
	b := runElector(t, newElector(t, c, name, WithOwner("b"), WithValue("10.0.0.2:80")))
	queueIs(t, c, name, 2)
	q, err := New(c).Inspect(testCtx(t), name)
	require.NoError(t, err)
	require.Equal(t, "10.0.0.2:80", q.Entries[1].Value)

	got := nextLeader(t, seen)
	require.Equal(t, []any{"a", "10.0.0.1:80", int64(1)}, []any{got.Owner, got.Value, got.Version}, "it is in the entry from the start")
	require.Equal(t, got.Token, got.ModRevision)
	require.NoError(t, term.held.SetValue(testCtx(t), "moved"))
	next := nextLeader(t, seen)
	require.Equal(t, []any{"a", "moved", int64(2), got.Token, got.Queued}, []any{next.Owner, next.Value, next.Version, next.Token, next.Queued})
	require.Greater(t, next.ModRevision, got.ModRevision)
	leader, err := a.Leader(testCtx(t))
	require.NoError(t, err)
	require.Equal(t, next, leader)
	term.returns(nil)
	require.Equal(t, "10.0.0.2:80", nextLeader(t, seen).Value)
	b.leads(t).returns(nil)
	require.ErrorIs(t, term.held.SetValue(testCtx(t), "late"), ErrNotHeld)
}

// An Elector of a session that exists ends with it, and leads in no other one.
func TestElector_OfASession(t *testing.T) {
	c := cluster.Client(t)
	name := lockName(t)
	s := newTestSession(t, c, WithOwner("me"))
	e := runElector(t, NewElector(s, name, WithValue("v")))
	term := e.leads(t)
	require.Same(t, s, term.held.Session())
	leader, err := e.Leader(testCtx(t))
	require.NoError(t, err)
	require.Equal(t, []any{"me", "v", s.Lease()}, []any{leader.Owner, leader.Value, leader.Lease})
	require.NoError(t, s.Close())
	<-term.ctx.Done()
	term.returns(nil)
	require.ErrorIs(t, e.result(t), ErrSessionClosed)
	require.ErrorContains(t, NewElector(nil, name).Run(testCtx(t), func(context.Context, *Held) error { return nil }), "session is nil")
}

// Elections of etcd's own package are seen with their values, and see those of Raw.
func TestElector_BesideConcurrency(t *testing.T) {
	t.Parallel()
	c := cluster.Client(t)
	name := lockName(t) + "/"
	theirs, err := concurrency.NewSession(c)
	require.NoError(t, err)
	t.Cleanup(func() { _ = theirs.Close() })
	old := concurrency.NewElection(theirs, name)
	e := newElector(t, c, name, WithTrailingSlash())
	seen, _ := observe(testCtx(t), t, e)
	require.Equal(t, Entry{}, nextLeader(t, seen))
	require.NoError(t, old.Campaign(testCtx(t), "theirs"))
	require.Equal(t, "theirs", nextLeader(t, seen).Value)
	require.NoError(t, old.Proclaim(testCtx(t), `{"owner":"x"}`))
	leader := nextLeader(t, seen)
	require.Equal(t, []string{`{"owner":"x"}`, "x"}, []string{leader.Value, leader.Owner})
	ours, err := NewMutex(newTestSession(t, c, WithTrailingSlash()), name).Raw("ours").Enqueue(testCtx(t))
	require.NoError(t, err)
	require.NoError(t, old.Resign(testCtx(t)))
	h, err := ours.Wait(testCtx(t))
	require.NoError(t, err)
	require.Equal(t, "ours", nextLeader(t, seen).Value)
	for _, value := range []string{"ours", "changed", ""} {
		require.NoError(t, h.SetValue(testCtx(t), value))
		got, err := old.Leader(testCtx(t))
		require.NoError(t, err)
		require.Equal(t, value, string(got.Kvs[0].Value))
		require.Equal(t, h.Token(), got.Kvs[0].CreateRevision)
	}
	require.NoError(t, h.Unlock(testCtx(t)))
	_, err = NewMutex(newTestSession(t, c), name).Lock(testCtx(t))
	require.ErrorIs(t, err, ErrInvalidName, "without the option such a name stays an error")
}

// A process that is restarted goes on with its term, or with its place in the queue, and its own value is published. A
// read lock of that name is no term.
func TestElector_Adopts(t *testing.T) {
	c := cluster.Client(t)
	name := lockName(t)
	first := make(chan *Held, 1)
	s := newTestSession(t, c)
	before := async(func() error {
		return NewElector(s, name, WithValue("10.0.0.1")).Run(testCtx(t), func(_ context.Context, term *Held) error {
			first <- term
			s.Orphan()
			return nil
		})
	})
	term := <-first
	require.ErrorIs(t, result(t, before), ErrSessionClosed)
	next := make(chan int64, 1)
	other := async(func() error {
		return NewElector(newTestSession(t, c), name).Run(testCtx(t), func(_ context.Context, term *Held) error {
			next <- term.Token()
			return nil
		})
	})
	queueIs(t, c, name, 2)
	elected := make(chan bool, 8)
	s = newTestSession(t, c, WithLease(s.Lease()), WithHooks(&Hooks{Granted: func(_ context.Context, i GrantedInfo) { elected <- i.Elector }}))
	e := NewElector(s, name, WithValue("10.0.0.2"))
	require.NoError(t, e.Run(testCtx(t), func(ctx context.Context, again *Held) error {
		require.Equal(t, []any{term.Token(), term.Key()}, []any{again.Token(), again.Key()})
		leader, err := e.Leader(ctx)
		require.NoError(t, err)
		require.Equal(t, "10.0.0.2", leader.Value)
		require.Empty(t, next)
		return nil
	}))
	require.True(t, <-elected)
	require.NoError(t, result(t, other))
	require.Greater(t, <-next, term.Token())
	require.NoError(t, e.Run(testCtx(t), func(context.Context, *Held) error { return nil }), "nothing is left to adopt")

	for _, reads := range []func(*Session) func(context.Context) (*Held, error){ // which does not exclude others that read
		func(s *Session) func(context.Context) (*Held, error) { return NewRWMutex(s, name).RLock },
		func(s *Session) func(context.Context) (*Held, error) {
			return NewMulti(s, Write(name+"-other"), Read(name)).Lock
		},
	} {
		harness.Take(t, reads(s))
		s = succeed(t, s, c)
		led := false
		err := NewElector(s, name).Run(testCtx(t), func(context.Context, *Held) error { led = true; return nil })
		require.ErrorContains(t, err, "for reading")
		require.False(t, led)
	}
}

// A full etcd can't publish the value of a term that was adopted, and Leader would show the address of the process before.
// So the term goes to the next candidate, whose value is there already, and the Elector campaigns until there is space.
func TestElector_AdoptsInAFullEtcd(t *testing.T) {
	c, tap := cluster.Client(t), etcdtest.NewTap()
	name := lockName(t)
	s := newTestSession(t, c)
	before, err := NewMutex(s, name).Lock(testCtx(t))
	require.NoError(t, err)
	standby := NewElector(newTestSession(t, c), name, WithValue("10.0.0.3"))
	leads, enough := make(chan int64, 1), make(chan struct{})
	other := async(func() error {
		return standby.Run(testCtx(t), func(_ context.Context, term *Held) error {
			leads <- term.Token()
			<-enough
			return nil
		})
	})
	queueIs(t, c, name, 2)
	s.Orphan()
	space := tap.Every("Txn", func(ctx context.Context, call *etcdtest.Call) error {
		if strings.Contains(fmt.Sprint(call.Request), "request_put") {
			return rpctypes.ErrGRPCNoSpace
		}
		return call.Send(ctx)
	})
	var log logtest.Log
	s = newTestSession(t, cluster.Client(t, tap), WithLease(s.Lease()), WithLogger(log.Logger()))
	e := NewElector(s, name, WithValue("10.0.0.2"))
	again := async(func() error {
		return e.Run(testCtx(t), func(ctx context.Context, term *Held) error {
			require.Greater(t, term.Token(), before.Token())
			leader, err := e.Leader(ctx)
			require.NoError(t, err)
			require.Equal(t, "10.0.0.2", leader.Value)
			return nil
		})
	})
	require.Eventually(t, func() bool { return len(leads) == 1 }, hang, tick)
	require.Greater(t, <-leads, before.Token())
	leader, err := e.Leader(testCtx(t))
	require.NoError(t, err)
	require.Equal(t, "10.0.0.3", leader.Value)
	require.Eventually(t, func() bool {
		return strings.Contains(strings.Join(log.Lines(), "\n"), "campaign failed, another one follows")
	}, hang, tick)
	space()
	close(enough)
	require.NoError(t, result(t, other))
	require.NoError(t, result(t, again))
}

// Run returns when etcd has confirmed that the place in the queue is gone, also if that place was adopted.
func TestElector_RunLeavesAnAdoptedPlace(t *testing.T) {
	for _, what := range []string{"own", "adopted"} {
		t.Run(what, func(t *testing.T) {
			onStage(t, func(st *stage) {
				st.f.Write("a/1")
				if what == "adopted" {
					st.f.WriteOn(5, "one", "a/5")
				}
				ctx, cancel := context.WithCancel(st.Context())
				done := async(func() error { return NewElector(st.s, "a").Run(ctx, func(context.Context, *Held) error { return nil }) })
				synctest.Wait()
				require.Len(st, st.f.There("a/"), 2)
				goOn := st.holdBack()
				cancel()
				synctest.Wait()
				select {
				case err := <-done:
					t.Errorf("Run has returned (%v), and its place is still there: %v", err, st.f.There("a/"))
					goOn()
				default:
					goOn()
					require.ErrorIs(st, <-done, context.Canceled)
				}
			})
		})
	}
}

// The same if ctx ends while the value of an adopted term is published.
func TestElector_RunLeavesAnAdoptedTerm(t *testing.T) {
	onStage(t, func(st *stage) {
		st.f.WriteOn(5, "one", "a/5")
		ctx, cancel := context.WithCancel(st.Context())
		goOn := st.holdBack()
		done := async(func() error {
			return NewElector(st.s, "a", WithValue("v")).Run(ctx, func(context.Context, *Held) error { return nil })
		})
		synctest.Wait()
		cancel()
		synctest.Wait()
		select {
		case err := <-done:
			t.Errorf("Run has returned (%v), and its term is still there: %v", err, st.f.There("a/"))
		default:
		}
		goOn()
	})
}

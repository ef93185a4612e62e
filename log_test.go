package etcdlock

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/outage"
	"github.com/etcdlock/etcdlock/internal/test/harness"
	"github.com/etcdlock/etcdlock/internal/test/logtest"
)

// Without faults a session logs only that it is up.
func TestLog_GoodTimes(t *testing.T) {
	t.Parallel()
	var log logtest.Log
	s, err := NewSession(testCtx(t), cluster.Client(t), WithTTL(time.Minute), WithLogger(log.Logger()))
	require.NoError(t, err)
	name := lockName(t)
	h := mustLock(t, s, name)
	h.Done()
	tk, err := NewMutex(s, name).Enqueue(testCtx(t))
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(testCtx(t), 50*time.Millisecond)
	defer cancel()
	_, err = NewMutex(s, name).Lock(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NoError(t, s.Refresh(testCtx(t)))
	require.NoError(t, h.Unlock(testCtx(t)))
	h, err = tk.Wait(testCtx(t))
	require.NoError(t, err)
	h.Done()
	require.NoError(t, NewRWMutex(s, name+"2").Do(testCtx(t), func(ctx context.Context, h *Held) error { return h.Downgrade(ctx) }))
	mustLock(t, s, name+"3")
	require.NoError(t, s.Close(), "Close must succeed while a lock is held")
	require.ErrorIs(t, h.Unlock(testCtx(t)), ErrSessionClosed)
	require.Equal(t, []string{logtest.Up}, log.Messages())
	_, err = NewSession(testCtx(t), cluster.Client(t), WithLease(12345), WithLogger(log.Logger()))
	require.Error(t, err)
	require.Equal(t, []string{logtest.Up}, log.Messages(), "a session that was never up must not be logged as lost")
}

// failWatches makes all open and new watches of a client fail as soon as etcd sends something
// for one of them. It counts the failures.
func failWatches(w *harness.Wire) *atomic.Int64 {
	n := new(atomic.Int64)
	w.OnRecv(func(method string, _ any) (bool, error) {
		if method != "Watch" {
			return true, nil
		}
		n.Add(1)
		return false, rpctypes.ErrGRPCNoLeader
	})
	return n
}

// An outage is logged with one line at its beginning and one at its end. A lock that somebody removes has a
// line of its own; those that are lost with the session have one together. The number of waits and holds, and
// of their attempts, makes no difference.
func TestLog_Outage(t *testing.T) {
	t.Parallel()
	c, w := wiredClient(t, cluster)
	var log logtest.Log
	s := newTestSession(t, c, WithTTL(time.Minute), WithLogger(log.Logger()))
	name := lockName(t)
	var holds []*Held
	var tickets []*Ticket
	failed := failWatches(w)
	for i := range 3 {
		h := mustLock(t, s, fmt.Sprint(name, i))
		h.Done()
		tk, err := NewMutex(s, h.label()).Enqueue(testCtx(t))
		require.NoError(t, err)
		holds, tickets = append(holds, h), append(tickets, tk)
	}
	require.Eventually(t, func() bool { return failed.Load() > 12 }, hang, tick)
	log.Require(t, logtest.Up, logtest.Outage)
	w.OnRecv(nil)
	log.Require(t, logtest.Up, logtest.Outage, logtest.Over)
	require.Regexp(t, `lease=`+s.lease.String()+` lock=`+name+`. endpoints=.* error="(the watch was not opened: )?no watch tells of etcd's changes`, log.Lines()[1])

	// Another outage: an event breaks all watches, and it is the deletion of one of the locks.
	failed = failWatches(w)
	_, err := cluster.Client(t).Delete(testCtx(t), holds[0].Key())
	require.NoError(t, err)
	<-holds[0].Done()
	<-tickets[0].Done()
	require.Eventually(t, func() bool { return failed.Load() > 12 }, hang, tick)
	require.Eventually(t, func() bool { return len(log.Lines()) == 5 }, hang, tick)
	loss := slices.Index(log.Messages(), logtest.Loss) // the outage is told of after a while, most likely later
	require.ElementsMatch(t, []string{logtest.Loss, logtest.Outage}, log.Messages()[3:])
	w.OnRecv(nil)
	require.Eventually(t, func() bool { return len(log.Lines()) == 6 }, hang, tick)
	require.Equal(t, logtest.Over, log.Messages()[5])
	require.Contains(t, log.Lines()[loss], fmt.Sprintf(`lock=%s key=%s token=%d cause="its entry was removed"`, holds[0].label(), holds[0].Key(), holds[0].Token()))

	s.lease.NotFound() // a revocation may be found by a watch first, and on a busy machine by one hold after the other
	require.ErrorIs(t, s.Refresh(testCtx(t)), ErrSessionExpired)
	require.NoError(t, s.Close())
	lines := log.Messages()
	require.Equal(t, []string{logtest.Lost}, lines[6:])
	// Two locks are held, and one is granted but not claimed.
	require.Contains(t, log.Lines()[6], fmt.Sprintf(`locks=3 lost="%s (token %d), %s (token %d), %s (token %d)"`,
		holds[0].label(), tickets[0].h.rev, holds[1].label(), holds[1].Token(), holds[2].label(), holds[2].Token()))
	require.ErrorIs(t, holds[1].Unlock(testCtx(t)), ErrLost)
	require.Len(t, log.Messages(), 7)
}

// The log also says when an outage concerns no wait or hold any more. The end of the session
// makes no such line.
func TestLog_OutageConcernsNobody(t *testing.T) {
	t.Parallel()
	c, w := wiredClient(t, cluster)
	var log logtest.Log
	s := newTestSession(t, c, WithTTL(time.Minute), WithLogger(log.Logger()))
	s.etcd.NeverHedge() // an entry that may have been written twice is looked for, by a read
	require.Equal(t, outage.Blip, s.lease.Outages.All.Blip)
	name := lockName(t)
	lines := []string{logtest.Up}
	requireNext := func(line string) {
		t.Helper()
		lines = append(lines, line)
		log.Require(t, lines...)
	}
	failWatches(w)
	h := mustLock(t, s, name)
	tk, err := NewMutex(s, name).Enqueue(testCtx(t))
	require.NoError(t, err)
	requireNext(logtest.Outage)
	w.OnRecv(nil)
	requireNext(logtest.Over)
	require.NoError(t, tk.Cancel(testCtx(t)))

	// This outage does not end. Reads fail too: who leaves after one that etcd has answered has recovered.
	failWatches(w)
	w.OnUnary(func(ctx context.Context, method string, req any, send func(context.Context) error) error {
		txn, ok := req.(*pb.TxnRequest)
		if method == "Range" || ok && !slices.ContainsFunc(txn.Success, func(op *pb.RequestOp) bool { return op.GetRequestRange() == nil }) {
			return rpctypes.ErrGRPCNoLeader
		}
		return send(ctx)
	})
	tk, err = NewMutex(s, name).Enqueue(testCtx(t))
	require.NoError(t, err)
	requireNext(logtest.Outage)
	require.NoError(t, tk.Cancel(testCtx(t)))
	requireNext(logtest.Nobody)
	h.Done()
	requireNext(logtest.Outage)
	require.NoError(t, h.Unlock(testCtx(t)))
	requireNext(logtest.Nobody)
	mustLock(t, s, name).Done()
	_, err = NewMutex(s, name).Enqueue(testCtx(t))
	require.NoError(t, err)
	requireNext(logtest.Outage)
	require.NoError(t, s.Close())
	log.Require(t, lines...)
}

// A watch that ends because its session or client has ended is not an outage, even if this is
// noticed before the watch's own ctx has ended.
func TestLog_EndIsNoOutage(t *testing.T) {
	t.Parallel()
	for what, finish := range map[string]func(s *Session, cancel func()){
		"nothing ended": func(*Session, func()) {},
		"ctx":           func(_ *Session, cancel func()) { cancel() },
		"session":       func(s *Session, _ func()) { s.lease.End(ErrSessionClosed, "test") },
		"client":        func(s *Session, _ func()) { _ = s.etcd.Close() },
	} {
		var log logtest.Log
		client, err := cluster.NewClient()
		require.NoError(t, err)
		s := makeSession(client, config{lease: 1, ttl: time.Minute, log: log.Logger()})
		ctx, cancel := context.WithCancel(testCtx(t))
		defer cancel()
		finish(s, cancel)
		out := s.lease.Outages.Outage("")
		out.Start(ctx, etcd.ErrWatch)
		require.Equal(t, what == "nothing ended", len(log.Lines()) > 0, what)
		s.lease.NotFound()
		s.lease.End(ErrSessionClosed, "test")
		_ = client.Close()
	}
}

// An outage that takes the session has three lines, however many locks are held, waited for and looked at:
// when it begins, when the session is lost, with the first of the locks, and when the next session is up. Each
// hold's hook is called as before.
func TestLog_OutageTakesTheSession(t *testing.T) {
	t.Parallel()
	const holds = 12
	p := cluster.Proxy(t)
	var log logtest.Log
	r := &recorder{}
	locks := newTestClient(t, cluster.Client(t, p), WithTTL(8*time.Second), WithLogger(log.Logger()), WithHooks(r.hooks()))
	name := lockName(t)
	var held []*Held
	for i := range holds {
		h, err := locks.Mutex(fmt.Sprint(name, i)).Lock(testCtx(t))
		require.NoError(t, err)
		if i%2 == 0 {
			h.Done()
		}
		held = append(held, h)
	}
	h, err := locks.Mutex(name).Lock(testCtx(t)) // which nobody loses
	require.NoError(t, err)
	require.NoError(t, h.Unlock(testCtx(t)))
	granted := inBackground(t, locks.Mutex(held[0].label()).Lock)
	require.Eventually(t, func() bool { return len(entries(t, cluster.Client(t), held[0].label())) == 2 }, hang, tick)

	var before []string
	require.Eventually(t, func() bool { // a machine that stalls may have an outage of its own
		before = log.Messages()
		return before[len(before)-1] != logtest.Outage
	}, hang, tick)
	p.Refuse()
	p.Reset()
	<-held[0].s.Done()
	for _, h := range held {
		require.ErrorIs(t, h.Err(), ErrSessionExpired)
		require.ErrorIs(t, h.Unlock(testCtx(t)), ErrLost)
	}
	p.Accept()
	require.NoError(t, (<-granted).Unlock(testCtx(t)))
	reported(t, locks.liveSession())
	require.Equal(t, logtest.Up, before[0])
	require.Equal(t, []string{logtest.Outage, logtest.Lost, logtest.Up}, log.Messages()[len(before):])
	require.Equal(t, outage.Blip, locks.liveSession().lease.Outages.All.Blip)
	list := ""
	for _, h := range held[:5] {
		list += fmt.Sprintf("%s (token %d), ", h.label(), h.Token())
	}
	lines := log.Lines()[len(before):]
	require.Contains(t, lines[1], fmt.Sprintf(`locks=%d lost="%s"`, holds, strings.TrimSuffix(list, ", ")))
	require.Contains(t, lines[2], "outage=")
	lost := 0
	for _, e := range r.all() {
		if e.what == "lost" {
			lost++
		}
	}
	require.Equal(t, holds, lost)
}

// A lock that a session has is not said to be data, by the first Try nor by the next one, which only reads. (Etcd 3.7 leaves the
// lease out of a reply that has keys only.)
func TestTry_LockedByASession(t *testing.T) {
	t.Parallel()
	c := cluster.Client(t)
	name := lockName(t)
	_, err := NewRWMutex(newTestSession(t, c), name).Lock(testCtx(t))
	require.NoError(t, err)
	locks := newTestClient(t, c)
	for range 3 {
		_, err = locks.Mutex(name).TryLock(testCtx(t))
		require.EqualError(t, err, fmt.Sprintf("etcdlock: try to lock %q: locked by another", name))
	}
}

// Data that somebody keeps under the name of a lock blocks it, and the wait says what it is: the log after a second,
// and the error of the wait. So does the error of a Try. Whoever looks at the queue sees the value.
func TestLog_DataUnderAName(t *testing.T) {
	t.Parallel()
	c := cluster.Client(t)
	var log logtest.Log
	locks := newTestClient(t, c, WithLogger(log.Logger()))
	name := lockName(t)
	key := name + "/4711"
	const order = `{"owner":"ann","total":12}`
	put, err := c.Put(testCtx(t), key, order)
	require.NoError(t, err)

	_, err = locks.Mutex(name).TryLock(testCtx(t))
	require.ErrorIs(t, err, ErrLocked)
	require.EqualError(t, err, fmt.Sprintf("etcdlock: try to lock %q: locked by another: %s has no lease, so it may be data; keep data and lock names apart", name, key))

	ctx, cancel := context.WithCancel(testCtx(t))
	defer cancel()
	tk, err := locks.Mutex(name).Enqueue(testCtx(t))
	require.NoError(t, err)
	left := async(func() error { _, err := locks.Mutex(name).Lock(ctx); return err })
	log.Require(t, logtest.Up, "WARN a lock waits for a key that has no lease: it looks like data; keep data and lock names apart")
	require.Contains(t, log.Lines()[1], "lock="+name+" key="+key)
	require.Eventually(t, func() bool { return len(entries(t, c, name)) == 3 }, hang, tick)
	q, err := locks.Inspect(testCtx(t), name)
	require.NoError(t, err)
	awaitWhom(t, locks, name, q.Entries[2].Token)
	cancel()
	require.EqualError(t, result(t, left), fmt.Sprintf("etcdlock: lock %q: 2 ahead, held by %s (token %d); %s has no lease: it looks like data; keep data and lock names apart: context canceled",
		name, key, put.Header.Revision, key))

	require.Equal(t, Entry{Name: name, Key: key, Token: put.Header.Revision, Holds: true, Data: true, Value: order,
		ModRevision: put.Header.Revision, Version: 1}, q.Entries[0])
	require.False(t, q.Entries[1].Data)
	require.Empty(t, q.Entries[1].Value)
	require.NoError(t, tk.Cancel(testCtx(t)))
	_, err = c.Delete(testCtx(t), key)
	require.NoError(t, err)
}

// A session that was lost has one cause: that of a renewal which failed is one only if time was up.
func TestLog_OneCause(t *testing.T) {
	t.Parallel()
	var log logtest.Log
	s := newTestSession(t, cluster.Client(t), WithLogger(log.Logger()))
	s.lease.End(ErrSessionExpired, "test")
	log.Require(t, logtest.Up, logtest.Lost)
	s.sessionEnded("lease not found", context.DeadlineExceeded)
	s.sessionEnded("deadline passed", context.DeadlineExceeded)
	reported(t, s)
	require.NotContains(t, log.Lines()[2], "error=")
	require.Contains(t, log.Lines()[3], `error="context deadline exceeded"`)
}

// A release that the session's end overtakes has a line: the lock is not among those that the session lost.
func TestLog_ReleaseOvertaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeEtcd()
		s := f.session(1)
		var log logtest.Log
		s.config.log = log.Logger()
		h, err := NewMutex(s, "a").Lock(context.Background())
		require.NoError(t, err)
		f.Step = func(context.Context, string) error { return rpctypes.ErrGRPCNoLeader }
		time.AfterFunc(10*time.Second, func() { s.lease.End(ErrSessionExpired, "the test says so") })
		require.ErrorIs(t, h.Unlock(context.Background()), ErrLost)
		s.lease.NotFound()
		synctest.Wait()
		require.Contains(t, log.Lines(), fmt.Sprintf(`level=WARN msg="lock lost" lock=a key=a/1 token=%d cause="lock lost: session expired"`, h.Token()))
	})
}

// A session that is lost names each hold once, a Multi too, and no acquisition that waits.
func TestLog_LostHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeEtcd().session(1)
		var log logtest.Log
		s.config.log = log.Logger()
		h, err := NewMulti(s, Write("a"), Write("b")).Lock(t.Context())
		require.NoError(t, err)
		_, err = NewMutex(s, "b").Enqueue(t.Context())
		require.NoError(t, err)
		s.lease.End(ErrSessionExpired, "the test says so")
		s.sessionEnded("the test says so", nil)
		s.lease.NotFound()
		synctest.Wait()
		require.Contains(t, log.Lines()[0], fmt.Sprintf(`locks=1 lost="a (token %d)"`, h.Token()))
	})
}

// A transaction under a lock that a member leaves without an answer has a line, once.
func TestLog_LateTxn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeEtcd()
		s := f.session(1)
		var log logtest.Log
		s.lease.Outages.Log = log.Logger()
		h, err := NewMutex(s, "a").Lock(context.Background())
		require.NoError(t, err)
		hangs := outage.LateAfter / 3 // before and after it is carried out
		f.Step = func(ctx context.Context, _ string) error { return etcd.Sleep(ctx, hangs) }
		_, err = h.Txn(context.Background()).Commit()
		require.NoError(t, err)
		require.Empty(t, log.Lines())
		hangs = time.Minute
		_, err = h.Txn(context.Background()).Commit()
		require.NoError(t, err)
		require.Equal(t, []string{"WARN a transaction under a lock has no answer from etcd yet"}, log.Messages())
		require.Contains(t, log.Lines()[0], fmt.Sprintf("lock=a token=%d waits=5s", h.Token()))
		s.lease.End(ErrSessionClosed, "the test is over")
		s.lease.NotFound()
	})
}

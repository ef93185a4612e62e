package etcdlock

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/etcdlock/etcdlock/internal/etcd"
)

// logged stores the lines of a logger.
type logged struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logged) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey || a.Key == "lasted" {
			return slog.Attr{}
		}
		return a
	}}))
}

func (l *logged) lines() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Split(strings.TrimSuffix(l.buf.String(), "\n"), "\n")
}

// messages returns the levels and messages of the lines.
func (l *logged) messages() []string {
	msg := regexp.MustCompile(`^level=(\S+) msg="?(.*?)("| \w+=|$)`)
	var out []string
	for _, line := range l.lines() {
		m := msg.FindStringSubmatch(line)
		out = append(out, m[1]+" "+m[2])
	}
	return out
}

const (
	logUp     = "INFO session up"
	logLost   = "WARN session lost"
	logLoss   = "WARN lock lost"
	logOutage = "WARN etcd outage: locks wait until it is over"
	logOver   = "INFO etcd outage is over"
	logNobody = "INFO etcd outage concerns nobody anymore"
)

// Without faults a session logs only that it is up.
func TestLog_GoodTimes(t *testing.T) {
	t.Parallel()
	var log logged
	s, err := NewSession(testCtx(t), cluster.Client(t), WithTTL(time.Minute), WithLogger(log.logger()))
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
	require.Equal(t, []string{logUp}, log.messages())
	_, err = NewSession(testCtx(t), cluster.Client(t), WithLease(12345), WithLogger(log.logger()))
	require.Error(t, err)
	require.Equal(t, []string{logUp}, log.messages(), "a session that was never up must not be logged as lost")
}

// failWatches makes all open and new watches of a client fail as soon as etcd sends something
// for one of them. It counts the failures.
func failWatches(w *wire) *atomic.Int64 {
	n := new(atomic.Int64)
	w.onRecv(func(method string, _ any) (bool, error) {
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
	var log logged
	s := newTestSession(t, c, WithTTL(time.Minute), WithLogger(log.logger()))
	name := lockName(t)
	var holds []*Held
	var tickets []*Ticket
	failed := failWatches(w)
	for i := range 3 {
		h := mustLock(t, s, fmt.Sprint(name, i))
		h.Done()
		tk, err := NewMutex(s, h.name).Enqueue(testCtx(t))
		require.NoError(t, err)
		holds, tickets = append(holds, h), append(tickets, tk)
	}
	require.Eventually(t, func() bool { return failed.Load() > 12 }, hang, tick)
	require.Equal(t, []string{logUp, logOutage}, log.messages())
	w.onRecv(nil)
	requireLines(t, &log, logUp, logOutage, logOver)
	require.Regexp(t, `lease=`+s.leaseString()+` lock=`+name+`. endpoints=.* error="watch ended`, log.lines()[1])

	// Another outage: an event breaks all watches, and it is the deletion of one of the locks.
	failed = failWatches(w)
	_, err := cluster.Client(t).Delete(testCtx(t), holds[0].Key())
	require.NoError(t, err)
	<-holds[0].Done()
	<-tickets[0].Done()
	require.Eventually(t, func() bool { return failed.Load() > 12 }, hang, tick)
	w.onRecv(nil)
	requireLines(t, &log, logUp, logOutage, logOver, logOutage, logLoss, logOver)
	require.Contains(t, log.lines()[4], fmt.Sprintf(`lock=%s key=%s token=%d cause="lock lost"`, holds[0].name, holds[0].Key(), holds[0].Token()))

	revoke(t, s)
	require.ErrorIs(t, s.Refresh(testCtx(t)), ErrSessionExpired)
	require.NoError(t, s.Close())
	lines := log.messages()
	require.Equal(t, []string{logLost}, lines[6:])
	// Two locks are held, and one is granted but not claimed.
	require.Contains(t, log.lines()[6], fmt.Sprintf(`locks=3 lost="%s (token %d), %s (token %d), %s (token %d)"`,
		holds[0].name, tickets[0].h.rev, holds[1].name, holds[1].Token(), holds[2].name, holds[2].Token()))
	require.ErrorIs(t, holds[1].Unlock(testCtx(t)), ErrLost)
	require.Len(t, log.messages(), 7)
}

func requireLines(t *testing.T, log *logged, want ...string) {
	t.Helper()
	assert.Eventually(t, func() bool { return len(log.messages()) >= len(want) }, hang, tick)
	require.Equal(t, want, log.messages())
}

// The log also says when an outage concerns no wait or hold any more. The end of the session
// makes no such line.
func TestLog_OutageConcernsNobody(t *testing.T) {
	t.Parallel()
	c, w := wiredClient(t, cluster)
	var log logged
	s := newTestSession(t, c, WithTTL(time.Minute), WithLogger(log.logger()))
	name := lockName(t)
	lines := []string{logUp}
	requireNext := func(line string) {
		t.Helper()
		lines = append(lines, line)
		requireLines(t, &log, lines...)
	}
	failWatches(w)
	h := mustLock(t, s, name)
	tk, err := NewMutex(s, name).Enqueue(testCtx(t))
	require.NoError(t, err)
	requireNext(logOutage)
	w.onRecv(nil)
	requireNext(logOver)
	require.NoError(t, tk.Cancel(testCtx(t)))

	failWatches(w) // this outage does not end
	tk, err = NewMutex(s, name).Enqueue(testCtx(t))
	require.NoError(t, err)
	requireNext(logOutage)
	require.NoError(t, tk.Cancel(testCtx(t)))
	requireNext(logNobody)
	h.Done()
	requireNext(logOutage)
	require.NoError(t, h.Unlock(testCtx(t)))
	requireNext(logNobody)
	mustLock(t, s, name).Done()
	_, err = NewMutex(s, name).Enqueue(testCtx(t))
	require.NoError(t, err)
	requireNext(logOutage)
	require.NoError(t, s.Close())
	requireLines(t, &log, lines...)
}

// A watch that ends because its session or client has ended is not an outage, even if this is
// noticed before the watch's own ctx has ended.
func TestLog_EndIsNoOutage(t *testing.T) {
	t.Parallel()
	for what, finish := range map[string]func(s *Session, cancel func()){
		"nothing ended": func(*Session, func()) {},
		"ctx":           func(_ *Session, cancel func()) { cancel() },
		"session":       func(s *Session, _ func()) { s.terminate(ErrSessionClosed, "test") },
		"client":        func(s *Session, _ func()) { _ = s.etcd.Close() },
	} {
		var log logged
		client, err := cluster.NewClient()
		require.NoError(t, err)
		s := makeSession(client, config{lease: 1, ttl: time.Minute, log: log.logger()})
		ctx, cancel := context.WithCancel(testCtx(t))
		defer cancel()
		finish(s, cancel)
		tr := outage{e: &entry{s: s}}
		tr.start(ctx, etcd.ErrWatch)
		require.Equal(t, what == "nothing ended", tr.open, what)
		require.Equal(t, tr.open, log.buf.Len() > 0, what)
		s.endLease()
		s.terminate(ErrSessionClosed, "test")
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
	var log logged
	r := &recorder{}
	locks := newTestClient(t, cluster.Client(t, p), WithTTL(2*time.Second), WithLogger(log.logger()), WithHooks(r.hooks()))
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
	granted := inBackground(t, locks.Mutex(held[0].name).Lock)
	require.Eventually(t, func() bool { return len(entries(t, cluster.Client(t), held[0].name)) == 2 }, hang, tick)

	p.Refuse()
	p.Reset()
	<-held[0].s.Done()
	for _, h := range held {
		require.ErrorIs(t, h.Err(), ErrSessionExpired)
		require.ErrorIs(t, h.Unlock(testCtx(t)), ErrLost)
	}
	p.Accept()
	require.NoError(t, (<-granted).Unlock(testCtx(t)))
	require.Equal(t, []string{logUp, logOutage, logLost, logUp}, log.messages())
	list := ""
	for _, h := range held[:5] {
		list += fmt.Sprintf("%s (token %d), ", h.name, h.Token())
	}
	require.Contains(t, log.lines()[2], fmt.Sprintf(`locks=%d lost="%s%d more"`, holds, list, holds-5))
	require.Contains(t, log.lines()[3], "outage=")
	lost := 0
	for _, e := range r.all() {
		if e.what == "lost" {
			lost++
		}
	}
	require.Equal(t, holds, lost)
	held[0].s.mu.Lock()
	defer held[0].s.mu.Unlock()
	require.Empty(t, held[0].s.holds, "a session that was lost must keep none")
}

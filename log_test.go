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

// logged keeps the lines of a logger.
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

// messages are the lines' levels and messages.
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
	logUp      = "INFO session up"
	logLost    = "WARN session lost"
	logLoss    = "WARN lock lost"
	logTrouble = "WARN etcd outage: waits and watched holds keep trying"
	logOver    = "INFO etcd outage is over"
	logNobody  = "INFO etcd outage concerns nobody anymore"
)

// In good times a session logs that it is up, and nothing else.
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
	require.NoError(t, s.Close(), "also with what is still held")
	require.ErrorIs(t, h.Unlock(testCtx(t)), ErrSessionClosed)
	require.Equal(t, []string{logUp}, log.messages())
	_, err = NewSession(testCtx(t), cluster.Client(t), WithLease(12345), WithLogger(log.logger()))
	require.Error(t, err)
	require.Equal(t, []string{logUp}, log.messages(), "what was never up is not lost")
}

// failWatches makes every watch of a client fail, opened and to be opened, as soon
// as etcd sends something for one of them. It counts the failures.
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

// A run through trouble: a line at its beginning, a line at its end, a line for
// what is lost, however many are concerned and however often they try.
func TestLog_Trouble(t *testing.T) {
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
	require.Equal(t, []string{logUp, logTrouble}, log.messages())
	w.onRecv(nil)
	requireLines(t, &log, logUp, logTrouble, logOver)
	require.Regexp(t, `lease=`+s.leaseString()+` lock=`+name+`. error="watch ended`, log.lines()[1])

	// Again, by what breaks them all, and takes one of them.
	failed = failWatches(w)
	_, err := cluster.Client(t).Delete(testCtx(t), holds[0].Key())
	require.NoError(t, err)
	<-holds[0].Done()
	<-tickets[0].Done()
	require.Eventually(t, func() bool { return failed.Load() > 12 }, hang, tick)
	w.onRecv(nil)
	requireLines(t, &log, logUp, logTrouble, logOver, logTrouble, logLoss, logOver)
	require.Contains(t, log.lines()[4], fmt.Sprintf(`lock=%s key=%s token=%d cause="lock lost"`, holds[0].name, holds[0].Key(), holds[0].Token()))

	revoke(t, s)
	require.ErrorIs(t, s.Refresh(testCtx(t)), ErrSessionExpired)
	require.NoError(t, s.Close())
	lines := log.messages()
	require.Len(t, lines, 10)
	require.ElementsMatch(t, []string{logLost, logLoss, logLoss, logLoss}, lines[6:], "two are held, and one that nobody has claimed")
	require.ErrorIs(t, holds[1].Unlock(testCtx(t)), ErrLost)
	require.Len(t, log.messages(), 10)
}

func requireLines(t *testing.T, log *logged, want ...string) {
	t.Helper()
	assert.Eventually(t, func() bool { return len(log.messages()) >= len(want) }, hang, tick)
	require.Equal(t, want, log.messages())
}

// Trouble that nobody is in anymore is closed in the log too; the end of the
// session closes it by itself.
func TestLog_TroubleIsLeft(t *testing.T) {
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
	requireNext(logTrouble)
	w.onRecv(nil)
	requireNext(logOver)
	require.NoError(t, tk.Cancel(testCtx(t)))

	failWatches(w) // from which nothing recovers
	tk, err = NewMutex(s, name).Enqueue(testCtx(t))
	require.NoError(t, err)
	requireNext(logTrouble)
	require.NoError(t, tk.Cancel(testCtx(t)))
	requireNext(logNobody)
	h.Done()
	requireNext(logTrouble)
	require.NoError(t, h.Unlock(testCtx(t)))
	requireNext(logNobody)
	mustLock(t, s, name).Done()
	_, err = NewMutex(s, name).Enqueue(testCtx(t))
	require.NoError(t, err)
	requireNext(logTrouble)
	require.NoError(t, s.Close())
	requireLines(t, &log, lines...)
}

// A watch that ends since the session or the client has is in no trouble, even
// where that is seen before its own ctx has ended.
func TestLog_TheEndIsNoTrouble(t *testing.T) {
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

package etcdlock

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/loopback"
)

// Rows I11 and I13: what follows an outage, and what is said of one.

// patient has gRPC pause for an hour between two attempts to connect, as it does for up to two minutes after
// a long outage.
var patient = etcdtest.WithClientConfig(func(cfg *clientv3.Config) {
	cfg.DialOptions = append(cfg.DialOptions, grpc.WithConnectParams(grpc.ConnectParams{
		Backoff: backoff.Config{BaseDelay: time.Hour, Multiplier: 1, MaxDelay: time.Hour}, MinConnectTimeout: time.Second}))
})

// away cuts the proxy's client off, until it has found that it can't connect.
func away(t *testing.T, p *etcdtest.Proxy, c *clientv3.Client) (back func()) {
	t.Helper()
	p.Refuse()
	p.Reset()
	require.Eventually(t, func() bool { return c.ActiveConnection().GetState().String() == "TRANSIENT_FAILURE" }, hang, tick)
	return p.Accept
}

// A session that makes no request has its connection back before it needs it: its wait hears of the release,
// and its hold of the loss.
func TestFault_I11_WaitsAndHolds(t *testing.T) {
	t.Parallel()
	other := cluster.Client(t)
	for what, test := range map[string]func(t *testing.T, s *Session, name string) (then func()){
		"wait": func(t *testing.T, s *Session, name string) func() {
			h := mustLock(t, newTestSession(t, other, WithTTL(time.Minute)), name)
			granted := inBackground(t, NewMutex(s, name).Lock)
			require.Eventually(t, func() bool { return len(entries(t, other, name)) == 2 }, hang, tick)
			return func() {
				require.NoError(t, h.Unlock(testCtx(t)))
				h2 := <-granted
				require.NotNil(t, h2)
				require.NoError(t, h2.Unlock(testCtx(t)))
			}
		},
		"hold": func(t *testing.T, s *Session, name string) func() {
			h := mustLock(t, s, name)
			h.Done()
			return func() {
				_, err := other.Delete(testCtx(t), h.Key())
				require.NoError(t, err)
				<-h.Done()
				require.ErrorIs(t, h.Err(), ErrLost)
			}
		},
		"request": func(t *testing.T, s *Session, name string) func() {
			granted := make(chan *Held, 1)
			time.AfterFunc(10*time.Millisecond, func() {
				h, err := NewMutex(s, name).Lock(testCtx(t))
				if err != nil {
					t.Error(err)
				}
				granted <- h
			})
			return func() { require.NoError(t, (<-granted).Unlock(testCtx(t))) }
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			p := cluster.Proxy(t)
			c := cluster.Client(t, p, patient)
			then := test(t, newTestSession(t, c, WithTTL(10*hang)), lockName(t)) // no renewal is due
			back := away(t, p, c)
			time.AfterFunc(100*time.Millisecond, back)
			then()
		})
	}
}

// The client is connected, to a member that is cut off from the others, and paused for those.
func TestFault_I11_BehindACutOffMember(t *testing.T) {
	t.Parallel()
	own := etcdtest.Start(t, etcdtest.WithMembers(3))
	first, others := own.Proxy(t, 0), own.Proxy(t, 1, 2)
	c := own.Client(t, first, others, patient)
	s := newTestSession(t, c, WithTTL(12*time.Second))
	h := mustLock(t, s, "a")
	others.Refuse()
	others.Reset()
	own.Member(0).Isolate()
	sent := s.Deadline()
	time.AfterFunc(time.Until(sent)/2, others.Accept)
	require.Eventually(t, func() bool { return s.Deadline().After(sent) || s.Err() != nil }, hang, tick)
	require.NoError(t, h.Check(testCtx(t)))
}

// An outage that is shorter than what is left of the TTL costs no session, and what it holds stays.
func TestFault_I11_TheSessionSurvives(t *testing.T) {
	t.Parallel()
	p := cluster.Proxy(t)
	c := cluster.Client(t, p, patient)
	s := newTestSession(t, c, WithTTL(6*time.Second))
	h := mustLock(t, s, lockName(t))
	back := away(t, p, c)
	sent := s.Deadline()
	time.AfterFunc(time.Until(sent)/3, back)
	require.Eventually(t, func() bool { return s.Deadline().After(sent) }, hang, tick)
	require.NoError(t, h.Check(testCtx(t)))
	require.NoError(t, h.Unlock(testCtx(t)))
}

// After one that is longer, a session is granted, and locks can be had, when etcd is back: who waited has it,
// and who comes. A client that etcd was away from when it was made is no other.
func TestFault_I11_TheNextSession(t *testing.T) {
	t.Parallel()
	for what, first := range map[string]bool{"from the start": true, "later": false} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			p := cluster.Proxy(t)
			if first {
				p.Refuse()
			}
			c := cluster.Client(t, p, patient)
			locks := newTestClient(t, c, WithTTL(time.Second))
			name := lockName(t)
			back := p.Accept
			if !first {
				h, err := locks.Mutex(name).Lock(testCtx(t))
				require.NoError(t, err)
				back = away(t, p, c)
				<-h.s.Done()
			}
			granted := inBackground(t, locks.Mutex(name).Lock)
			time.AfterFunc(100*time.Millisecond, back)
			h := <-granted
			require.NotNil(t, h)
			require.NoError(t, h.Unlock(testCtx(t)))
		})
	}
}

// Etcd is never reached: the log says so once, with the cause and what to do, however many wait and ask; and
// so does the error of each call.
func TestFault_I13_NeverReached(t *testing.T) {
	t.Parallel()
	addrs, err := loopback.FreeAddrs(1)
	require.NoError(t, err)
	secure, err := etcdtest.New("", etcdtest.WithConfig(func(c *embed.Config) { c.ClientAutoTLS = true }))
	require.NoError(t, err)
	t.Cleanup(secure.Close)
	for what, test := range map[string]struct {
		change       func(cfg *clientv3.Config)
		cause, check string
	}{
		"dead endpoint": {func(cfg *clientv3.Config) { cfg.Endpoints = addrs }, "connection refused", "the endpoints"},
		"wrong CA": {func(cfg *clientv3.Config) {
			cfg.Endpoints, cfg.TLS = secure.Endpoints(), &tls.Config{RootCAs: x509.NewCertPool()}
		}, "x509", "TLS config"},
		"no TLS": {func(cfg *clientv3.Config) {
			cfg.Endpoints = []string{strings.Replace(secure.Endpoints()[0], "https", "http", 1)}
		}, "server preface", "they want https"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			c := cluster.Client(t, etcdtest.WithClientConfig(test.change))
			var log logged
			locks := newTestClient(t, c, WithLogger(log.logger()))
			ctx, cancel := context.WithCancel(testCtx(t))
			left := make(chan error, 10)
			for range cap(left) {
				go func() { _, err := locks.Mutex("a").Lock(ctx); left <- err }()
			}
			require.Eventually(t, func() bool { return strings.Contains(log.lines()[0], test.cause) }, hang, tick)
			cancel()
			for range cap(left) {
				err := <-left
				require.ErrorIs(t, err, context.Canceled)
				require.Regexp(t, `^etcdlock: lock "a": (new session: )?etcd does not answer: no connection to etcd: .*`+test.cause+`.*: context canceled$`, err.Error())
			}
			for range 2 {
				probe, cancel := context.WithTimeout(testCtx(t), time.Second)
				defer cancel()
				err := locks.Ready(probe)
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.ErrorContains(t, err, test.cause)
				require.ErrorContains(t, err, "no session yet")
			}
			require.Equal(t, []string{logOutage}, log.messages())
			require.Contains(t, log.lines()[0], test.check)
			require.Contains(t, log.lines()[0], c.Endpoints()[0])
		})
	}
}

// An outage that takes the session: a line when it begins, one for the session, with why its lease was not
// renewed, and one when the next session is up. Ready follows.
func TestFault_I13_LogOfALostSession(t *testing.T) {
	t.Parallel()
	p := cluster.Proxy(t)
	var log logged
	locks := newTestClient(t, cluster.Client(t, p), WithTTL(2*time.Second), WithLogger(log.logger()))
	require.NoError(t, locks.Ready(testCtx(t)))
	for range 2 {
		first := len(log.messages())
		s, err := locks.Session(testCtx(t))
		require.NoError(t, err)
		p.Refuse()
		p.Reset()
		<-s.Done()
		left := async(func() error {
			return locks.Mutex(lockName(t)).Do(testCtx(t), func(context.Context, *Held) error { return nil })
		})
		probe, cancel := context.WithTimeout(testCtx(t), 100*time.Millisecond)
		defer cancel()
		require.ErrorContains(t, locks.Ready(probe), "session is lost")
		p.Accept()
		require.NoError(t, result(t, left))
		require.NoError(t, locks.Ready(testCtx(t)))
		require.Equal(t, []string{logOutage, logLost, logUp}, log.messages()[first:])
		lines := log.lines()[first:]
		require.Regexp(t, `error="no connection to etcd: .*(reset|EOF|refused|closed)`, lines[0])
		require.Regexp(t, `why="deadline passed" error="no connection to etcd: .*(reset|EOF|refused|closed)`, lines[1])
		require.Contains(t, lines[2], "outage=")
	}
}

// One that does not: a line when a renewal has no answer, and one when it has. Whether connections break, or
// hang until the session is lost.
func TestFault_I13_LogOfARenewal(t *testing.T) {
	t.Parallel()
	p := cluster.Proxy(t)
	var log logged
	s := newTestSession(t, cluster.Client(t, p), WithTTL(6*time.Second), WithLogger(log.logger()))
	p.Refuse()
	p.Reset()
	requireLines(t, &log, logUp, logOutage)
	p.Accept()
	requireLines(t, &log, logUp, logOutage, logOver)
	p.Hold(etcdtest.Both)
	requireLines(t, &log, logUp, logOutage, logOver, logOutage)
	require.Contains(t, log.lines()[3], errNoAnswer.Error())
	p.Release(etcdtest.Both)
	requireLines(t, &log, logUp, logOutage, logOver, logOutage, logOver)
	p.Hold(etcdtest.Both)
	<-s.Done()
	requireLines(t, &log, logUp, logOutage, logOver, logOutage, logOver, logOutage, logLost)
	require.Contains(t, log.lines()[6], errNoAnswer.Error())
}

package faults

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/test/harness"
	"github.com/etcdlock/etcdlock/internal/test/logtest"
	"github.com/etcdlock/etcdlock/internal/test/loopback"
	"github.com/etcdlock/etcdlock/internal/test/sample"
)

// Rows I11 and I13: what follows an outage, and what is said of one.

// patient has gRPC pause for an hour between two attempts to connect, as it does for up to two minutes after
// a long outage.
var patient = etcdtest.WithClientConfig(func(cfg *clientv3.Config) {
	cfg.DialOptions = append(cfg.DialOptions, grpc.WithConnectParams(grpc.ConnectParams{
		Backoff: backoff.Config{BaseDelay: time.Hour, Multiplier: 1, MaxDelay: time.Hour}, MinConnectTimeout: time.Second}))
})

// A session that makes no request has its connection back before it needs it: its wait hears of the release,
// and its hold of the loss.
func TestFault_I11_WaitsAndHolds(t *testing.T) {
	t.Parallel()
	other := cluster.Client(t)
	for what, test := range map[string]func(t *testing.T, s *etcdlock.Session, name string) (then func()){
		"wait": func(t *testing.T, s *etcdlock.Session, name string) func() {
			h := mustLock(t, newSession(t, other, etcdlock.WithTTL(time.Minute)), name)
			granted := harness.InBackground(t, etcdlock.NewMutex(s, name).Lock)
			require.Eventually(t, func() bool { return len(harness.Entries(t, other, name)) == 2 }, harness.Hang, harness.Tick)
			return func() {
				require.NoError(t, h.Unlock(harness.Ctx(t)))
				h2 := <-granted
				require.NotNil(t, h2)
				require.NoError(t, h2.Unlock(harness.Ctx(t)))
			}
		},
		"hold": func(t *testing.T, s *etcdlock.Session, name string) func() {
			h := mustLock(t, s, name)
			h.Done()
			return func() {
				_, err := other.Delete(harness.Ctx(t), h.Key())
				require.NoError(t, err)
				<-h.Done()
				require.ErrorIs(t, h.Err(), etcdlock.ErrLost)
			}
		},
		"request": func(t *testing.T, s *etcdlock.Session, name string) func() {
			granted := make(chan *etcdlock.Held, 1)
			time.AfterFunc(10*time.Millisecond, func() {
				h, err := etcdlock.NewMutex(s, name).Lock(harness.Ctx(t))
				if err != nil {
					t.Error(err)
				}
				granted <- h
			})
			return func() { require.NoError(t, (<-granted).Unlock(harness.Ctx(t))) }
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			p := cluster.Proxy(t)
			c := cluster.Client(t, p, patient)
			then := test(t, newSession(t, c, etcdlock.WithTTL(10*harness.Hang)), harness.LockName(t)) // no renewal is due
			back := harness.Away(t, p, c)
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
	s := newSession(t, c, etcdlock.WithTTL(12*time.Second))
	h := mustLock(t, s, "a")
	others.Refuse()
	others.Reset()
	own.Member(0).Isolate()
	sent := s.Deadline()
	time.AfterFunc(time.Until(sent)/2, others.Accept)
	require.Eventually(t, func() bool { return s.Deadline().After(sent) || s.Err() != nil }, harness.Hang, harness.Tick)
	require.NoError(t, h.Check(harness.Ctx(t)))
}

// An outage that is shorter than what is left of the TTL costs no session, and what it holds stays.
func TestFault_I11_TheSessionSurvives(t *testing.T) {
	t.Parallel()
	p := cluster.Proxy(t)
	c := cluster.Client(t, p, patient)
	s := newSession(t, c, etcdlock.WithTTL(12*time.Second))
	h := mustLock(t, s, harness.LockName(t))
	back := harness.Away(t, p, c)
	sent := s.Deadline()
	time.AfterFunc(time.Until(sent)/3, back)
	require.Eventually(t, func() bool { return s.Deadline().After(sent) }, harness.Hang, harness.Tick)
	require.NoError(t, h.Check(harness.Ctx(t)))
	require.NoError(t, h.Unlock(harness.Ctx(t)))
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
			locks := newClient(t, c, etcdlock.WithTTL(4*time.Second))
			name := harness.LockName(t)
			back := p.Accept
			if !first {
				h, err := locks.Mutex(name).Lock(harness.Ctx(t))
				require.NoError(t, err)
				back = harness.Away(t, p, c)
				<-h.Session().Done()
			}
			granted := harness.InBackground(t, locks.Mutex(name).Lock)
			time.AfterFunc(100*time.Millisecond, back)
			h := <-granted
			require.NotNil(t, h)
			require.NoError(t, h.Unlock(harness.Ctx(t)))
		})
	}
}

// lockError is what the error of a Lock says that etcd does not answer, as a regular expression.
const lockError = `^etcdlock: lock "a": (new session: )?etcd does not answer: no connection to etcd: `

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
		}, "x509", "or its file holds no certificate"},
		"expired": {func(cfg *clientv3.Config) {
			cfg.Endpoints, cfg.TLS = secure.Endpoints(), &tls.Config{Time: func() time.Time { return time.Now().AddDate(100, 0, 0) }}
		}, "x509", "the dates of etcd's certificate, and this machine's clock"},
		"no TLS": {func(cfg *clientv3.Config) {
			cfg.Endpoints = []string{strings.Replace(secure.Endpoints()[0], "https", "http", 1)}
		}, "server preface", "they want https"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			c := cluster.Client(t, etcdtest.WithClientConfig(test.change))
			var log logtest.Log
			locks := newClient(t, c, etcdlock.WithLogger(log.Logger()))
			ctx, cancel := context.WithCancel(harness.Ctx(t))
			left := make(chan error, 10)
			var calling sync.WaitGroup
			calling.Add(cap(left))
			for range cap(left) {
				go func() { calling.Done(); _, err := locks.Mutex("a").Lock(ctx); left <- err }()
			}
			calling.Wait()
			require.Eventually(t, func() bool { return len(log.Lines()) > 0 }, harness.Hang, harness.Tick)
			cancel()
			for range cap(left) {
				err := <-left
				require.ErrorIs(t, err, context.Canceled)
				require.Regexp(t, lockError+`.*: context canceled$`, err.Error(), "if an attempt to connect is on its way, that has no cause yet")
			}
			endsSaying(t, time.Second, lockError+`.*`+test.cause+`.*: context deadline exceeded$`, func(ctx context.Context) error {
				_, err := locks.Mutex("a").Lock(ctx)
				return err
			})
			for range 2 {
				endsSaying(t, time.Second, "no session yet.*"+test.cause, locks.Ready)
			}
			require.Equal(t, []string{logtest.Outage}, log.Messages())
			if line := log.Lines()[0]; !strings.Contains(line, "the endpoints do not answer") { // an attempt was on its way
				require.Contains(t, line, test.cause)
				require.Contains(t, line, test.check)
			}
			require.Contains(t, log.Lines()[0], c.Endpoints()[0])
		})
	}
}

// An outage that takes the session: a line when it begins, one for the session, with why its lease was not
// renewed, and one when the next session is up. Ready follows.
func TestFault_I13_LogOfALostSession(t *testing.T) {
	t.Parallel()
	p := cluster.Proxy(t)
	var log logtest.Log
	locks := newClient(t, cluster.Client(t, p), etcdlock.WithTTL(10*time.Second), etcdlock.WithLogger(log.Logger()))
	require.NoError(t, locks.Ready(harness.Ctx(t)))
	for range sample.Rounds(t, 1, 2) {
		log.Forget(t, logtest.Up)
		s, err := locks.Session(harness.Ctx(t))
		require.NoError(t, err)
		p.Refuse()
		p.Reset()
		<-s.Done()
		left := harness.Async(func() error {
			return locks.Mutex(harness.LockName(t)).Do(harness.Ctx(t), func(context.Context, *etcdlock.Held) error { return nil })
		})
		probe, cancel := context.WithTimeout(harness.Ctx(t), 100*time.Millisecond)
		defer cancel()
		require.ErrorContains(t, locks.Ready(probe), "session is lost")
		p.Accept()
		require.NoError(t, harness.Result(t, left))
		require.NoError(t, locks.Ready(harness.Ctx(t)))
		log.Require(t, logtest.Outage, logtest.Lost, logtest.Up)
		lines := log.Lines()
		// The first request to fail may meet the connection while it breaks.
		require.Regexp(t, `error="(`+harness.Broken+`|.* (broken pipe|connection reset by peer))`, lines[0])
		require.Regexp(t, `why="deadline passed" error="`+harness.Broken, lines[1])
		require.Contains(t, lines[2], "outage=")
	}
}

// noAnswer is the error of a renewal that etcd does not answer.
const noAnswer = "no answer to the renewal of the lease"

// Outages that don't: a line when a renewal has no answer, and one when it has. Whether connections break or hang.
func TestFault_I13_LogOfARenewal(t *testing.T) {
	t.Parallel()
	p, log, s := renewed(t)
	p.Refuse()
	p.Reset()
	log.Require(t, logtest.Outage)
	p.Accept()
	log.Require(t, logtest.Outage, logtest.Over)
	p.Hold(etcdtest.Both)
	log.Require(t, logtest.Outage, logtest.Over, logtest.Outage)
	require.Contains(t, log.Lines()[2], noAnswer)
	p.Release(etcdtest.Both)
	log.Require(t, logtest.Outage, logtest.Over, logtest.Outage, logtest.Over)
	require.NoError(t, s.Err())
}

// Connections hang until the session is lost.
func TestFault_I13_LogOfNoRenewal(t *testing.T) {
	t.Parallel()
	p, log, s := renewed(t)
	p.Hold(etcdtest.Both)
	<-s.Done()
	log.Require(t, logtest.Outage, logtest.Lost)
	require.Contains(t, log.Lines()[1], noAnswer)
}

// renewed is a session that is renewed through a proxy, and its log since it was up.
func renewed(t *testing.T) (*etcdtest.Proxy, *logtest.Log, *etcdlock.Session) {
	t.Helper()
	p, log := cluster.Proxy(t), &logtest.Log{}
	// The log has an outage when half of the TTL is over, and the session must be there a while longer.
	s := newSession(t, cluster.Client(t, p), etcdlock.WithTTL(12*time.Second), etcdlock.WithLogger(log.Logger()))
	log.Forget(t, logtest.Up)
	return p, log, s
}

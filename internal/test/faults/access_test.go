package faults

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/test/certs"
	"github.com/etcdlock/etcdlock/internal/test/harness"
	"github.com/etcdlock/etcdlock/internal/test/loopback"
)

// Rows F13 and B2: certificates, passwords and rights.

// trusting is the configuration of a client that trusts the authority a. Its own
// certificate is issued by from; if from is nil, it has none.
func trusting(t *testing.T, a, from *certs.Authority, change ...func(*tls.Config)) etcdtest.ClientOption {
	t.Helper()
	conf := &tls.Config{RootCAs: x509.NewCertPool()}
	conf.RootCAs.AddCert(a.Cert)
	if from != nil {
		cert, err := tls.LoadX509KeyPair(from.Issue(t, "client"))
		require.NoError(t, err)
		conf.Certificates = []tls.Certificate{cert}
	}
	for _, f := range change {
		f(conf)
	}
	return etcdtest.WithClientConfig(func(c *clientv3.Config) { c.TLS = conf })
}

// etcd requires client certificates. Locks work, also after connections were reset. A
// client without a certificate, or with one of another authority, gets an error that says so.
func TestFault_F13_ClientCertificates(t *testing.T) {
	t.Parallel()
	a := certs.New(t)
	serverCert, serverKey := a.Issue(t, "server")
	own := etcdtest.Start(t, etcdtest.WithConfig(func(c *embed.Config) {
		c.ClientTLSInfo = transport.TLSInfo{CertFile: serverCert, KeyFile: serverKey, TrustedCAFile: a.File("ca.crt"), ClientCertAuth: true}
	}))
	proxy := own.Proxy(t)
	s := newSession(t, own.Client(t, proxy, trusting(t, a, a)))
	h, err := etcdlock.NewMutex(s, "a").Lock(harness.Ctx(t))
	require.NoError(t, err)
	done := h.Done()
	waiter := newSession(t, own.Client(t, proxy, trusting(t, a, a)))
	tk, err := etcdlock.NewMutex(waiter, "a").Enqueue(harness.Ctx(t))
	require.NoError(t, err)
	harness.NotGranted(t, tk, 1)
	proxy.Reset()
	require.NoError(t, s.Refresh(harness.Ctx(t)))
	require.NoError(t, h.Check(harness.Ctx(t)))
	harness.NotGranted(t, tk, 1)
	select {
	case <-done:
		t.Error(h.Err())
	default:
	}
	require.NoError(t, h.Unlock(harness.Ctx(t)))
	h, err = tk.Wait(harness.Ctx(t))
	require.NoError(t, err)
	require.NoError(t, h.Unlock(harness.Ctx(t)))

	// With TLS 1.3 a client gets the alert only after its handshake, or finds the
	// connection closed before the alert arrives.
	tls12 := func(c *tls.Config) { c.MaxVersion = tls.VersionTLS12 }
	for says, with := range map[string]etcdtest.ClientOption{
		"remote error: tls: ":                                                    trusting(t, a, nil, tls12),
		"remote error: tls: unknown certificate":                                 trusting(t, a, certs.New(t), tls12),
		"tls: certificate required|code = Unavailable desc = |" + harness.Broken: trusting(t, a, nil),
		"certificate signed by unknown authority":                                trusting(t, certs.New(t), a),
	} {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			client := own.Client(t, with)
			endsSaying(t, 2*time.Second, says, func(ctx context.Context) error {
				_, err := etcdlock.NewSession(ctx, client)
				return err
			})
		})
	}
}

// endsSaying requires that f returns with its ctx, and that its error matches says. The ctx ends after d, which is time for
// a handshake, or later on a machine that stalls for as long.
func endsSaying(t *testing.T, d time.Duration, says string, f func(ctx context.Context) error) {
	t.Helper()
	for ; ; d *= 2 {
		err := returnsWithCtx(t, d, f)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		if d > harness.Hang/4 || regexp.MustCompile(says).MatchString(err.Error()) {
			require.Regexp(t, says, err.Error())
			return
		}
	}
}

// If etcd can't be reached, the error names the cause and not only the timeout.
func TestFault_B2_NewSessionSaysWhy(t *testing.T) {
	t.Parallel()
	nobody, err := loopback.FreeAddrs(1)
	require.NoError(t, err)
	client := cluster.Client(t, etcdtest.WithClientConfig(func(c *clientv3.Config) { c.Endpoints = nobody }))
	locks := newClient(t, client)
	for _, grant := range map[string]func(ctx context.Context) error{
		"NewSession": func(ctx context.Context) error { _, err := etcdlock.NewSession(ctx, client); return err },
		"Client":     func(ctx context.Context) error { _, err := locks.Mutex("a").Lock(ctx); return err },
	} {
		endsSaying(t, 300*time.Millisecond, "connection refused", grant)
	}
}

// A request is repeated after an error that passes by itself; any other error is returned
// at once.
func TestRefused(t *testing.T) {
	for err, want := range map[error]bool{
		rpctypes.ErrPermissionDenied: true,
		rpctypes.ErrLeaseNotFound:    true,
		rpctypes.ErrNoSpace:          true,
		rpctypes.ErrAuthOldRevision:  false, // roles were changed while the request was in flight
		rpctypes.ErrNoLeader:         false,
		context.DeadlineExceeded:     false,
	} {
		require.Equal(t, want, etcd.Refused(fmt.Errorf("lock: %w", err)), err)
	}
}

// A lock is held and waited for without requests for longer than a token lives.
func TestFault_F13_AuthTokenExpires(t *testing.T) {
	t.Parallel()
	own, as := harness.StartWithAuth(t)
	proxy := own.Proxy(t)
	worker := as("worker", proxy)
	s := newSession(t, worker)
	held, err := etcdlock.NewMutex(s, "a/1").Lock(harness.Ctx(t))
	require.NoError(t, err)
	done := held.Done()
	waiter := newSession(t, as("worker"))
	waiting, err := etcdlock.NewMutex(waiter, "a/1").Enqueue(harness.Ctx(t))
	require.NoError(t, err)
	quiet, err := etcdlock.NewMutex(newSession(t, as("worker")), "a/2").Lock(harness.Ctx(t))
	require.NoError(t, err)

	harness.Elapse(s.TTL()/3 + 500*time.Millisecond) // the token was used at the last renewal
	// The open streams have old tokens. New watches on them must still work.
	second, err := etcdlock.NewMutex(s, "a/3").Lock(harness.Ctx(t))
	require.NoError(t, err)
	lost := second.Done()
	_, err = as("root").Delete(harness.Ctx(t), second.Key())
	require.NoError(t, err)
	harness.RequireTold(t, lost, "the watch's token has expired")
	require.NoError(t, quiet.Check(harness.Ctx(t)))
	require.NoError(t, quiet.Unlock(harness.Ctx(t)))
	proxy.Reset()
	require.NoError(t, s.Refresh(harness.Ctx(t)))
	select {
	case <-done:
		t.Fatal(held.Err())
	default:
	}
	stop := harness.Stopwatch()
	require.NoError(t, held.Unlock(harness.Ctx(t)))
	h, err := waiting.Wait(harness.Ctx(t))
	require.Less(t, stop(), harness.Hang/6)
	require.NoError(t, err)
	require.NoError(t, h.Unlock(harness.Ctx(t)))
	for _, s := range []*etcdlock.Session{s, waiter} {
		require.NoError(t, s.Err())
		require.NoError(t, s.Close())
	}
	require.Empty(t, harness.Entries(t, as("root"), "a"))
}

// A change of any user or role invalidates all tokens, including those of open streams.
func TestFault_F13_RolesChange(t *testing.T) {
	_, as := harness.StartWithAuth(t)
	root := as("root")
	s := newSession(t, as("worker"))
	first, err := etcdlock.NewMutex(s, "a/1").Lock(harness.Ctx(t))
	require.NoError(t, err)
	done := first.Done()
	_, err = root.RoleAdd(harness.Ctx(t), "another")
	require.NoError(t, err)
	second, err := etcdlock.NewMutex(s, "a/2").Lock(harness.Ctx(t))
	require.NoError(t, err)
	lost := second.Done()
	_, err = root.Delete(harness.Ctx(t), second.Key())
	require.NoError(t, err)
	harness.RequireTold(t, lost, "the watch's token has an old revision")
	require.NoError(t, s.Refresh(harness.Ctx(t)))
	select {
	case <-done:
		t.Error(first.Err())
	default:
	}
	require.NoError(t, first.Unlock(harness.Ctx(t)))
}

// The user of a client gets another password. Each new lock is refused, and Ready says so. What the client holds is lost at the
// session's deadline if etcd refuses the renewals too, and stays held until the connection breaks if it does not. With the old password
// all is as before.
func TestFault_F13_PasswordChanged(t *testing.T) {
	t.Parallel()
	own, as := harness.StartWithAuth(t)
	root, proxy := as("root"), own.Proxy(t)
	locks := newClient(t, as("worker", proxy), etcdlock.WithTTL(10*time.Second))
	h, err := locks.Mutex("a/1").Lock(harness.Ctx(t))
	require.NoError(t, err)
	require.NoError(t, locks.Ready(harness.Ctx(t)))
	change := func(password string) {
		_, err := root.UserChangePassword(harness.Ctx(t), "worker", password)
		require.NoError(t, err)
	}
	renewed := func() {
		last := h.Deadline()
		require.Eventually(t, func() bool { return h.Deadline().After(last) }, harness.Hang, harness.Tick)
	}
	renewed() // so there is a stream of renewals
	renews := renewing(t, as("worker"))
	change("other")
	for range 2 {
		_, err = locks.Mutex("a/2").Lock(harness.Ctx(t))
		require.ErrorIs(t, err, rpctypes.ErrAuthFailed)
		err = locks.Ready(harness.Ctx(t))
		require.ErrorIs(t, err, rpctypes.ErrAuthFailed)
		require.ErrorContains(t, err, "not ready, etcd has refused new locks")
	}
	require.Empty(t, harness.Entries(t, root, "a/2"))
	if renews() {
		renewed()
		require.True(t, h.Valid())
	} else {
		<-h.Done()
		require.ErrorIs(t, h.Err(), etcdlock.ErrSessionExpired)
	}
	change("secret")
	require.NoError(t, locks.Ready(harness.Ctx(t)))
	second, err := locks.Mutex("a/2").Lock(harness.Ctx(t))
	require.NoError(t, err)
	require.NoError(t, second.Unlock(harness.Ctx(t)))

	h, err = locks.Mutex("a/3").Lock(harness.Ctx(t))
	require.NoError(t, err)
	_, err = root.UserDelete(harness.Ctx(t), "worker")
	require.NoError(t, err)
	proxy.Reset()
	<-h.Done()
	require.ErrorIs(t, h.Err(), etcdlock.ErrSessionExpired)
	require.ErrorIs(t, locks.Ready(harness.Ctx(t)), rpctypes.ErrAuthFailed)
}

// renewing opens a stream of renewals, and returns a function that says whether etcd still renews a lease on it. etcd checks the
// user of each renewal since 3.6.9.
func renewing(t *testing.T, client *clientv3.Client) func() bool {
	t.Helper()
	lease, err := client.Grant(harness.Ctx(t), 60)
	require.NoError(t, err)
	stream, err := etcdserverpb.NewLeaseClient(client.ActiveConnection()).LeaseKeepAlive(harness.Ctx(t))
	require.NoError(t, err)
	renews := func() bool {
		if err := stream.Send(&etcdserverpb.LeaseKeepAliveRequest{ID: int64(lease.ID)}); err != nil {
			return false
		}
		resp, err := stream.Recv()
		return err == nil && resp.TTL > 0
	}
	require.True(t, renews())
	return renews
}

// A lock needs no other right than to read and write below its name.
func TestFault_F13_LeastRights(t *testing.T) {
	t.Parallel()
	_, as := harness.StartWithAuth(t)
	root := as("root")
	for kind := range lockFuncs(nil, "a") {
		a, b := newSession(t, as("worker")), newSession(t, as("worker"))
		h, err := lockFuncs(a, "a")[kind](harness.Ctx(t))
		require.NoError(t, err, kind)
		done := h.Done()
		require.NoError(t, h.Check(harness.Ctx(t)))
		_, err = h.Txn(harness.Ctx(t)).Then(clientv3.OpPut("a/config", kind)).Commit()
		require.NoError(t, err)
		// Held.Txn nests the caller's operations. etcd before 3.6.9 does not check the rights to nested ones.
		put := clientv3.OpPut("b", "")
		_, nested := as("worker").Txn(harness.Ctx(t)).Then(clientv3.OpTxn(nil, []clientv3.Op{put}, nil)).Commit()
		_, err = h.Txn(harness.Ctx(t)).Then(put).Commit()
		require.ErrorIs(t, err, nested)
		require.NoError(t, h.Err())
		w, err := etcdlock.NewRWMutex(b, "a").Enqueue(harness.Ctx(t))
		require.NoError(t, err)
		r, err := etcdlock.NewRWMutex(b, "a").REnqueue(harness.Ctx(t))
		require.NoError(t, err)
		harness.NotGranted(t, w, 1)
		require.NoError(t, h.Unlock(harness.Ctx(t)))
		<-done
		hw, err := w.Wait(harness.Ctx(t))
		require.NoError(t, err)
		require.NoError(t, hw.Downgrade(harness.Ctx(t)))
		hr, err := r.Wait(harness.Ctx(t))
		require.NoError(t, err)
		require.NoError(t, hw.Unlock(harness.Ctx(t)))
		require.NoError(t, hr.Unlock(harness.Ctx(t)))
		require.Equal(t, []string{"a/config"}, harness.QueueIs(t, root, "a", 1))
	}
	// With fewer rights Lock fails at once, its error says what is missing, and it
	// leaves nothing.
	for user, name := range map[string]string{"reader": "a", "worker": "b"} {
		s := newSession(t, as(user), etcdlock.WithTTL(10*time.Second))
		for kind, lock := range lockFuncs(s, name) {
			stop := harness.Stopwatch()
			_, err := lock(harness.Ctx(t))
			require.Less(t, stop(), harness.Hang/3)
			require.ErrorIs(t, err, rpctypes.ErrPermissionDenied, kind)
			require.ErrorContains(t, err, `needs readwrite on the prefix "`+name+`/"`)
		}
		was := s.Deadline()
		require.Eventually(t, func() bool { return s.Deadline().After(was) }, harness.Hang, harness.Tick, "the session must go on")
		require.Equal(t, map[string]int{"a": 1, "b": 0}[name], len(harness.Entries(t, root, name)))
		require.NoError(t, s.Close())
	}
}

package faults

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/certs"
	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/harness"
	"github.com/etcdlock/etcdlock/internal/loopback"
)

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
		"remote error: tls: ":                                  trusting(t, a, nil, tls12),
		"remote error: tls: unknown certificate":               trusting(t, a, certs.New(t), tls12),
		"tls: certificate required|code = Unavailable desc = ": trusting(t, a, nil),
		"certificate signed by unknown authority":              trusting(t, certs.New(t), a),
	} {
		client := own.Client(t, with)
		err := returnsWithCtx(t, 500*time.Millisecond, func(ctx context.Context) error {
			_, err := etcdlock.NewSession(ctx, client)
			return err
		})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Regexp(t, says, err.Error())
	}
}

// If etcd can't be reached, the error names the cause and not only the timeout.
func TestFault_B2_NewSessionSaysWhy(t *testing.T) {
	t.Parallel()
	nobody, err := loopback.FreeAddrs(1)
	require.NoError(t, err)
	client := cluster.Client(t, etcdtest.WithClientConfig(func(c *clientv3.Config) { c.Endpoints = nobody }))
	locks := newClient(t, client)
	for what, grant := range map[string]func(ctx context.Context) error{
		"NewSession": func(ctx context.Context) error { _, err := etcdlock.NewSession(ctx, client); return err },
		"Client":     func(ctx context.Context) error { _, err := locks.Mutex("a").Lock(ctx); return err },
	} {
		err = returnsWithCtx(t, 300*time.Millisecond, grant)
		require.ErrorIs(t, err, context.DeadlineExceeded, what)
		require.ErrorContains(t, err, "connection refused", what)
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

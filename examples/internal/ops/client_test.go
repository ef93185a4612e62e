package ops

import (
	"context"
	"crypto/tls"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/test/certs"
)

const hang = 30 * time.Second

func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	t.Cleanup(cancel)
	return ctx
}

// A client follows a change of all certificates, the CA's included. Its next
// connection has the new ones.
func TestClient_CertificatesReloaded(t *testing.T) {
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	certs.Renew(t, dir)
	cluster := etcdtest.Start(t, etcdtest.WithConfig(func(c *embed.Config) {
		c.ClientTLSInfo = transport.TLSInfo{
			CertFile: file("server.crt"), KeyFile: file("server.key"),
			TrustedCAFile: file("ca.crt"), ClientCertAuth: true, SkipClientSANVerify: true,
		}
	}))
	t.Setenv("ETCDCTL_ENDPOINTS", cluster.Endpoints()[0])
	t.Setenv("ETCDCTL_CACERT", file("ca.crt"))
	t.Setenv("ETCDCTL_CERT", file("client.crt"))
	t.Setenv("ETCDCTL_KEY", file("client.key"))
	client, err := Client()
	require.NoError(t, err)
	defer client.Close()
	_, err = client.Put(bounded(t), "a", "1")
	require.NoError(t, err)

	certs.Renew(t, dir)
	require.NoError(t, cluster.Member(0).Restart(bounded(t)))
	_, err = client.Get(bounded(t), "a")
	require.NoError(t, err)
}

// The server's certificate has to be of the CA, and for the name that is asked for.
func TestCredentials_ServerVerified(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	certs.Renew(t, dir)
	certs.Renew(t, other)
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "server.crt"), filepath.Join(dir, "server.key"))
	require.NoError(t, err)
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{pair}, NextProtos: []string{"h2"}})
	require.NoError(t, err)
	defer listener.Close()
	go func() { // until the listener is closed
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_ = conn.(*tls.Conn).HandshakeContext(t.Context())
		}
	}()
	for _, c := range []struct{ ca, authority, says string }{
		{dir, "127.0.0.1:2379", ""},
		{other, "127.0.0.1:2379", "x509: certificate signed by unknown authority"},
		{dir, "etcd-0:2379", "x509: certificate is not valid for any names"},
	} {
		creds, err := Credentials(filepath.Join(c.ca, "ca.crt"), "", "")
		require.NoError(t, err)
		conn, err := net.Dial("tcp", listener.Addr().String())
		require.NoError(t, err)
		defer conn.Close()
		_, _, err = creds.Clone().ClientHandshake(bounded(t), c.authority, conn)
		if c.says == "" {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, c.says)
		}
	}
}

func TestCredentials_NoFiles(t *testing.T) {
	dir := t.TempDir()
	certs.Renew(t, dir)
	ca, cert := filepath.Join(dir, "ca.crt"), filepath.Join(dir, "client.crt")
	for _, c := range [][3]string{{cert + "x", "", ""}, {"/dev/null", "", ""}, {ca, cert, cert}, {ca, cert, "/no/such"}} {
		_, err := Credentials(c[0], c[1], c[2])
		require.Error(t, err, c)
	}
}

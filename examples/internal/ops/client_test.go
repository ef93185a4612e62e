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

// The password may be beside the user, as etcdctl has it, or have a variable of its own.
func TestClient_User(t *testing.T) {
	cluster := etcdtest.Start(t)
	root := cluster.Client(t)
	_, err := root.UserAdd(bounded(t), "root", "secret")
	require.NoError(t, err)
	_, err = root.UserGrantRole(bounded(t), "root", "root")
	require.NoError(t, err)
	_, err = root.AuthEnable(bounded(t))
	require.NoError(t, err)
	t.Setenv("ETCDCTL_ENDPOINTS", cluster.Endpoints()[0])
	for _, c := range [][2]string{{"root:secret", ""}, {"root", "secret"}, {"root:secret", "another"}} {
		t.Setenv("ETCDCTL_USER", c[0])
		t.Setenv("ETCDCTL_PASSWORD", c[1])
		client, err := Client()
		require.NoError(t, err, c)
		defer client.Close()
		_, err = client.Get(bounded(t), "a/x")
		require.NoError(t, err, c)
	}
}

// A certificate of the client needs no CA: the system's count then.
func TestClient_CertificateWithoutCA(t *testing.T) {
	dir := t.TempDir()
	certs.Renew(t, dir)
	t.Setenv("ETCDCTL_ENDPOINTS", "https://127.0.0.1:1")
	t.Setenv("ETCDCTL_CERT", filepath.Join(dir, "client.crt"))
	t.Setenv("ETCDCTL_KEY", filepath.Join(dir, "client.key"))
	client, err := Client()
	require.NoError(t, err)
	require.NoError(t, client.Close())
	t.Setenv("ETCDCTL_KEY", filepath.Join(dir, "ca.crt"))
	_, err = Client()
	require.ErrorContains(t, err, "tls: ", "the certificate must be read")
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
		{filepath.Join(dir, "ca.crt"), "127.0.0.1:2379", ""},
		{filepath.Join(other, "ca.crt"), "127.0.0.1:2379", "x509: certificate signed by unknown authority"},
		{"", "127.0.0.1:2379", "x509: certificate signed by unknown authority"}, // none of the system's CAs has signed it
		{filepath.Join(dir, "ca.crt"), "etcd-0:2379", "x509: certificate is not valid for any names"},
	} {
		creds, err := Credentials(c.ca, "", "")
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

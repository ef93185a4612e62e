package connect

import (
	"crypto/tls"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/internal/test/certs"
)

// With TLS 1.2 a server that wants a certificate of the client ends the handshake. That
// is the answer of a server with TLS all the same.
func TestProbe_PlainEndpointOfTLS12(t *testing.T) {
	t.Parallel()
	ca := certs.New(t)
	cert, key := ca.Issue(t, "server")
	pair, err := tls.LoadX509KeyPair(cert, key)
	require.NoError(t, err)
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAnyClientCert, MaxVersion: tls.VersionTLS12,
	})
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() { // ends with the listener
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func(conn net.Conn) { // ends with the handshake
				_ = conn.(*tls.Conn).Handshake() // it is to fail
				_ = conn.Close()
			}(conn)
		}
	}()
	at := l.Addr().String()
	problems := (&Config{}).ProbeAll(t.Context(), []string{at, "http://" + at})
	for _, p := range problems {
		require.Equal(t, at+" asks for TLS", p.What)
		require.Contains(t, p.Do, "write https://"+at)
	}
	p := (&Config{CACert: ca.File("ca.crt")}).ProbeAll(t.Context(), []string{at})[0]
	require.Contains(t, p.What, at+" wants a certificate of the client: ")
}

// Why no etcd answers is said without the passwords that stand in endpoints, and of a socket what is wrong with it.
func TestDiagnose_Endpoints(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "a@b")
	for _, c := range []struct{ endpoint, at, why string }{
		{"http://ann:secret@127.0.0.1:1", "http://ann:xxxxx@127.0.0.1:1", "dial tcp 127.0.0.1:1: "},
		{"https://ann:se:cr@et@127.0.0.1:1", "https://ann:xxxxx@127.0.0.1:1", "dial tcp 127.0.0.1:1: "},
		{"ann:secret@127.0.0.1:1", "ann:xxxxx@127.0.0.1:1", "dial tcp 127.0.0.1:1: "},
		{"127.0.0.1:1", "127.0.0.1:1", "dial tcp 127.0.0.1:1: "},
		{"unix://" + socket, "unix://" + socket, "dial unix " + socket + ": "},
		{"unixs:" + socket, "unixs:" + socket, "dial unix " + socket + ": "},
	} {
		config := &Config{Endpoints: []string{c.endpoint}, DialTimeout: time.Second}
		require.Contains(t, config.silent(nil).Error(), "no etcd answers at "+c.at+" within 1s ("+c.why)
	}
	l, err := net.Listen("unix", socket)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	config := &Config{Endpoints: []string{"unix://" + socket, "http://ann:secret@127.0.0.1:1"}, DialTimeout: time.Second}
	require.Contains(t, config.silent(nil).Error(), "(connected to unix://"+socket+", but there was no answer; dial tcp 127.0.0.1:1: ")
}

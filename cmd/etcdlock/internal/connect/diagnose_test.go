package connect

import (
	"crypto/tls"
	"net"
	"testing"

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

// Package certs issues certificates for tests that use TLS.
package certs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// An Authority issues certificates for 127.0.0.1, for servers and clients. It writes them
// to files; its own certificate is ca.crt.
type Authority struct {
	Cert *x509.Certificate // its own

	dir string
	key *ecdsa.PrivateKey
}

// New makes an authority. Its files are removed when the test ends.
func New(tb testing.TB) *Authority {
	tb.Helper()
	a := &Authority{dir: tb.TempDir()}
	a.Issue(tb, "ca")
	return a
}

// File returns the path of the file with that name.
func (a *Authority) File(name string) string { return filepath.Join(a.dir, name) }

// Issue makes a certificate and returns the paths of the certificate, name.crt, and of its
// key, name.key. The first certificate is the authority's own.
func (a *Authority) Issue(tb testing.TB, name string) (certFile, keyFile string) {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(tb, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage:    x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	parent, signer := a.Cert, a.key
	if parent == nil {
		template.IsCA, template.BasicConstraintsValid, template.KeyUsage = true, true, x509.KeyUsageCertSign
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	require.NoError(tb, err)
	if a.Cert == nil {
		a.Cert, err = x509.ParseCertificate(der)
		require.NoError(tb, err)
		a.key = key
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(tb, err)
	certFile, keyFile = a.File(name+".crt"), a.File(name+".key")
	require.NoError(tb, os.WriteFile(certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	require.NoError(tb, os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}), 0o600))
	return certFile, keyFile
}

// Renew writes the certificates of a new authority, its own, a server's and a client's, to that directory,
// over those of the last one.
func Renew(tb testing.TB, dir string) {
	tb.Helper()
	a := New(tb)
	for _, name := range []string{"server", "client"} {
		a.Issue(tb, name)
	}
	for _, file := range []string{"ca.crt", "server.crt", "server.key", "client.crt", "client.key"} {
		Copy(tb, a.File(file), filepath.Join(dir, file))
	}
}

// Copy copies a file.
func Copy(tb testing.TB, from, to string) {
	tb.Helper()
	b, err := os.ReadFile(from)
	require.NoError(tb, err)
	require.NoError(tb, os.WriteFile(to, b, 0o600))
}

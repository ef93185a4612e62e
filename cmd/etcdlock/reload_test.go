//go:build unix

package main

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/etcdlock/etcdlock/cmd/etcdlock/internal/connect"
	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/test/certs"
)

// A client follows a change of all certificates, the CA's included, in its next connection. One whose CA did
// not change does not believe the new certificates.
func TestClient_Reloads(t *testing.T) {
	t.Parallel()
	dir, old := t.TempDir(), t.TempDir()
	certs.Renew(t, dir)
	file := func(name string) string { return filepath.Join(dir, name) }
	copied := filepath.Join(old, "ca.crt")
	certs.Copy(t, file("ca.crt"), copied)
	cluster := etcdtest.Start(t, etcdtest.WithConfig(func(c *embed.Config) {
		c.ClientTLSInfo = transport.TLSInfo{
			CertFile: file("server.crt"), KeyFile: file("server.key"),
			TrustedCAFile: file("ca.crt"), ClientCertAuth: true, SkipClientSANVerify: true,
		}
	}))
	get := func(endpoint, ca string) func(limit time.Duration) error {
		config := connect.Config{Endpoints: []string{endpoint}, CACert: ca, Cert: file("client.crt"), Key: file("client.key"), DialTimeout: hang}
		client, err := config.Client()
		require.NoError(t, err)
		t.Cleanup(func() { _ = client.Close() })
		return func(limit time.Duration) error {
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			_, err := client.Get(ctx, "a")
			return err
		}
	}
	https := cluster.Endpoints()[0]
	// TLS is asked for by the endpoint, or by the CA alone.
	reads := []func(time.Duration) error{get(https, file("ca.crt")), get(strings.TrimPrefix(https, "https://"), file("ca.crt"))}
	stays := get(https, copied)
	for _, read := range append(reads, stays) {
		require.NoError(t, read(hang))
	}
	certs.Renew(t, dir)
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	defer cancel()
	require.NoError(t, cluster.Member(0).Restart(ctx))
	for _, read := range reads {
		require.NoError(t, read(hang))
	}
	require.ErrorIs(t, stays(time.Second), context.DeadlineExceeded)
}

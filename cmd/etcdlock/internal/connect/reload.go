package connect

import (
	"context"
	"crypto/tls"
	"net"

	"google.golang.org/grpc/credentials"
)

// reloading reads the files anew for each connection, so a command that runs for months follows a CA that is
// replaced. etcd's own TLSInfo does that for the client's certificate only.
type reloading struct {
	credentials.TransportCredentials // those of the start: for all but handshakes
	load                             func() (*tls.Config, error)
}

func (r reloading) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	config, err := r.load()
	if err != nil {
		return nil, nil, err
	}
	return credentials.NewTLS(config).ClientHandshake(ctx, authority, conn)
}

func (r reloading) Clone() credentials.TransportCredentials { return r }

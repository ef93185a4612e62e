// Package ops is what a service needs around its locks in production: a client
// that follows new certificates, health checks and metrics. The examples share it;
// a service copies what it needs.
package ops

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
)

// Client makes a client of etcd from the environment variables of etcdctl. The password
// is in ETCDCTL_PASSWORD, or in ETCDCTL_USER=NAME:PASSWORD. Client makes no request,
// unless there is a user. docs/operations.md says what each setting changes.
func Client() (*clientv3.Client, error) {
	user, password, both := strings.Cut(os.Getenv("ETCDCTL_USER"), ":")
	if !both {
		password = os.Getenv("ETCDCTL_PASSWORD")
	}
	config := clientv3.Config{
		Endpoints: strings.Split(os.Getenv("ETCDCTL_ENDPOINTS"), ","),
		Username:  user,
		Password:  password,

		Logger: zap.NewNop(), // etcdlock.WithLogger says what matters, once for an outage

		DialTimeout:          5 * time.Second,
		DialKeepAliveTime:    10 * time.Second,
		DialKeepAliveTimeout: 3 * time.Second,
		DialOptions: []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 3 * time.Second},
			MinConnectTimeout: 3 * time.Second,
		})},
	}
	if ca, cert := os.Getenv("ETCDCTL_CACERT"), os.Getenv("ETCDCTL_CERT"); ca != "" || cert != "" {
		creds, err := Credentials(ca, cert, os.Getenv("ETCDCTL_KEY"))
		if err != nil {
			return nil, err
		}
		config.DialOptions = append(config.DialOptions, grpc.WithTransportCredentials(creds))
	}
	return clientv3.New(config)
}

// Credentials are TLS with certificates from files, which are read anew for each
// connection: a certificate that is replaced takes effect without a restart, and so
// does a CA. Without ca the system's CAs count; cert and key may be empty, too. Files
// that are missing or wrong now are an error; later they fail connections until they are
// right.
func Credentials(ca, cert, key string) (credentials.TransportCredentials, error) {
	c := reloaded{ca: ca, cert: cert, key: key}
	current, err := c.load()
	c.TransportCredentials = current
	return c, err
}

// reloaded makes new credentials for each connection. All else, such as the name
// of the protocol, is up to those that were loaded first.
type reloaded struct {
	credentials.TransportCredentials
	ca, cert, key string
}

func (c reloaded) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	current, err := c.load()
	if err != nil {
		return nil, nil, err
	}
	return current.ClientHandshake(ctx, authority, conn)
}

func (c reloaded) Clone() credentials.TransportCredentials { return c }

func (c reloaded) load() (credentials.TransportCredentials, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.ca != "" {
		pem, err := os.ReadFile(c.ca)
		if err != nil {
			return nil, err
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s holds no certificate", c.ca)
		}
	}
	if c.cert != "" {
		pair, err := tls.LoadX509KeyPair(c.cert, c.key)
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return credentials.NewTLS(config), nil
}

package connect

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/url"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// diagnoseTimeout is for each endpoint, after all has failed already.
const diagnoseTimeout = 500 * time.Millisecond

// diagnose finds out why etcd did not answer, by connecting again without gRPC:
// its own error says only that time was up.
func (c *Config) diagnose(err error) string {
	for _, endpoint := range c.endpoints() {
		if why := c.probe(endpoint); why != "" {
			return why
		}
	}
	var e rpctypes.EtcdError
	if errors.As(err, &e) {
		return e.Error()
	}
	return "connected, but there was no answer: the cluster may have no leader"
}

// probe returns what is wrong with an endpoint, nothing if it can't tell.
func (c *Config) probe(endpoint string) string {
	scheme, host := "", endpoint
	if u, err := url.Parse(endpoint); err == nil && u.Host != "" {
		scheme, host = u.Scheme, u.Host
	}
	if strings.HasPrefix(scheme, "unix") {
		return ""
	}
	config, err := c.tls()
	if err != nil {
		return err.Error()
	}
	encrypted := scheme == "https" || config != nil && scheme != "http"
	if config == nil {
		config = &tls.Config{}
	}
	conn, err := net.DialTimeout("tcp", host, diagnoseTimeout)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(diagnoseTimeout)) // a fresh connection takes it
	if !encrypted {
		// Does it speak TLS all the same?
		if tls.Client(conn, &tls.Config{InsecureSkipVerify: true}).Handshake() == nil {
			return host + " asks for TLS: write https://" + host + " and name its --cacert"
		}
		return ""
	}
	if config.ServerName == "" {
		config.ServerName, _, _ = net.SplitHostPort(host)
	}
	client := tls.Client(conn, config)
	err = client.Handshake()
	if err == nil {
		// With TLS 1.3 a server that wants another certificate says so only now.
		_, err = client.Read(make([]byte, 1))
		var timeout net.Error
		if errors.Is(err, io.EOF) || errors.As(err, &timeout) && timeout.Timeout() {
			err = nil
		}
	}
	var plain tls.RecordHeaderError
	switch {
	case err == nil:
		return ""
	case errors.As(err, &plain), errors.Is(err, io.EOF):
		return host + " ends the TLS handshake: if it does not speak TLS, write http://" + host
	}
	return err.Error()
}

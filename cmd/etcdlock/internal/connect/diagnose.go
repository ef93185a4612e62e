package connect

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// probeTimeout bounds the probe of one endpoint.
const probeTimeout = time.Second

// A Problem is why an endpoint can't be used.
type Problem struct {
	What string // "" if the probe found no problem
	Do   string // "" if the only advice is to check the address
}

// diagnose finds out why etcd did not answer. It connects to each endpoint without
// gRPC, whose own error only says that time was up.
func (c *Config) diagnose(err error) (reason, advice string) {
	endpoints := c.endpoints()
	problems := c.ProbeAll(context.Background(), endpoints)
	var open, reasons []string
	for i, p := range problems {
		switch {
		case p.What == "":
			open = append(open, endpoints[i])
		case !slices.Contains(reasons, p.What):
			reasons = append(reasons, p.What)
		}
		if advice == "" {
			advice = p.Do
		}
	}
	if len(open) > 0 {
		what := "connected to " + Redacted(open...) + ", but there was no answer"
		var e rpctypes.EtcdError
		if errors.As(err, &e) {
			what += ": " + e.Error()
		}
		reasons = slices.Insert(reasons, 0, what)
		if advice == "" {
			advice = cmp.Or(c.NoAnswer, "more than half of etcd's members must run and reach each other; etcdlock doctor says which of them answer")
			if len(endpoints) == 1 {
				advice += "; name all members with " + option("endpoints") + ": the others may be well"
			}
		}
	}
	return strings.Join(reasons, "; "), advice
}

// ProbeAll probes all endpoints at the same time.
func (c *Config) ProbeAll(ctx context.Context, endpoints []string) []Problem {
	problems := make([]Problem, len(endpoints))
	var wg sync.WaitGroup
	for i, endpoint := range endpoints {
		wg.Go(func() { problems[i] = c.probe(ctx, endpoint) }) // ends with probeTimeout
	}
	wg.Wait()
	return problems
}

// probe connects to an endpoint as the client does, up to the end of the TLS
// handshake.
func (c *Config) probe(ctx context.Context, endpoint string) Problem {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	scheme, host := split(endpoint)
	if isSocket(scheme) {
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", host)
		if err != nil {
			return Problem{What: err.Error()}
		}
		_ = conn.Close()
		return Problem{}
	}
	config, err := c.tls()
	if err != nil {
		return Problem{What: err.Error()}
	}
	encrypted := scheme == "https" || config != nil && scheme != "http"
	if config == nil {
		config = &tls.Config{}
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", host)
	if err != nil {
		return Problem{What: err.Error()}
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(probeTimeout)) // can't fail on a fresh connection
	if !encrypted {
		if p := probePlain(conn, host); p.What != "" {
			return p
		}
		return probeHTTP1(ctx, host)
	}
	if config.ServerName == "" {
		config.ServerName, _, _ = net.SplitHostPort(host)
	}
	return c.explainTLS(handshake(tls.Client(conn, config)), host)
}

// Host is the host and port of an endpoint, or the path of its socket.
func Host(endpoint string) string {
	_, host := split(endpoint)
	return host
}

func split(endpoint string) (scheme, host string) {
	if scheme, path, _ := strings.Cut(endpoint, ":"); isSocket(scheme) {
		return scheme, strings.TrimPrefix(path, "//")
	}
	if u, err := url.Parse(endpoint); err == nil && u.Host != "" {
		return u.Scheme, u.Host
	}
	return "", endpoint[strings.LastIndexByte(endpoint, '@')+1:]
}

func isSocket(scheme string) bool { return scheme == "unix" || scheme == "unixs" }

// Redacted lists endpoints for people, without the passwords that somebody may have written into them, although etcd takes none there.
func Redacted(endpoints ...string) string {
	var all []string
	for _, e := range endpoints {
		kind, _ := split(e)
		_, rest, cut := strings.Cut(e, "://")
		if !cut {
			rest = e
		}
		if i := strings.LastIndexByte(rest, '@'); i >= 0 && !isSocket(kind) {
			user, _, _ := strings.Cut(rest[:i], ":")
			e = e[:len(e)-len(rest)] + user + ":xxxxx" + rest[i:]
		}
		all = append(all, e)
	}
	return strings.Join(all, ", ")
}

// probePlain finds out whether a server wants TLS, although the endpoint has none.
func probePlain(conn net.Conn, host string) Problem {
	err := tls.Client(conn, &tls.Config{InsecureSkipVerify: true}).Handshake()
	if err == nil || fromServer(err) {
		return Problem{host + " asks for TLS", "write https://" + host + ", and name the file of its CA with " + option("cacert")}
	}
	return Problem{}
}

// probeHTTP1 finds out whether the server speaks HTTP/1 only, as etcd does at its ports for members and for metrics. It
// begins as gRPC does, with the preface of HTTP/2 and settings.
func probeHTTP1(ctx context.Context, host string) Problem {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", host)
	if err != nil {
		return Problem{}
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(probeTimeout)) // can't fail on a fresh connection
	answer := make([]byte, len("HTTP/1"))
	if _, err = io.WriteString(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"); err == nil {
		_, err = io.ReadFull(conn, answer)
	}
	if err == nil && string(answer) == "HTTP/1" {
		return Problem{host + " answers in HTTP/1, as no etcd does at its port for clients", "name that port, 2379 by default, with " + option("endpoints")}
	}
	return Problem{}
}

// handshake also reads once after the handshake: with TLS 1.3 a server rejects the
// client's certificate only then.
func handshake(conn *tls.Conn) error {
	if err := conn.Handshake(); err != nil {
		return err
	}
	_, err := conn.Read(make([]byte, 1))
	var timeout net.Error
	if errors.Is(err, io.EOF) || errors.As(err, &timeout) && timeout.Timeout() {
		return nil // it has not rejected anything
	}
	return err
}

// fromServer reports whether the server ended the handshake with a TLS alert.
func fromServer(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "remote error"
}

// explainTLS says which option is wrong, by the error of the handshake.
func (c *Config) explainTLS(err error, host string) Problem {
	var (
		noTLS     tls.RecordHeaderError
		authority x509.UnknownAuthorityError
		name      x509.HostnameError
		invalid   x509.CertificateInvalidError
	)
	switch {
	case err == nil:
		return Problem{}
	case errors.As(err, &noTLS), errors.Is(err, io.EOF):
		return Problem{host + " ends the TLS handshake", "if it does not use TLS, write http://" + host}
	case errors.As(err, &authority) && c.CACert == "":
		return Problem{fmt.Sprintf("%s: %v", host, err), "name the file of the CA that signed etcd's certificate with " + option("cacert")}
	case errors.As(err, &authority):
		return Problem{fmt.Sprintf("%s: %v", host, err), "the CA in " + c.CACert + " did not sign etcd's certificate: name the right file with " + option("cacert")}
	case errors.As(err, &name):
		return Problem{fmt.Sprintf("%s: %v", host, err), "name etcd with " + option("endpoints") + " as its certificate does"}
	case errors.As(err, &invalid):
		return Problem{fmt.Sprintf("%s: %v", host, err), "etcd needs another certificate, or this machine's clock is wrong"}
	case fromServer(err) && c.Cert == "":
		return Problem{fmt.Sprintf("%s wants a certificate of the client: %v", host, err),
			"name the files of a certificate and its key with " + option("cert") + " and " + option("key")}
	case fromServer(err):
		return Problem{fmt.Sprintf("%s does not accept the certificate in %s: %v", host, c.Cert, err),
			"name one that etcd's CA has signed, and that has not expired, with " + option("cert") + " and " + option("key")}
	}
	return Problem{What: fmt.Sprintf("%s: %v", host, err)}
}

// option names a flag together with its variable.
func option(flag string) string { return "--" + flag + " (or " + env(flag) + ")" }

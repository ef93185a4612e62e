// Package connect makes the command's connection to etcd. Its flags and environment
// variables are etcdctl's, and its errors say what to do.
package connect

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/etcdlock/etcdlock/cmd/etcdlock/internal/duration"
	"github.com/etcdlock/etcdlock/internal/etcd"
)

// DefaultEndpoint is also etcdctl's default.
const DefaultEndpoint = "127.0.0.1:2379"

// A Config has etcd's address and the credentials. The demo sends it to its workers as
// JSON.
type Config struct {
	Endpoints   []string      `json:"endpoints,omitempty"`
	CACert      string        `json:"cacert,omitempty"`
	Cert        string        `json:"cert,omitempty"`
	Key         string        `json:"key,omitempty"`
	SkipVerify  bool          `json:"skipVerify,omitempty"`
	User        string        `json:"user,omitempty"`
	Password    string        `json:"password,omitempty"`
	DialTimeout time.Duration `json:"dialTimeout,omitempty"`
	// CommandTimeout bounds what a command that looks at locks asks of etcd once it is connected. 0 is no bound.
	CommandTimeout time.Duration `json:"-"`
	// NoAnswer is what to do where endpoints take connections and none answers; "" is to ask etcdlock doctor.
	NoAnswer string `json:"-"`
	// Answered, if set, is told of each request that etcd has carried out for a client made after that. It must not block.
	Answered func() `json:"-"`
}

// AddFlags adds the flags to fs. Call Complete when they are parsed.
func (c *Config) AddFlags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&c.Endpoints, "endpoints", nil, "addresses of etcd's members, host:port,... or https://host:port,... (default "+DefaultEndpoint+")")
	fs.StringVar(&c.CACert, "cacert", "", "file with the CA that signed etcd's certificate")
	fs.StringVar(&c.Cert, "cert", "", "file with the client's certificate")
	fs.StringVar(&c.Key, "key", "", "file with the client's key")
	fs.BoolVar(&c.SkipVerify, "insecure-skip-tls-verify", false, "accept any certificate of etcd (only for tests)")
	fs.StringVar(&c.User, "user", "", "NAME or NAME:PASSWORD, if etcd has authentication enabled")
	fs.StringVar(&c.Password, "password", "", "password of --user; the variable is safer")
	duration.Var(fs, &c.DialTimeout, "dial-timeout", 5*time.Second, "how long etcd may take for its first answer")
	duration.Var(fs, &c.CommandTimeout, "command-timeout", 0, "how long ls, show, break and doctor may take to read or write (default: no limit)")
}

// env is the name of the variable of a flag.
func env(flag string) string {
	return "ETCDCTL_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// Complete takes from the environment what the flags don't set, and checks all.
// Endpoints stays empty if neither names any.
func (c *Config) Complete(fs *pflag.FlagSet) error {
	for _, name := range []string{"endpoints", "cacert", "cert", "key", "insecure-skip-tls-verify", "user", "password", "dial-timeout", "command-timeout"} {
		value := os.Getenv(env(name))
		if value == "" || fs.Changed(name) {
			continue
		}
		if err := fs.Lookup(name).Value.Set(value); err != nil {
			return fmt.Errorf("%s=%q is not a value for --%s: %w", env(name), value, name, err)
		}
	}
	for i, e := range c.Endpoints {
		c.Endpoints[i] = strings.TrimSpace(e)
	}
	c.Endpoints = slices.DeleteFunc(c.Endpoints, func(e string) bool { return e == "" })
	if name, password, ok := strings.Cut(c.User, ":"); ok {
		c.User = name
		if !fs.Changed("password") || fs.Changed("user") { // otherwise the flag overrides the variable
			c.Password = password
		}
	}
	switch {
	case fs.Changed("endpoints") && len(c.Endpoints) == 0:
		return errors.New("--endpoints is empty: name a running etcd, such as " + DefaultEndpoint + ", or remove the option")
	case c.User != "" && c.Password == "":
		return fmt.Errorf("no password for user %s: set %s, or use --user %s:PASSWORD", c.User, env("password"), c.User)
	case c.User == "" && c.Password != "":
		return fmt.Errorf("a password without a user: set %s, or use --user NAME", env("user"))
	case (c.Cert == "") != (c.Key == ""):
		return errors.New("--cert and --key are needed together: name both files")
	case c.DialTimeout <= 0:
		return fmt.Errorf("--dial-timeout %v: it must be more than 0", c.DialTimeout)
	case c.CommandTimeout < 0:
		return fmt.Errorf("--command-timeout %v: it can't be negative", c.CommandTimeout)
	}
	return nil
}

// tls is nil if no flag asks for TLS. An endpoint with https:// asks for TLS too, and
// then the client uses the system's CAs.
func (c *Config) tls() (*tls.Config, error) {
	if c.CACert == "" && c.Cert == "" && !c.SkipVerify {
		return nil, nil
	}
	for _, f := range []struct{ flag, path string }{{"cacert", c.CACert}, {"cert", c.Cert}, {"key", c.Key}} {
		if f.path == "" {
			continue
		}
		pem, err := os.ReadFile(f.path)
		if err != nil {
			return nil, fmt.Errorf("--%s: %w", f.flag, err)
		}
		if f.flag == "cacert" && !x509.NewCertPool().AppendCertsFromPEM(pem) { // which etcd's package takes for an empty list
			return nil, fmt.Errorf("--cacert: %s holds no certificate in PEM form", f.path)
		}
	}
	info := transport.TLSInfo{
		TrustedCAFile: c.CACert, CertFile: c.Cert, KeyFile: c.Key,
		InsecureSkipVerify: c.SkipVerify, EmptyCN: false, Logger: zap.NewNop(),
	}
	config, err := info.ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("--cacert, --cert or --key does not name a PEM file of its kind: %w", err)
	}
	return config, nil
}

// Client makes a client that logs nothing. It makes a request only if there is a user,
// for a token, and DialTimeout bounds that.
func (c *Config) Client() (*clientv3.Client, error) {
	tls, err := c.tls()
	if err != nil {
		return nil, err
	}
	config := clientv3.Config{
		Endpoints: c.endpoints(), TLS: tls, Username: c.User, Password: c.Password,
		DialTimeout: c.DialTimeout, Logger: zap.NewNop(),
	}
	if scheme, _ := split(config.Endpoints[0]); tls != nil && scheme != "http" { // which clientv3 goes by, for all of them
		config.DialOptions = append(config.DialOptions, grpc.WithTransportCredentials(reloading{credentials.NewTLS(tls), c.tls}))
	}
	if c.Answered != nil {
		config.DialOptions = append(config.DialOptions, grpc.WithChainUnaryInterceptor(c.noteAnswer))
	}
	client, err := clientv3.New(config)
	if err != nil {
		return nil, c.Explain(err)
	}
	return client, nil
}

func (c *Config) noteAnswer(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	err := call(ctx, method, req, reply, cc, opts...)
	if err == nil {
		c.Answered()
	}
	return err
}

func (c *Config) endpoints() []string {
	if len(c.Endpoints) == 0 {
		return []string{DefaultEndpoint}
	}
	return c.Endpoints
}

// At lists the endpoints for people.
func (c *Config) At() string { return Redacted(c.endpoints()...) }

// Open makes a client and waits until etcd answers it, for DialTimeout at most.
func (c *Config) Open(ctx context.Context) (*clientv3.Client, error) {
	client, err := c.Client()
	switch {
	case err != nil && ctx.Err() != nil: // nobody waits for an explanation
		return nil, context.Cause(ctx)
	case err != nil:
		return nil, err
	}
	bounded, cancel := context.WithTimeout(ctx, c.DialTimeout)
	defer cancel()
	// Any key will do. A refusal to read it is an answer, too.
	_, err = Count(bounded, client, "etcdlock")
	if err == nil || errors.Is(err, rpctypes.ErrPermissionDenied) {
		return client, nil
	}
	_ = client.Close() // the request has failed already
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return nil, c.Explain(err)
}

// Count reads whether a key is there, linearizably. Where the answer takes long, it asks another member too: one that can't reach
// the others answers nothing, and clientv3 stays with the member that it has asked.
func Count(ctx context.Context, client *clientv3.Client, key string) (int64, error) {
	got, _, err := etcd.Do(ctx, etcd.NewClient(client), etcd.Policy{Hedge: true}, func(ctx context.Context) (*clientv3.GetResponse, error) {
		return client.Get(ctx, key, clientv3.WithCountOnly())
	})
	if err != nil {
		return 0, err
	}
	return got.Count, nil
}

// Bound is ctx with CommandTimeout.
func (c *Config) Bound(ctx context.Context) (context.Context, context.CancelFunc) {
	if c.CommandTimeout == 0 {
		return ctx, func() {}
	}
	return context.WithTimeoutCause(ctx, c.CommandTimeout, fmt.Errorf("--command-timeout of %v is over", c.CommandTimeout))
}

// Explain says what to do about the error of a request that no member has answered.
func (c *Config) Explain(err error) error {
	switch {
	case errors.Is(err, rpctypes.ErrUserEmpty), errors.Is(err, rpctypes.ErrUserNotFound):
		return fmt.Errorf("etcd at %s has authentication enabled: name a user with --user NAME:PASSWORD, or %s and %s",
			c.At(), env("user"), env("password"))
	case errors.Is(err, rpctypes.ErrAuthFailed):
		return fmt.Errorf("etcd at %s does not accept user %s with this password", c.At(), c.User)
	}
	return c.silent(err)
}

// Why says, without advice, why a request had no answer.
func (c *Config) Why(err error) string { return c.silent(err).Why() }

func (c *Config) silent(err error) *Error {
	e := &Error{At: c.At(), Timeout: c.DialTimeout}
	e.reason, e.Advice = c.diagnose(err)
	return e
}

// An Error says that no etcd answered.
type Error struct {
	At      string
	Timeout time.Duration
	Advice  string // "" if the reason suggests nothing
	reason  string
}

// Why says what happened, without advice.
func (e *Error) Why() string {
	return fmt.Sprintf("no etcd answers at %s within %v (%s)", e.At, e.Timeout, e.reason)
}

func (e *Error) Error() string {
	if e.Advice != "" {
		return e.Why() + ": " + e.Advice
	}
	return e.Why() + ": is it running, and is this its address? " + option("endpoints") + " says where to look"
}

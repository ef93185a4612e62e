//go:build unix

package main

import (
	"context"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"google.golang.org/grpc"

	"github.com/etcdlock/etcdlock/cmd/etcdlock/internal/connect"
	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/test/certs"
	"github.com/etcdlock/etcdlock/internal/test/harness"
)

func TestConnect_TLS(t *testing.T) {
	t.Parallel()
	ca, other := certs.New(t), certs.New(t)
	ca.Issue(t, "server")
	ca.Issue(t, "client")
	other.Issue(t, "client")
	cluster := etcdtest.Start(t, etcdtest.WithConfig(func(c *embed.Config) {
		c.ClientTLSInfo = transport.TLSInfo{
			CertFile: ca.File("server.crt"), KeyFile: ca.File("server.key"),
			TrustedCAFile: ca.File("ca.crt"), ClientCertAuth: true, SkipClientSANVerify: true,
		}
	}))
	https := cluster.Endpoints()[0]
	u, err := url.Parse(https)
	require.NoError(t, err)
	full := []string{"--cacert=" + ca.File("ca.crt"), "--cert=" + ca.File("client.crt"), "--key=" + ca.File("client.key")}
	for _, c := range []struct {
		says string // "" if it works
		args []string
	}{
		{"", append([]string{"--endpoints=" + https}, full...)},
		{"", append([]string{"--endpoints=" + u.Host}, full...)},
		{"", append([]string{"--endpoints=" + u.Host + ", " + https + " ,"}, full...)},
		{u.Host + ` asks for TLS\): write https://` + u.Host + `, and name the file of its CA with --cacert \(or ETCDCTL_CACERT\)`, []string{"--endpoints=" + u.Host}},
		{u.Host + `: .*unknown authority\): name the file of the CA that signed etcd's certificate with --cacert \(or ETCDCTL_CACERT\)`, []string{"--endpoints=" + https}},
		{u.Host + `: .*unknown authority.*\): the CA in ` + other.File("ca.crt") + ` did not sign etcd's certificate: name the right file with --cacert`, append([]string{"--endpoints=" + https, "--cacert=" + other.File("ca.crt")}, full[1:]...)},
		{u.Host + ` wants a certificate of the client: .*certificate required\): name the files of a certificate and its key with --cert \(or ETCDCTL_CERT\) and --key \(or ETCDCTL_KEY\)`, []string{"--endpoints=" + https, full[0]}},
		{u.Host + ` does not accept the certificate in ` + other.File("client.crt") + `: .*\): name one that etcd's CA has signed, .* with --cert \(or ETCDCTL_CERT\) and --key`,
			[]string{"--endpoints=" + https, full[0], "--cert=" + other.File("client.crt"), "--key=" + other.File("client.key")}},
		{`name etcd with --endpoints \(or ETCDCTL_ENDPOINTS\) as its certificate does`, append([]string{"--endpoints=https://localhost:" + u.Port()}, full...)},
		{"--cert and --key are needed together", []string{"--endpoints=" + https, full[0], full[1]}},
		{"--cacert: open /no/such: no such file", []string{"--endpoints=" + https, "--cacert=/no/such"}},
		{"--cacert: /etc/passwd holds no certificate in PEM form", []string{"--endpoints=" + https, "--cacert=/etc/passwd"}},
		{"does not name a PEM file", []string{"--endpoints=" + https, full[0], full[1], "--key=/dev/null"}},
	} {
		patience := "--dial-timeout=300ms"
		if c.says == "" {
			patience = "--dial-timeout=30s"
		}
		r := start(t, nil, append(append([]string{"run", patience}, c.args...), "x", "--", "echo", "in")...)
		status := r.wait(t)
		if c.says == "" {
			require.Zero(t, status, r.stderr.String())
			require.Equal(t, "in", r.output())
			continue
		}
		require.Equal(t, 125, status, c.args)
		require.Regexp(t, `^etcdlock: [^\n]*`+c.says+`[^\n]*\n$`, r.stderr.String())
	}
	env := []string{"ETCDCTL_ENDPOINTS=" + https, "ETCDCTL_CACERT=" + ca.File("ca.crt"), "ETCDCTL_CERT=" + ca.File("client.crt"), "ETCDCTL_KEY=" + ca.File("client.key")}
	r := start(t, env, "run", "x", "--", "echo", "in")
	require.Zero(t, r.wait(t), r.stderr.String())
	r = start(t, env, "demo")
	r.until(t, `p\d +\d+ .* ms  1 p`) // its workers connect, too
	require.NoError(t, r.cmd.Process.Signal(os.Interrupt))
	require.Equal(t, 130, r.wait(t))
	r.noTrace(t)

	plain := etcdtest.Start(t)
	host := strings.TrimPrefix(plain.Endpoints()[0], "http://")
	r = start(t, nil, "run", "--dial-timeout=300ms", "--endpoints=https://"+host, "x", "--", "true")
	require.Equal(t, 125, r.wait(t))
	require.Contains(t, r.stderr.String(), host+" ends the TLS handshake): if it does not use TLS, write http://"+host)
	require.NotContains(t, r.stderr.String(), "is it running", "it is")
}

func TestConnect_User(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t, etcdtest.WithConfig(func(c *embed.Config) { c.BcryptCost = 4 })) // makes password checks fast
	endpoint := []string{"ETCDCTL_ENDPOINTS=" + cluster.Endpoints()[0]}
	run := func(t *testing.T, env []string, args ...string) (status int, stderr string) {
		t.Helper()
		r := start(t, append(env, endpoint...), append(append([]string{"run"}, args...), "jobs/x", "--", "true")...)
		return r.wait(t), r.stderr.String()
	}
	status, says := run(t, nil, "--user=ann:secret")
	require.Zero(t, status, "authentication is off: %s", says)

	admin := cluster.Client(t)
	ctx := bounded(t)
	for _, err := range []error{
		second(admin.UserAdd(ctx, "root", "root")), second(admin.UserGrantRole(ctx, "root", "root")),
		second(admin.UserAdd(ctx, "ann", "secret")), second(admin.RoleAdd(ctx, "jobs")), second(admin.UserGrantRole(ctx, "ann", "jobs")),
		second(admin.RoleGrantPermission(ctx, "jobs", "jobs/", clientv3.GetPrefixRangeEnd("jobs/"), clientv3.PermissionType(clientv3.PermReadWrite))),
		second(admin.UserAdd(ctx, "bob", "secret")), second(admin.AuthEnable(ctx)),
	} {
		require.NoError(t, err)
	}
	for _, c := range []struct {
		says string // "" if it works
		env  []string
		args []string
	}{
		{says: "", args: []string{"--user=ann:secret"}},
		{says: "", args: []string{"--user=ann", "--password=secret"}},
		{says: "", env: []string{"ETCDCTL_USER=ann:secret"}},
		{says: "", env: []string{"ETCDCTL_USER=ann", "ETCDCTL_PASSWORD=secret"}},
		{says: "", env: []string{"ETCDCTL_USER=ann:wrong"}, args: []string{"--user=ann:secret"}},
		{says: "", env: []string{"ETCDCTL_USER=ann:wrong"}, args: []string{"--password=secret"}},
		{says: "", env: []string{"ETCDCTL_PASSWORD=wrong"}, args: []string{"--user=ann:secret"}},
		{says: "has authentication enabled: name a user with --user"},
		{says: "does not accept user ann with this password", args: []string{"--user=ann:wrong"}},
		{says: "no password for user ann: set ETCDCTL_PASSWORD", args: []string{"--user=ann"}},
		{says: "a password without a user", env: []string{"ETCDCTL_PASSWORD=secret"}},
		{says: `permission denied .*readwrite on the prefix "jobs/x/"`, args: []string{"--user=bob:secret"}},
		{says: `--command-timeout -1s: it can't be negative`, env: []string{"ETCDCTL_COMMAND_TIMEOUT=-1"}},
		{says: `ETCDCTL_DIAL_TIMEOUT="soon" is not a value for --dial-timeout`, env: []string{"ETCDCTL_DIAL_TIMEOUT=soon"}},
	} {
		status, says := run(t, c.env, c.args...)
		if c.says == "" {
			require.Zero(t, status, says)
			continue
		}
		require.Equal(t, 125, status, c.args)
		// It says that it waits for etcd, and why, if the refusal takes long.
		require.Regexp(t, `^(etcdlock: [^\n]*waiting for etcd: [^\n]*\n)*etcdlock: [^\n]*`+c.says+`[^\n]*\n$`, says)
	}
}

func second[T any](_ T, err error) error { return err }

// A command that looks at locks ends with --command-timeout if etcd has answered once and then answers no more.
func TestConnect_CommandTimeout(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t, intercepted(func(ctx context.Context, req any) {
		if r := harness.RangesOf(req); len(r) > 0 && !r[0].CountOnly { // which only the first one is
			<-ctx.Done()
		}
	}))
	for _, args := range [][]string{{"ls"}, {"show", "x"}, {"break", "x", "x/abc@7"}} {
		status, out, says := ask(t, cluster, append(args, "--command-timeout=100ms")...)
		require.Equal(t, 1, status, args)
		require.Empty(t, out)
		require.Regexp(t, `^etcdlock: .*--command-timeout of 100ms is over\n$`, says)
	}
	status, _, says := ask(t, cluster, "doctor", "x", "--command-timeout=100ms")
	require.NotZero(t, status, says)
}

// A member that takes connections and answers no read, as one does that is cut off from the others, costs a command time, but not
// all of --dial-timeout, while the others answer.
func TestConnect_MemberThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	var met atomic.Int32 // reads that came to that member
	cluster := etcdtest.Start(t, etcdtest.WithMembers(3), etcdtest.WithConfig(func(c *embed.Config) {
		if c.Name != "m0" {
			return
		}
		c.GRPCAdditionalServerOptions = append(c.GRPCAdditionalServerOptions, grpc.ChainUnaryInterceptor(
			func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
				if _, lease := req.(*pb.LeaseTimeToLiveRequest); lease || len(harness.RangesOf(req)) > 0 {
					met.Add(1)
					<-ctx.Done()
				}
				return handler(ctx, req)
			}))
	}))
	etcd := &connect.Config{Endpoints: cluster.Endpoints(), DialTimeout: hang}
	until := func(read func() error) {
		t.Helper()
		for before := met.Load(); met.Load() == before; {
			require.NoError(t, read())
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), hang*3/4) // so sooner than DialTimeout
	defer cancel()
	until(func() error {
		client, err := etcd.Open(ctx)
		if err == nil {
			err = client.Close()
		}
		return err
	})
	client, err := etcd.Open(ctx)
	require.NoError(t, err)
	defer client.Close()
	until(func() error { return ping(ctx, client, "x", etcd.DialTimeout) })
	d := &doctor{client: client, etcd: etcd}
	until(func() error { return second(d.itself(ctx, "x")) })
	until(func() error { return second(d.attached(ctx, 7)) })
}

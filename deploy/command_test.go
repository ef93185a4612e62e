package deploy

import (
	"crypto/tls"
	"go/version"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/test/certs"
)

const release = "1.2.3-test" // VERSION of the Dockerfile

// The image's command says its version: in the image there is no repository to ask.
func TestCommands_Version(t *testing.T) {
	t.Parallel()
	out, err := exec.Command(build(t, "etcdlock"), "--version").Output()
	require.NoError(t, err)
	require.Contains(t, string(out), release)
}

// The images are built for the platform that they run on, also on another one.
func TestDockerfile_Platforms(t *testing.T) {
	dockerfile, err := os.ReadFile("Dockerfile")
	require.NoError(t, err)
	require.Contains(t, string(dockerfile), "--platform linux/amd64,linux/arm64 ")
	require.Regexp(t, `(?s)FROM --platform=\$BUILDPLATFORM golang:\S+ AS build\n.*\nARG TARGETOS TARGETARCH .*\nENV CGO_ENABLED=0 GOOS=\$TARGETOS GOARCH=\$TARGETARCH\nRUN go build`, string(dockerfile))
}

// Each image that is built from is pinned by its digest, with a tag that tells people what it is. It has the Go that the
// sources ask for: the image of golang does not fetch another one.
func TestDockerfile_Pinned(t *testing.T) {
	t.Parallel()
	dockerfile, err := os.ReadFile("Dockerfile")
	require.NoError(t, err)
	var needs []string
	for _, gomod := range []string{"../go.latest.mod", "../examples/go.mod"} {
		text, err := os.ReadFile(gomod)
		require.NoError(t, err)
		needs = append(needs, "go"+string(regexp.MustCompile(`(?m)^go (\S+)$`).FindSubmatch(text)[1]))
	}
	pinned := 0
	for _, image := range images(t, string(dockerfile)) {
		m := regexp.MustCompile(`^([a-z0-9./-]+):([a-z0-9._-]+)@sha256:[0-9a-f]{64}$`).FindStringSubmatch(image)
		require.NotNil(t, m, "%s: a tag can be moved to other contents; add @sha256:... as README.md says", image)
		pinned++
		if m[1] == "golang" {
			require.GreaterOrEqual(t, version.Compare("go"+m[2], slices.MaxFunc(needs, version.Compare)), 0, "%s is older than %s", image, needs)
		}
	}
	require.NotZero(t, pinned)
	require.Equal(t, []string{"a:1", "b", "c@sha256:0", "$IMAGE"}, images(t, "# FROM x\nFROM a:1 AS one\n from --platform=p b\nFROM scratch\nFROM one AS two\nFROM ONE\n"+
		"COPY --from=two /x /y\nCOPY --chown=1:1 --from=c@sha256:0 /x /y\nCOPY --from=0 /x /y\nFROM $IMAGE"))
	bot, err := os.ReadFile("../.github/dependabot.yml")
	require.NoError(t, err)
	require.Contains(t, string(bot), "package-ecosystem: docker\n    directory: /deploy\n", "a digest that nobody renews keeps what is mended elsewhere")
}

// images lists what a Dockerfile takes from elsewhere: neither its own stages nor nothing (scratch).
func images(t *testing.T, dockerfile string) (from []string) {
	t.Helper()
	stages := []string{"scratch"}
	for line := range strings.Lines(dockerfile) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		image := ""
		switch strings.ToUpper(fields[0]) {
		case "FROM":
			fields = slices.DeleteFunc(fields, func(f string) bool { return strings.HasPrefix(f, "--") })
			image = fields[1]
		case "COPY":
			for _, f := range fields {
				if of, ok := strings.CutPrefix(f, "--from="); ok {
					image = of
				}
			}
		}
		number := regexp.MustCompile(`^\d*$`).MatchString(image) // of a stage, or it is no such instruction
		if !number && !slices.Contains(stages, strings.ToLower(image)) {
			from = append(from, image)
		}
		if n := len(fields); n == 4 && strings.EqualFold(fields[0], "FROM") && strings.EqualFold(fields[2], "AS") {
			stages = append(stages, strings.ToLower(fields[3]))
		}
	}
	return from
}

// build builds a program of the images with the Dockerfile's line for it, but with the flags that the packages are compiled
// with already.
func build(t *testing.T, name string) string {
	t.Helper()
	dockerfile, err := os.ReadFile("Dockerfile")
	require.NoError(t, err)
	line := regexp.MustCompile(`(?m)^RUN (go .*build) -trimpath (.*-o )/out/` + name + `( \S+)$`).FindStringSubmatch(string(dockerfile))
	require.NotNil(t, line, name)
	gomod := "../go.latest.mod"
	if name == "cron" {
		gomod = "../examples/go.mod"
	} else {
		require.Contains(t, line[2], "-modfile=go.latest.mod ")
	}
	text, err := os.ReadFile(gomod)
	require.NoError(t, err)
	minor := regexp.MustCompile(`(?m)^go (1\.\d+)`).FindSubmatch(text)[1]
	require.Contains(t, string(dockerfile), "FROM --platform=$BUILDPLATFORM golang:"+string(minor)+".")
	bin := filepath.Join(t.TempDir(), name)
	cmd := exec.Command("sh", "-c", line[1]+" "+line[2]+bin+line[3])
	cmd.Dir = ".."
	cmd.Env = append(os.Environ(), "VERSION="+release)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	return bin
}

// startTLS starts an etcd that wants certificates, and returns it with the
// environment of the pods that use it: their ConfigMap's, with the certificates where
// they are here.
func startTLS(t *testing.T) (*etcdtest.Cluster, []string) {
	t.Helper()
	ca := certs.New(t)
	ca.Issue(t, "server")
	ca.Issue(t, "tls")
	cluster := etcdtest.Start(t, etcdtest.WithConfig(func(c *embed.Config) {
		c.ClientTLSInfo = transport.TLSInfo{
			CertFile: ca.File("server.crt"), KeyFile: ca.File("server.key"),
			TrustedCAFile: ca.File("ca.crt"), ClientCertAuth: true, SkipClientSANVerify: true,
		}
	}))
	env := os.Environ()
	for name, value := range find[*corev1.ConfigMap](t, production).Data {
		if name == "ETCDCTL_ENDPOINTS" {
			require.Regexp(t, `^https://`, value)
			value = cluster.Endpoints()[0]
		} else {
			value = ca.File(filepath.Base(value))
		}
		env = append(env, name+"="+value)
	}
	return cluster, env
}

// reportCommand is the CronJob's command with another program, and with another
// time to wait if that is not empty.
func reportCommand(t *testing.T, wait string, program ...string) *exec.Cmd {
	t.Helper()
	c := find[*batchv1.CronJob](t, complete).Spec.JobTemplate.Spec.Template.Spec.Containers[0]
	require.Equal(t, []string{"etcdlock"}, c.Command)
	dash := slices.Index(c.Args, "--")
	require.Positive(t, dash)
	args := slices.Clone(c.Args[:dash+1])
	if wait != "" {
		args[slices.Index(args, "--wait")+1] = wait
	}
	return exec.CommandContext(bounded(t), build(t, "etcdlock"), append(args, program...)...)
}

// The CronJob's command runs a program under the lock.
func TestCommands_Report(t *testing.T) {
	t.Parallel()
	_, env := startTLS(t)
	cmd := reportCommand(t, "", "sh", "-c", "echo $ETCDLOCK_NAME")
	cmd.Env = env
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	require.Equal(t, "jobs/report\n", string(out))
}

// Where somebody else has the lock, the CronJob's command ends with the status that
// its podFailurePolicy ignores.
func TestCommands_Taken(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	s, err := etcdlock.NewSession(bounded(t), cluster.Client(t))
	require.NoError(t, err)
	_, err = etcdlock.NewMutex(s, "jobs/report").Lock(bounded(t))
	require.NoError(t, err)
	cmd := reportCommand(t, "100ms", "true")
	cmd.Env = append(os.Environ(), "ETCDCTL_ENDPOINTS="+cluster.Endpoints()[0])
	var exit *exec.ExitError
	require.ErrorAs(t, cmd.Run(), &exit)
	require.Equal(t, 75, exit.ExitCode())
}

// Where etcd does not answer, the CronJob's command ends with the other status that its podFailurePolicy ignores.
func TestCommands_NoEtcd(t *testing.T) {
	t.Parallel()
	cmd := reportCommand(t, "", "true")
	cmd.Env = append(os.Environ(), "ETCDCTL_ENDPOINTS=127.0.0.1:1", "ETCDCTL_DIAL_TIMEOUT=100ms")
	var exit *exec.ExitError
	require.ErrorAs(t, cmd.Run(), &exit)
	require.Equal(t, 125, exit.ExitCode())
}

// The Deployment's program leads and resigns, with the environment that the pod has.
func TestCommands_Cron(t *testing.T) {
	t.Parallel()
	cluster, env := startTLS(t)
	c := find[*appsv1.Deployment](t, production).Spec.Template.Spec.Containers[0]
	for _, e := range c.Env {
		require.Contains(t, []string{"LISTEN", "POD_NAME"}, e.Name, "examples/cron has no such variable")
	}
	ctx := bounded(t)
	cmd := exec.CommandContext(ctx, build(t, "cron"))
	cmd.Env = append(env, "POD_NAME=cron-0", "LISTEN=127.0.0.1:0")
	require.NoError(t, cmd.Start())
	client := cluster.Client(t, etcdtest.WithClientConfig(func(c *clientv3.Config) { c.TLS = clientTLS(t, env) }))
	for q, err := range etcdlock.New(client).Watch(ctx, "cron/nightly") {
		require.NoError(t, err)
		if len(q.Holders()) == 1 {
			require.Equal(t, "cron-0", q.Holders()[0].Owner)
			break
		}
	}
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(t, cmd.Wait(), "asked to end, it ends well")
	q, err := etcdlock.New(client).Inspect(ctx, "cron/nightly")
	require.NoError(t, err)
	require.Empty(t, q.Entries, "and has resigned")
}

// clientTLS makes of the environment what a client of this process needs.
func clientTLS(t *testing.T, env []string) *tls.Config {
	t.Helper()
	var info transport.TLSInfo
	for _, e := range env {
		switch name, value, _ := strings.Cut(e, "="); name {
		case "ETCDCTL_CACERT":
			info.TrustedCAFile = value
		case "ETCDCTL_CERT":
			info.CertFile = value
		case "ETCDCTL_KEY":
			info.KeyFile = value
		}
	}
	config, err := info.ClientConfig()
	require.NoError(t, err)
	return config
}

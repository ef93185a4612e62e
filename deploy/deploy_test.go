package deploy

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
)

const hang = 60 * time.Second

func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	t.Cleanup(cancel)
	return ctx
}

// manifests are the objects of all files, decoded strictly: a field that does not
// exist, or of the wrong type, fails the test.
func manifests(t *testing.T) (objects []any) {
	t.Helper()
	files, err := filepath.Glob("kubernetes/*.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, f := range files {
		b, err := os.ReadFile(f)
		require.NoError(t, err)
		for _, doc := range bytes.Split(b, []byte("\n---\n")) {
			var kind metav1.TypeMeta
			require.NoError(t, yaml.Unmarshal(doc, &kind), f)
			object, ok := map[string]any{
				"v1/Secret":                     &corev1.Secret{},
				"apps/v1/Deployment":            &appsv1.Deployment{},
				"batch/v1/CronJob":              &batchv1.CronJob{},
				"policy/v1/PodDisruptionBudget": &policyv1.PodDisruptionBudget{},
			}[kind.APIVersion+"/"+kind.Kind]
			require.True(t, ok, "%s: %s %s", f, kind.APIVersion, kind.Kind)
			require.NoError(t, yaml.UnmarshalStrict(doc, object), f)
			objects = append(objects, object)
		}
	}
	return objects
}

func find[T any](t *testing.T) T {
	t.Helper()
	for _, o := range manifests(t) {
		if v, ok := o.(T); ok {
			return v
		}
	}
	require.FailNow(t, "no such manifest")
	panic("not reached")
}

// What the manifests name fits together.
func TestManifests(t *testing.T) {
	secret := find[*corev1.Secret](t)
	deployment, cron := find[*appsv1.Deployment](t), find[*batchv1.CronJob](t)
	require.EqualValues(t, 3, *deployment.Spec.Replicas)
	require.Equal(t, deployment.Spec.Selector.MatchLabels, deployment.Spec.Template.Labels)
	require.Equal(t, deployment.Spec.Selector, find[*policyv1.PodDisruptionBudget](t).Spec.Selector)

	for _, pod := range []corev1.PodSpec{deployment.Spec.Template.Spec, cron.Spec.JobTemplate.Spec.Template.Spec} {
		require.Len(t, pod.Volumes, 1)
		require.Equal(t, secret.Name, pod.Volumes[0].Secret.SecretName)
		c := pod.Containers[0]
		require.Equal(t, pod.Volumes[0].Name, c.VolumeMounts[0].Name)
		for _, e := range c.Env {
			if file, ok := strings.CutPrefix(e.Value, c.VolumeMounts[0].MountPath+"/"); ok {
				require.Contains(t, secret.StringData, file)
			}
		}
	}
	c := deployment.Spec.Template.Spec.Containers[0]
	for _, p := range []*corev1.Probe{c.ReadinessProbe, c.LivenessProbe} {
		require.Equal(t, c.Ports[0].Name, p.HTTPGet.Port.StrVal)
	}
	require.Equal(t, cron.Spec.JobTemplate.Spec.Template.Spec.Containers[0].Name,
		*cron.Spec.JobTemplate.Spec.PodFailurePolicy.Rules[0].OnExitCodes.ContainerName)
}

// build builds a command of the repository as the Dockerfile does, but for the
// linking, which would have all be compiled anew.
func build(t *testing.T, pkg string) string {
	t.Helper()
	dockerfile, err := os.ReadFile("Dockerfile")
	require.NoError(t, err)
	require.Regexp(t, `(?m)^RUN go build -trimpath -o /out/`+filepath.Base(pkg)+` `+regexp.QuoteMeta(pkg)+`$`, string(dockerfile))
	gomod, err := os.ReadFile("../go.mod")
	require.NoError(t, err)
	version := regexp.MustCompile(`(?m)^go (1\.\d+)`).FindSubmatch(gomod)[1]
	require.Contains(t, string(dockerfile), "FROM golang:"+string(version)+" ")
	bin := filepath.Join(t.TempDir(), filepath.Base(pkg))
	cmd := exec.Command("go", "build", "-o", bin, pkg)
	cmd.Dir = ".."
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	return bin
}

// The CronJob's command is one that works: run here with another program, and the
// Deployment's with its own environment, as far as it goes without TLS.
func TestCommands(t *testing.T) {
	cluster := etcdtest.Start(t)
	client := cluster.Client(t)
	ctx := bounded(t)
	c := find[*batchv1.CronJob](t).Spec.JobTemplate.Spec.Template.Spec.Containers[0]
	require.Equal(t, []string{"etcdlock"}, c.Command)
	dash := slices.Index(c.Args, "--")
	require.Positive(t, dash)
	cmd := exec.CommandContext(ctx, build(t, "./cmd/etcdlock"), append(c.Args[:dash+1:dash+1], "sh", "-c", "echo $ETCDLOCK_NAME")...)
	cmd.Env = append(os.Environ(), "ETCDCTL_ENDPOINTS="+cluster.Endpoints()[0])
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	require.Equal(t, "jobs/report\n", string(out))

	d := find[*appsv1.Deployment](t).Spec.Template.Spec.Containers[0]
	cmd = exec.CommandContext(ctx, build(t, "./examples/cron"))
	cmd.Env = append(os.Environ(), "ETCDCTL_ENDPOINTS="+cluster.Endpoints()[0], "POD_NAME=cron-0", "LISTEN=127.0.0.1:0")
	for _, e := range d.Env {
		switch e.Name {
		case "ETCDCTL_ENDPOINTS", "ETCDCTL_CACERT", "ETCDCTL_CERT", "ETCDCTL_KEY", "LISTEN", "POD_NAME":
		default:
			require.Fail(t, "a variable that examples/cron does not have", e.Name)
		}
	}
	require.NoError(t, cmd.Start())
	for q, err := range etcdlock.New(client).Watch(ctx, "cron/nightly") {
		require.NoError(t, err)
		if len(q.Holders()) == 1 {
			require.Equal(t, "cron-0", q.Holders()[0].Owner)
			break
		}
	}
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	require.NoError(t, cmd.Wait(), "asked to end, it ends well")
	q, err := etcdlock.New(client).Inspect(ctx, "cron/nightly")
	require.NoError(t, err)
	require.Empty(t, q.Entries, "and has resigned")
}

// A grant is a right that a role has.
type grant struct {
	kind       clientv3.PermissionType
	key, until string
}

// grants are those of etcd/role.sh.
func grants(t *testing.T) (all []grant) {
	t.Helper()
	script, err := os.ReadFile("etcd/role.sh")
	require.NoError(t, err)
	for _, m := range regexp.MustCompile(`(?m)^etcdctl role grant-permission locks --prefix=true readwrite (\S+)$`).FindAllSubmatch(script, -1) {
		prefix := string(m[1])
		all = append(all, grant{clientv3.PermissionType(clientv3.PermReadWrite), prefix, clientv3.GetPrefixRangeEnd(prefix)})
	}
	require.Len(t, all, strings.Count(string(script), "grant-permission"))
	return all
}

func second[T any](_ T, err error) error { return err }

// withRole is a client of an etcd with authentication on, and of a user whose role
// has these grants.
func withRole(t *testing.T, role []grant) *clientv3.Client {
	t.Helper()
	cluster := etcdtest.Start(t, etcdtest.WithConfig(func(c *embed.Config) { c.BcryptCost = 4 }))
	admin, ctx := cluster.Client(t), bounded(t)
	for _, err := range []error{
		second(admin.UserAdd(ctx, "root", "root")), second(admin.UserGrantRole(ctx, "root", "root")),
		second(admin.UserAdd(ctx, "cron", "secret")), second(admin.RoleAdd(ctx, "locks")), second(admin.UserGrantRole(ctx, "cron", "locks")),
	} {
		require.NoError(t, err)
	}
	for _, g := range role {
		require.NoError(t, second(admin.RoleGrantPermission(ctx, "locks", g.key, g.until, g.kind)))
	}
	require.NoError(t, second(admin.AuthEnable(ctx)))
	return cluster.Client(t, etcdtest.WithClientConfig(func(c *clientv3.Config) { c.Username, c.Password = "cron", "secret" }))
}

// use does with a lock whatever there is to do.
func use(t *testing.T, client *clientv3.Client, name string) error {
	t.Helper()
	ctx := bounded(t)
	s, err := etcdlock.NewSession(ctx, client)
	if err != nil {
		return err
	}
	defer s.Close()
	err = etcdlock.NewMutex(s, name).Do(ctx, func(ctx context.Context, h *etcdlock.Held) error {
		if _, err := etcdlock.NewRWMutex(s, name).REnqueue(context.WithoutCancel(ctx)); !errors.Is(err, etcdlock.ErrWouldDeadlock) {
			return errors.Join(err, errors.New("no deadlock seen"))
		}
		waiting, err := etcdlock.NewRWMutex(s, name).REnqueue(bounded(t))
		if err != nil {
			return err
		}
		if _, err := waiting.Ahead(ctx); err != nil {
			return err
		}
		if _, err := h.Txn(ctx).Then(clientv3.OpPut(name+"/data/x", "1")).Commit(); err != nil {
			return err
		}
		q, err := etcdlock.New(client).Inspect(ctx, name)
		if err != nil {
			return err
		}
		if err := etcdlock.New(client).Break(ctx, q.Waiters()[0]); err != nil {
			return err
		}
		return h.Check(ctx)
	})
	if err != nil {
		return err
	}
	w, err := etcdlock.NewRWMutex(s, name).Lock(ctx)
	if err != nil {
		return err
	}
	if err := errors.Join(w.Downgrade(ctx), w.Unlock(ctx)); err != nil {
		return err
	}
	for _, err := range etcdlock.New(client).ListNames(ctx, name[:strings.IndexByte(name, '/')+1]) {
		if err != nil {
			return err
		}
	}
	locks := etcdlock.New(client)
	defer locks.Close()
	return locks.Elector(name).Run(ctx, func(context.Context, *etcdlock.Held) error { return nil })
}

// The role suffices for all that there is to do with locks of its prefixes.
func TestRole(t *testing.T) {
	t.Parallel()
	all := grants(t)
	client := withRole(t, all)
	for _, g := range all {
		require.NoError(t, use(t, client, g.key+"x"))
	}
	require.ErrorIs(t, use(t, client, "others/x"), rpctypes.ErrPermissionDenied)
	cron, job := find[*appsv1.Deployment](t), find[*batchv1.CronJob](t)
	require.NotNil(t, cron)
	require.Contains(t, job.Spec.JobTemplate.Spec.Template.Spec.Containers[0].Args, "jobs/report")
}

// Less does not suffice.
func TestRole_Less(t *testing.T) {
	t.Parallel()
	read, write := clientv3.PermissionType(clientv3.PermRead), clientv3.PermissionType(clientv3.PermWrite)
	both := clientv3.PermissionType(clientv3.PermReadWrite)
	end := clientv3.GetPrefixRangeEnd
	for what, role := range map[string][]grant{
		"read only":              {{read, "jobs/", end("jobs/")}},
		"write only":             {{write, "jobs/", end("jobs/")}},
		"the name without its /": {{both, "jobs/x", ""}},
		"one kind of entry":      {{both, "jobs/x/0", "jobs/x/g"}},
		"another prefix":         {{both, "cron/", end("cron/")}},
		"nothing":                nil,
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			require.ErrorIs(t, use(t, withRole(t, role), "jobs/x"), rpctypes.ErrPermissionDenied)
		})
	}
}

// To look, to read is enough.
func TestRole_ReadOnly(t *testing.T) {
	t.Parallel()
	client := withRole(t, []grant{{clientv3.PermissionType(clientv3.PermRead), "jobs/", clientv3.GetPrefixRangeEnd("jobs/")}})
	ctx := bounded(t)
	_, err := etcdlock.New(client).Inspect(ctx, "jobs/x")
	require.NoError(t, err)
	for _, err := range etcdlock.New(client).ListNames(ctx, "jobs/") {
		require.NoError(t, err)
	}
	for _, err := range etcdlock.New(client).Watch(ctx, "jobs/x") {
		require.NoError(t, err)
		break
	}
}

package deploy

import (
	"context"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	klabels "k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"

	"github.com/etcdlock/etcdlock/deploy/internal/etcdctl"
)

const hang = 60 * time.Second

func TestMain(m *testing.M) {
	etcdctl.Main()
	os.Exit(m.Run())
}

func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	t.Cleanup(cancel)
	return ctx
}

// The directories that README.md says to apply.
const (
	production = "kubernetes/production"
	complete   = "kubernetes/complete"
)

// manifests are the objects that `kubectl apply -k dir` applies, decoded strictly: a
// field that does not exist, or of the wrong type, fails the test.
func manifests(t *testing.T, dir string) (objects []any) {
	t.Helper()
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	require.NoError(t, err)
	for _, r := range built.Resources() {
		kind := r.GetApiVersion() + "/" + r.GetKind()
		object, ok := map[string]any{
			"apps/v1/Deployment":                      &appsv1.Deployment{},
			"batch/v1/CronJob":                        &batchv1.CronJob{},
			"policy/v1/PodDisruptionBudget":           &policyv1.PodDisruptionBudget{},
			"v1/ConfigMap":                            &corev1.ConfigMap{},
			"v1/ServiceAccount":                       &corev1.ServiceAccount{},
			"networking.k8s.io/v1/NetworkPolicy":      &networkingv1.NetworkPolicy{},
			"monitoring.coreos.com/v1/PodMonitor":     &monitoringv1.PodMonitor{},
			"monitoring.coreos.com/v1/PrometheusRule": &monitoringv1.PrometheusRule{},
		}[kind]
		require.True(t, ok, "%s: %s", dir, kind) // a Secret is none of them
		b, err := r.AsYAML()
		require.NoError(t, err)
		require.NoError(t, yaml.UnmarshalStrict(b, object), kind)
		objects = append(objects, object)
	}
	return objects
}

func find[T any](t *testing.T, dir string) T {
	t.Helper()
	all := findAll[T](t, dir)
	require.NotEmpty(t, all, "no such manifest")
	return all[0]
}

func findAll[T any](t *testing.T, dir string) (all []T) {
	t.Helper()
	for _, o := range manifests(t, dir) {
		if v, ok := o.(T); ok {
			all = append(all, v)
		}
	}
	return all
}

// pods are those of the Deployment and of the CronJob, if there is one.
func pods(t *testing.T, dir string) (all []corev1.PodTemplateSpec) {
	t.Helper()
	for _, d := range findAll[*appsv1.Deployment](t, dir) {
		all = append(all, d.Spec.Template)
	}
	for _, j := range findAll[*batchv1.CronJob](t, dir) {
		all = append(all, j.Spec.JobTemplate.Spec.Template)
	}
	return all
}

// What the manifests name fits together, in the base and with what the overlay
// changes.
func TestManifests(t *testing.T) {
	for _, dir := range []string{"kubernetes/base", production, complete} {
		deployment, config := find[*appsv1.Deployment](t, dir), find[*corev1.ConfigMap](t, dir)
		require.EqualValues(t, 3, *deployment.Spec.Replicas)
		require.Subset(t, deployment.Spec.Template.Labels, deployment.Spec.Selector.MatchLabels)
		require.Equal(t, deployment.Spec.Selector, find[*policyv1.PodDisruptionBudget](t, dir).Spec.Selector)
		for _, template := range pods(t, dir) {
			pod := template.Spec
			name := template.Labels["app.kubernetes.io/name"]
			require.Equal(t, name+"-etcd-client", pod.Volumes[0].Secret.SecretName, "each workload is a user of its own")
			require.NotEmpty(t, template.Labels["app.kubernetes.io/part-of"])
			c := pod.Containers[0]
			require.Equal(t, name, c.Name)
			require.True(t, *c.SecurityContext.ReadOnlyRootFilesystem)
			require.False(t, *c.SecurityContext.AllowPrivilegeEscalation)
			require.False(t, *pod.AutomountServiceAccountToken)
			require.Equal(t, pod.Volumes[0].Name, c.VolumeMounts[0].Name)
			require.Empty(t, c.VolumeMounts[0].SubPath, "Kubernetes would not replace the certificates")
			require.Equal(t, config.Name, c.EnvFrom[0].ConfigMapRef.Name)
			for _, file := range []string{"ETCDCTL_CACERT", "ETCDCTL_CERT", "ETCDCTL_KEY"} {
				require.Equal(t, c.VolumeMounts[0].MountPath, filepath.Dir(config.Data[file]))
			}
			require.Regexp(t, `^[^:]+:\d+\.\d+\.\d+$`, c.Image, "a tag that never moves")
		}
		c := deployment.Spec.Template.Spec.Containers[0]
		for path, p := range map[string]*corev1.Probe{"/readyz": c.ReadinessProbe, "/healthz": c.LivenessProbe} {
			require.Equal(t, c.Ports[0].Name, p.HTTPGet.Port.StrVal)
			require.Equal(t, path, p.HTTPGet.Path)
		}
		require.Nil(t, c.StartupProbe, "it would restart replicas while etcd is away")
		require.Equal(t, policyv1.AlwaysAllow, *find[*policyv1.PodDisruptionBudget](t, dir).Spec.UnhealthyPodEvictionPolicy)
	}
}

// Each pod runs as an account without rights, and may ask names and etcd and nobody else.
func TestManifests_Isolation(t *testing.T) {
	for _, dir := range []string{"kubernetes/base", production, complete} {
		accounts, policies := findAll[*corev1.ServiceAccount](t, dir), findAll[*networkingv1.NetworkPolicy](t, dir)
		require.Len(t, accounts, len(pods(t, dir)))
		require.Len(t, policies, len(pods(t, dir)))
		for i, pod := range pods(t, dir) {
			require.Equal(t, accounts[i].Name, pod.Spec.ServiceAccountName)
			require.False(t, *accounts[i].AutomountServiceAccountToken)
			selector, err := metav1.LabelSelectorAsSelector(&policies[i].Spec.PodSelector)
			require.NoError(t, err)
			require.True(t, selector.Matches(klabels.Set(pod.Labels)))
			require.Equal(t, []networkingv1.PolicyType{"Ingress", "Egress"}, policies[i].Spec.PolicyTypes)
			var out []int32
			for _, rule := range policies[i].Spec.Egress {
				for _, p := range rule.Ports {
					out = append(out, p.Port.IntVal)
				}
			}
			require.Equal(t, []int32{53, 53, 2379}, out)
			for _, at := range strings.Split(find[*corev1.ConfigMap](t, dir).Data["ETCDCTL_ENDPOINTS"], ",") {
				require.Regexp(t, `:2379$`, at)
			}
			ports := pod.Spec.Containers[0].Ports
			require.Len(t, policies[i].Spec.Ingress, len(ports))
			for j, rule := range policies[i].Spec.Ingress {
				require.Equal(t, ports[j].Name, rule.Ports[0].Port.StrVal)
			}
		}
	}
}

// What README.md says to apply first needs nothing that a cluster or a registry may not have.
func TestManifests_NoPrerequisites(t *testing.T) {
	require.Empty(t, findAll[*monitoringv1.PodMonitor](t, production))
	require.Empty(t, findAll[*monitoringv1.PrometheusRule](t, production))
	require.Empty(t, findAll[*batchv1.CronJob](t, production), "its image is the user's own")
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	for _, placeholder := range []string{"registry.example.com", "etcd-0.etcd.storage"} {
		require.Contains(t, string(readme), placeholder)
	}
}

// The overlay changes what it says.
func TestManifests_Production(t *testing.T) {
	deployment := find[*appsv1.Deployment](t, production)
	require.Equal(t, "locks", deployment.Namespace)
	require.Contains(t, find[*corev1.ConfigMap](t, production).Data["ETCDCTL_ENDPOINTS"], "etcd-0.etcd.storage:2379")
	require.Equal(t, "/etc/etcd-client/ca.crt", find[*corev1.ConfigMap](t, production).Data["ETCDCTL_CACERT"], "from the base")
	for _, pod := range pods(t, complete) {
		require.Regexp(t, `^registry\.example\.com/`, pod.Spec.Containers[0].Image)
	}
	monitor := find[*monitoringv1.PodMonitor](t, complete)
	require.Equal(t, "locks", find[*batchv1.CronJob](t, complete).Namespace)
	require.Subset(t, deployment.Spec.Template.Labels, monitor.Spec.Selector.MatchLabels)
	require.Equal(t, deployment.Spec.Template.Spec.Containers[0].Ports[0].Name, *monitor.Spec.PodMetricsEndpoints[0].Port)

	var rules monitoringv1.PrometheusRuleSpec
	b, err := os.ReadFile("monitoring/rules.yaml")
	require.NoError(t, err)
	require.NoError(t, yaml.UnmarshalStrict(b, &rules))
	require.Equal(t, rules, find[*monitoringv1.PrometheusRule](t, complete).Spec, "kubernetes/monitoring/prometheusrule.yaml is not monitoring/rules.yaml")
}

var write = flag.Bool("write", false, "write kubernetes/monitoring/prometheusrule.yaml")

const ruleHeader = `# Made from deploy/monitoring/rules.yaml: change that, and then run
#
#   go -C deploy test . -run TestPrometheusRule -args -write
#
# It is an object for the Prometheus operator.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: etcdlock
spec:
`

// The rules for the Prometheus operator are made from those for any Prometheus.
func TestPrometheusRule(t *testing.T) {
	const file = "kubernetes/monitoring/prometheusrule.yaml"
	rules, err := os.ReadFile("monitoring/rules.yaml")
	require.NoError(t, err)
	_, groups, ok := strings.Cut(string(rules), "\ngroups:\n")
	require.True(t, ok)
	made := ruleHeader
	for line := range strings.Lines("groups:\n" + groups) {
		if line != "\n" {
			line = "  " + line
		}
		made += line
	}
	if *write {
		require.NoError(t, os.WriteFile(file, []byte(made), 0o644))
	}
	is, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, made, string(is), "go -C deploy test . -run TestPrometheusRule -args -write")
}

// What README.md says to do makes the Secret that the pods need, and nothing that is
// applied overwrites it.
func TestManifests_Secret(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	applied := regexp.MustCompile(`(?m)^kubectl .*apply (.*)$`).FindAllStringSubmatch(string(readme), -1)
	require.Len(t, applied, 3)
	require.Equal(t, "-k deploy/"+production, applied[0][1])
	require.Equal(t, "-k deploy/"+complete, applied[1][1])
	require.Equal(t, "-f -", applied[2][1], "what the same line has made")
	created := regexp.MustCompile(`kubectl -n (\S+) create secret generic (\S+)((?: --from-file=\S+)+)`).FindAllStringSubmatch(string(readme), -1)
	require.Len(t, created, 3)
	var secrets []string
	for _, pod := range pods(t, complete) {
		secrets = append(secrets, pod.Spec.Volumes[0].Secret.SecretName)
	}
	require.Equal(t, append(secrets, secrets[0]), []string{created[0][2], created[1][2], created[2][2]})
	for _, c := range created {
		require.Equal(t, find[*appsv1.Deployment](t, production).Namespace, c[1])
		config := find[*corev1.ConfigMap](t, production)
		for _, file := range []string{"ETCDCTL_CACERT", "ETCDCTL_CERT", "ETCDCTL_KEY"} {
			require.Contains(t, strings.Fields(c[3]), "--from-file="+filepath.Base(config.Data[file]))
		}
	}
	// Nor does a file that somebody applies by itself.
	require.NoError(t, fs.WalkDir(os.DirFS("kubernetes"), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(filepath.Join("kubernetes", path))
		require.NoError(t, err)
		require.NotRegexp(t, `(?m)^kind: Secret|secretGenerator`, string(b), path)
		return nil
	}))
}

// A drained node, a lock that somebody else has and an etcd that is away are no failures
// of the job, and its tries end all the same.
func TestManifests_Job(t *testing.T) {
	job := find[*batchv1.CronJob](t, complete).Spec.JobTemplate.Spec
	c := job.Template.Spec.Containers[0]
	rules := job.PodFailurePolicy.Rules
	require.Len(t, rules, 2)
	require.Equal(t, batchv1.PodFailurePolicyActionIgnore, rules[0].Action)
	require.Equal(t, corev1.DisruptionTarget, rules[0].OnPodConditions[0].Type)
	require.Equal(t, batchv1.PodFailurePolicyActionIgnore, rules[1].Action)
	require.Equal(t, c.Name, *rules[1].OnExitCodes.ContainerName)
	require.Equal(t, batchv1.PodFailurePolicyOnExitCodesOpIn, rules[1].OnExitCodes.Operator)
	require.Equal(t, []int32{75, 125}, rules[1].OnExitCodes.Values) // TestCommands_Taken and TestCommands_NoEtcd see them
	require.Equal(t, corev1.RestartPolicyNever, job.Template.Spec.RestartPolicy, "podFailurePolicy needs it")
	require.Greater(t, time.Duration(*job.ActiveDeadlineSeconds)*time.Second, waits(t, c.Args))
}

// waits is the value of --wait.
func waits(t *testing.T, args []string) time.Duration {
	t.Helper()
	for i, a := range args {
		if a == "--wait" {
			d, err := time.ParseDuration(args[i+1])
			require.NoError(t, err)
			return d
		}
	}
	require.FailNow(t, "no --wait")
	panic("not reached")
}

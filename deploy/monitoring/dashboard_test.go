package monitoring

import (
	"context"
	"encoding/json"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	client "github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/prometheus/rules"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/promlock"
)

const (
	hang = 60 * time.Second
	tick = 100 * time.Millisecond
)

// A dashboard is what the test reads of Grafana's model.
type dashboard struct {
	Panels []struct {
		Title   string `json:"title"`
		Targets []struct {
			Expr         string `json:"expr"`
			LegendFormat string `json:"legendFormat"`
		} `json:"targets"`
	} `json:"panels"`
	Templating struct {
		List []struct {
			Name string `json:"name"`
		} `json:"list"`
	} `json:"templating"`
}

func readDashboard(t *testing.T) (d dashboard) {
	t.Helper()
	b, err := os.ReadFile("dashboard.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(b, &d))
	require.NotEmpty(t, d.Panels)
	return d
}

// filled is a query as Grafana sends it, with all jobs and locks selected.
func (d dashboard) filled(t *testing.T, expr string) string {
	t.Helper()
	expr = strings.NewReplacer("$__rate_interval", "1m", "$__range", "1m").Replace(expr)
	for _, v := range d.Templating.List {
		expr = strings.ReplaceAll(expr, "$"+v.Name, ".*")
	}
	require.NotContains(t, expr, "$", "a variable that the dashboard does not have")
	return expr
}

// A service is a process that uses locks, as far as Prometheus sees it: a target
// with the metrics of promlock, and with those of the etcd in the process of the test.
type service struct {
	etcd    *clientv3.Client
	session *etcdlock.Session
	target  string
}

func startService(t *testing.T, cluster *etcdtest.Cluster, opts ...etcdtest.ClientOption) *service {
	t.Helper()
	metrics, registry := promlock.New(), client.NewRegistry()
	registry.MustRegister(metrics)
	server := httptest.NewServer(promhttp.HandlerFor(client.Gatherers{registry, client.DefaultGatherer}, promhttp.HandlerOpts{}))
	t.Cleanup(server.Close)
	s := &service{etcd: cluster.Client(t, opts...), target: strings.TrimPrefix(server.URL, "http://")}
	var err error
	s.session, err = etcdlock.NewSession(bounded(t), s.etcd, etcdlock.WithTTL(6*time.Second), etcdlock.WithHooks(metrics.Hooks()))
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.session.Close() })
	return s
}

func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), hang)
	t.Cleanup(cancel)
	return ctx
}

// Each query of the dashboard, and the condition of each alert, has something to
// show of services in which all goes wrong that can: scraped with native histograms
// and without.
func TestDashboard(t *testing.T) {
	for name, native := range map[string]bool{"native histograms": true, "classic histograms": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster := etcdtest.Start(t)
			proxy := cluster.Proxy(t)
			tap := etcdtest.NewTap()
			cutOff, well := startService(t, cluster, proxy), startService(t, cluster, tap)
			p := startPrometheus(t, native, cutOff.target, well.target)
			scraped := func(expr string) {
				t.Helper()
				require.Eventually(t, func() bool { return positive(p.query(t, expr)) }, hang, tick, expr)
			}
			scraped("sum(etcdlock_sessions) == 2") // both, before anything happens

			// One service holds a lock, and the other waits for it.
			ctx := bounded(t)
			_, err := etcdlock.NewMutex(cutOff.session, "jobs/report").Lock(ctx)
			require.NoError(t, err)
			_, err = etcdlock.NewMutex(well.session, "jobs/report").Enqueue(ctx)
			require.NoError(t, err)
			jam(t, well)
			// Twice, since Prometheus sees an increase only of a series that was there.
			misuse(t, well)
			refuse(t, well, tap)
			scraped(`etcdlock_lost_total{name="orders"} == 1`)
			scraped(`(etcdlock_wait_seconds_count{name="refused", outcome="error"} or histogram_count(etcdlock_wait_seconds{name="refused", outcome="error"})) == 1`)
			misuse(t, well)
			refuse(t, well, tap)
			// The holder's renewals fail until its session is lost.
			proxy.Refuse()
			proxy.Reset()
			<-cutOff.session.Done()
			scraped(`etcdlock_sessions_ended_total{cause="session_expired"}`)

			d := readDashboard(t)
			for _, panel := range d.Panels {
				require.NotEmpty(t, panel.Targets, panel.Title)
				for _, target := range panel.Targets {
					expr := d.filled(t, target.Expr)
					scraped(expr)
					for _, label := range regexp.MustCompile(`{{(\w+)}}`).FindAllStringSubmatch(target.LegendFormat, -1) {
						require.NotEmpty(t, p.query(t, expr)[0].Metric.Get(label[1]), "%s: no label %s", panel.Title, label[1])
					}
				}
			}
			sooner := strings.NewReplacer("> 300", "> 0", "> 0.8 *", "> 0 *", "up == 0", "up == 1") // the test takes no five minutes, fills no etcd, and stops none
			for _, g := range alerting(t, &rules.ManagerOptions{}) {
				for _, r := range g.AlertingRules() {
					scraped(sooner.Replace(r.Query().String()))
				}
			}
		})
	}
}

// misuse has somebody break a lock that is held, and somebody else try it.
func misuse(t *testing.T, s *service) {
	t.Helper()
	ctx := bounded(t)
	orders := etcdlock.NewMutex(s.session, "orders")
	h, err := orders.Lock(ctx)
	require.NoError(t, err)
	_, err = orders.TryLock(ctx)
	require.ErrorIs(t, err, etcdlock.ErrLocked)
	_, err = s.etcd.Delete(ctx, h.Key())
	require.NoError(t, err)
	require.ErrorIs(t, h.Unlock(ctx), etcdlock.ErrLost)
}

// refuse has a lock refused, as by an etcd that is full.
func refuse(t *testing.T, s *service, tap *etcdtest.Tap) {
	t.Helper()
	defer tap.Every("Txn", func(context.Context, *etcdtest.Call) error { return rpctypes.ErrGRPCNoSpace })()
	_, err := etcdlock.NewMutex(s.session, "refused").Lock(bounded(t))
	require.ErrorIs(t, err, rpctypes.ErrNoSpace)
}

// jam has a lock wait for a key without a lease, which no process holds.
func jam(t *testing.T, s *service) {
	t.Helper()
	_, err := s.etcd.Put(bounded(t), "imports/1", "")
	require.NoError(t, err)
	_, err = etcdlock.NewMutex(s.session, "imports").Enqueue(bounded(t))
	require.NoError(t, err)
}

// Each metric that promlock's documentation lists is on the dashboard.
func TestDashboard_ShowsAll(t *testing.T) {
	doc, err := os.ReadFile("../../promlock/doc.go")
	require.NoError(t, err)
	var all strings.Builder
	for _, p := range readDashboard(t).Panels {
		for _, target := range p.Targets {
			all.WriteString(target.Expr)
		}
	}
	metrics := regexp.MustCompile(`(?m)^//\t(etcdlock_\w+)(?:{[\w,]+})? +\w`).FindAllStringSubmatch(string(doc), -1)
	require.Len(t, metrics, 13)
	for _, m := range metrics {
		require.Contains(t, all.String(), m[1])
	}
}

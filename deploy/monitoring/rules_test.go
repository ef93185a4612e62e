package monitoring

import (
	"context"
	"log/slog"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/rules"
	"github.com/stretchr/testify/require"
)

const rulesFile = "rules.yaml"

// alerting loads the rules as Prometheus does, and strictly, as promtool check rules.
func alerting(t *testing.T, opts *rules.ManagerOptions) []*rules.Group {
	t.Helper()
	promql := parser.NewParser(parser.Options{})
	_, errs := rulefmt.ParseFile(rulesFile, false, model.UTF8Validation, promql, slog.New(slog.DiscardHandler))
	require.Empty(t, errs)
	groups, errs := rules.NewManager(opts).LoadGroups(interval, labels.EmptyLabels(), "", nil, false, rulesFile)
	require.Empty(t, errs)
	return slices.Collect(maps.Values(groups))
}

const interval = 30 * time.Second // of scrapes and of evaluations

// firing replays series, which are written as in promtool's unit tests, and returns
// the alerts that fire at the end: their labels and summary.
func firing(t *testing.T, until time.Duration, series string) (alerts map[string]string) {
	t.Helper()
	loader, err := promqltest.NewLazyLoader("load "+interval.String()+"\n"+series, promqltest.LazyLoaderOpts{})
	require.NoError(t, err)
	defer func() { require.NoError(t, loader.Close()) }()
	groups := alerting(t, &rules.ManagerOptions{
		Context: t.Context(), Appendable: loader.Storage(), Queryable: loader.Storage(),
		QueryFunc:  rules.EngineQueryFunc(loader.QueryEngine(), loader.Storage()),
		NotifyFunc: func(context.Context, string, ...*rules.Alert) {},
	})
	for at := time.Unix(0, 0); !at.After(time.Unix(0, 0).Add(until)); at = at.Add(interval) {
		loader.WithSamplesTill(at, func(err error) {
			require.NoError(t, err)
			for _, g := range groups {
				g.Eval(loader.Context(), at)
			}
		})
	}
	alerts = make(map[string]string)
	for _, g := range groups {
		for _, r := range g.AlertingRules() {
			require.NoError(t, r.LastError())
			for _, a := range r.ActiveAlerts() {
				if a.State == rules.StateFiring {
					alerts[a.Labels.MatchLabels(false, "severity").String()] = a.Annotations.Get("summary")
				}
			}
		}
	}
	return alerts
}

func TestRules(t *testing.T) {
	const holds, waits = `etcdlock_held{name="a",mode="exclusive",instance="x"} `, `etcdlock_waiting{name="a",mode="exclusive",instance="y"} `
	for _, c := range []struct {
		name   string
		until  time.Duration
		series []string
		want   map[string]string
	}{
		{"all is well", 20 * time.Minute, []string{
			holds + `1x40`, waits + `3x40`,
			`etcdlock_oldest_wait_seconds{name="a",mode="exclusive",instance="y"} 20x40`,
			`etcdlock_lost_total{name="a",mode="exclusive",cause="removed"} 5x40`,
			`etcdlock_lost_total{name="a",mode="exclusive",cause="session_closed"} 0+1x40`, // on purpose
			`etcdlock_sessions_ended_total{job="j",instance="x",cause="session_closed"} 0+1x40`,
			`etcdlock_sessions_ended_total{job="j",instance="x",cause="session_expired"} 0x40`,
			`etcdlock_session_renewal_failures_total{instance="x"} 7x40`,
			`etcdlock_session_ttl_left_seconds{instance="x"} 9 5.7 8 6 8 8 8 5.7x40`, // as it is just before renewals
			`etcdlock_session_ttl_seconds{instance="x"} 10x40`,
		}, nil},
		{"lost", 5 * time.Minute, []string{
			`etcdlock_lost_total{name="a",mode="exclusive",cause="removed",instance="x"} 0x5 1x20`,
			`etcdlock_lost_total{name="a",mode="shared",cause="removed",instance="x"} 0x25`,
		}, map[string]string{`{alertname="EtcdlockLockLost", cause="removed", name="a"}`: "Lock a was lost while it was held (removed)."}},
		{"lost long ago", 30 * time.Minute, []string{
			`etcdlock_lost_total{name="a",mode="exclusive",cause="removed",instance="x"} 0x5 1x60`,
		}, nil},
		{"a session lost", 5 * time.Minute, []string{
			`etcdlock_sessions_ended_total{job="j",instance="x",cause="session_expired"} 0x5 1x20`,
		}, map[string]string{`{alertname="EtcdlockSessionLost", instance="x", job="j"}`: "A session of x was lost."}},
		{"a renewal or two that failed", 5 * time.Minute, []string{
			`etcdlock_session_renewal_failures_total{instance="x"} 0x5 2x20`,
		}, nil},
		{"renewals fail", 5 * time.Minute, []string{
			`etcdlock_session_renewal_failures_total{instance="x"} 0x5 4x20`,
		}, map[string]string{`{alertname="EtcdlockRenewalsFail", instance="x"}`: "Lease renewals of x fail."}},
		{"renewals hang", 5 * time.Minute, []string{
			`etcdlock_session_renewal_failures_total{instance="x"} 0x20`,
			`etcdlock_session_ttl_left_seconds{instance="x"} 55x9 23`,
			`etcdlock_session_ttl_seconds{instance="x"} 60x20`,
		}, map[string]string{`{alertname="EtcdlockRenewalsFail", instance="x"}`: "Lease renewals of x fail."}},
		{"an old queue", 10 * time.Minute, []string{
			holds + `1x40`, waits + `3x40`,
			`etcdlock_oldest_wait_seconds{name="a",mode="exclusive",instance="y"} 0+30x40`,
			`etcdlock_oldest_wait_seconds{name="a",mode="shared",instance="x"} 5x40`,
			`etcdlock_oldest_wait_seconds{name="b",mode="shared",instance="x"} 300x40`,
		}, map[string]string{`{alertname="EtcdlockQueueOld", name="a"}`: "Somebody has waited for lock a for 10m 0s."}},
		{"a standby", 20 * time.Minute, []string{
			`etcdlock_held{name="a",mode="elector",instance="x"} 1x40`, `etcdlock_waiting{name="a",mode="elector",instance="y"} 2x40`,
			`etcdlock_oldest_wait_seconds{name="a",mode="elector",instance="y"} 0+30x40`,
		}, nil},
		{"etcd refuses: classic histograms", 10 * time.Minute, []string{
			`etcdlock_wait_seconds_count{name="a",mode="exclusive",outcome="error",instance="x"} _x10 3+9x30`,
			`etcdlock_wait_seconds_count{name="b",mode="exclusive",outcome="timeout",instance="x"} 0+9x30`,
			`etcdlock_wait_seconds_count{name="b",mode="exclusive",outcome="granted",instance="x"} 0+9x30`,
		}, map[string]string{`{alertname="EtcdlockLocksFail", name="a"}`: "Etcd refuses lock a."}},
		{"etcd refuses: native histograms", 10 * time.Minute, []string{
			`etcdlock_wait_seconds{name="a",mode="elector",outcome="error",instance="x"} {{schema:3 sum:1 count:9 buckets:[9]}}+{{schema:3 sum:1 count:9 buckets:[9]}}x30`,
		}, map[string]string{`{alertname="EtcdlockLocksFail", name="a"}`: "Etcd refuses lock a."}},
		{"etcd has refused long ago", 30 * time.Minute, []string{
			`etcdlock_wait_seconds_count{name="a",mode="exclusive",outcome="error",instance="x"} 1 9x60`,
		}, nil},
		{"the holder died less than a TTL ago", 6*time.Minute + 30*time.Second, []string{
			holds + `1x11 stale`, waits + `1x30`,
		}, nil},
		{"nobody holds it", 10 * time.Minute, []string{
			holds + `1x4 stale`, waits + `1x30`,
			`etcdlock_waiting{name="b",mode="exclusive",instance="y"} 0x30`, // nobody waits
			`etcdlock_held{name="b",mode="exclusive",instance="y"} 0x30`,
		}, map[string]string{`{alertname="EtcdlockHolderGone", name="a"}`: "Lock a is waited for, and no process that is scraped holds it."}},
		{"nobody holds it, and calls time out", 10 * time.Minute, []string{
			holds + `0x30`, waits + `1 0 0 1 0 0 1 0 1 0 0 0 0 1 0 0 1 0 1 0 0`,
			`etcdlock_wait_seconds_count{name="a",mode="exclusive",outcome="timeout",instance="y"} 0+4x30`,
			`etcdlock_wait_seconds{name="b",mode="exclusive",outcome="timeout",instance="y"} {{schema:3 sum:1 count:9 buckets:[9]}}+{{schema:3 sum:1 count:9 buckets:[9]}}x30`,
		}, map[string]string{
			`{alertname="EtcdlockHolderGone", name="a"}`: "Lock a is waited for, and no process that is scraped holds it.",
			`{alertname="EtcdlockHolderGone", name="b"}`: "Lock b is waited for, and no process that is scraped holds it.",
		}},
		{"calls time out beside a holder", 10 * time.Minute, []string{
			holds + `1x30`,
			`etcdlock_wait_seconds_count{name="a",mode="exclusive",outcome="timeout",instance="y"} 0+4x30`,
		}, nil},
		// Nobody has the lock "a, b" by that name, but somebody has a.
		{"a Multi waits for a Mutex", 10 * time.Minute, []string{
			holds + `1x40`,
			`etcdlock_waiting{name="a, b",mode="exclusive",instance="y"} 1x40`,
			`etcdlock_held{name="a, b",mode="exclusive",instance="y"} 0x40`,
			`etcdlock_oldest_wait_seconds{name="a, b",mode="exclusive",instance="y"} 0+30x40`,
			`etcdlock_wait_seconds_count{name="a, c",mode="exclusive",outcome="timeout",instance="y"} 0+4x40`,
			`etcdlock_wait_seconds{name="a, d",mode="exclusive",outcome="timeout",instance="y"} {{schema:3 sum:1 count:9 buckets:[9]}}+{{schema:3 sum:1 count:9 buckets:[9]}}x40`,
		}, map[string]string{`{alertname="EtcdlockQueueOld", name="a, b"}`: "Somebody has waited for lock a, b for 10m 0s."}},
		// The metrics can't tell that from a lock that nobody has, so the alert's text names it.
		{"a Mutex waits for a Multi", 10 * time.Minute, []string{
			`etcdlock_held{name="a, b",mode="exclusive",instance="x"} 1x30`, waits + `1x30`,
		}, map[string]string{`{alertname="EtcdlockHolderGone", name="a"}`: "Lock a is waited for, and no process that is scraped holds it."}},
		{"a reader holds it", 10 * time.Minute, []string{
			`etcdlock_held{name="a",mode="shared",instance="x"} 1x30`, waits + `1x30`,
		}, nil},
		// A lock that goes round is scraped in no process at the moment when it is
		// there, and yet is granted all the time.
		{"it goes round: classic histograms", 10 * time.Minute, []string{
			holds + `0x30`, waits + `1x30`,
			`etcdlock_wait_seconds_count{name="a",mode="exclusive",outcome="granted",instance="x"} 0+9x30`,
		}, nil},
		{"it goes round: native histograms", 10 * time.Minute, []string{
			holds + `0x30`, waits + `1x30`,
			`etcdlock_wait_seconds{name="a",mode="exclusive",outcome="granted",instance="x"} {{schema:3 sum:1 count:9 buckets:[9]}}+{{schema:3 sum:1 count:9 buckets:[9]}}x30`,
		}, nil},
		{"etcd is nearly full", 15 * time.Minute, []string{
			`etcd_mvcc_db_total_size_in_bytes{job="etcd",instance="m0"} 850x4 1717986919x40`,
			`etcd_server_quota_backend_bytes{job="etcd",instance="m0"} 2147483648x44`,
			`etcd_mvcc_db_total_size_in_bytes{job="etcd",instance="m1"} 1700000000x44`, // 79 %
			`etcd_server_quota_backend_bytes{job="etcd",instance="m1"} 2147483648x44`,
		}, map[string]string{`{alertname="EtcdDataNearQuota", instance="m0", job="etcd"}`: "The data of etcd's member m0 has 1.6GiB, above 80 % of its quota."}},
		{"etcd has been nearly full for less than ten minutes", 7 * time.Minute, []string{
			`etcd_mvcc_db_total_size_in_bytes{job="etcd",instance="m0"} 2000000000x15`,
			`etcd_server_quota_backend_bytes{job="etcd",instance="m0"} 2147483648x15`,
		}, nil},
		{"a member of etcd hangs", 10 * time.Minute, []string{
			`up{job="etcd",instance="m0"} 1x30`, `up{job="etcd",instance="m1"} 1x5 0x30`, `up{job="service",instance="x"} 0x30`,
			`etcd_server_has_leader{job="etcd",instance="m0"} 1x30`, `etcd_server_has_leader{job="etcd",instance="m1"} 1x5 stale`,
		}, map[string]string{`{alertname="EtcdMemberSilent", instance="m1", job="etcd"}`: "Etcd's member m1 does not answer."}},
		{"a member of etcd has hung for long, and another one since Prometheus began", 130 * time.Minute, []string{
			`up{job="etcd",instance="m0"} 1x300`, `up{job="etcd",instance="m1"} 1x5 0x295`, `up{job="etcd",instance="m2"} 0x300`,
			`etcd_server_has_leader{job="etcd",instance="m0"} 1x300`, `etcd_server_has_leader{job="etcd",instance="m1"} 1x5 stale`,
		}, map[string]string{
			`{alertname="EtcdMemberSilent", instance="m1", job="etcd"}`: "Etcd's member m1 does not answer.",
			`{alertname="EtcdMemberSilent", instance="m2", job="etcd"}`: "Etcd's member m2 does not answer.",
		}},
		{"no member of etcd answers", 130 * time.Minute, []string{
			`up{job="etcd",instance="m0"} 1x5 0x295`, `etcd_server_has_leader{job="etcd",instance="m0"} 1x5 stale`,
		}, map[string]string{`{alertname="EtcdMemberSilent", instance="m0", job="etcd"}`: "Etcd's member m0 does not answer."}},
		{"a member of etcd is started anew", 10 * time.Minute, []string{
			`up{job="etcd",instance="m0"} 1x14 0x2 1x20`,
			`etcd_server_has_leader{job="etcd",instance="m0"} 1x14 stale _x2 1x20`,
		}, nil},
		{"it goes round no more", 10 * time.Minute, []string{
			holds + `0x30`, waits + `1x30`,
			`etcdlock_wait_seconds_count{name="a",mode="exclusive",outcome="granted",instance="x"} 0+9x5 45x30`,
			`etcdlock_wait_seconds_count{name="a",mode="exclusive",outcome="timeout",instance="x"} 0+9x30`,
		}, map[string]string{`{alertname="EtcdlockHolderGone", name="a"}`: "Lock a is waited for, and no process that is scraped holds it."}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.want == nil {
				c.want = map[string]string{}
			}
			require.Equal(t, c.want, firing(t, c.until, strings.Join(c.series, "\n")))
		})
	}
}

// Who follows an alert finds each reason that the log gives for the loss of a session, and for renewals that fail the
// reason that is not an outage.
func TestRules_LeadToTheCause(t *testing.T) {
	doc, err := os.ReadFile("../../docs/operations.md")
	require.NoError(t, err)
	section := func(title string) string {
		_, after, found := strings.Cut(string(doc), "\n### "+title+"\n")
		require.True(t, found, title)
		text, _, _ := strings.Cut(after, "\n### ")
		return text
	}
	_, row, _ := strings.Cut(string(doc), "\n| `session lost` |")
	row, _, _ = strings.Cut(row, "\n")
	_, whys, _ := strings.Cut(row, "`why`: ")
	reasons := regexp.MustCompile("`([^`]+)` \\(").FindAllStringSubmatch(whys, -1)
	require.Len(t, reasons, 6)
	for _, why := range reasons {
		require.Contains(t, section("A session was lost"), "`"+why[1]+"`")
	}
	require.Contains(t, section("Renewals fail"), "permission denied")
}

// An alert that fires though nothing is wrong says when that is so: a Mutex waits for a Multi.
func TestRules_HolderIsAMulti(t *testing.T) {
	rules, err := os.ReadFile("rules.yaml")
	require.NoError(t, err)
	_, alert, _ := strings.Cut(string(rules), "alert: EtcdlockHolderGone")
	alert, _, _ = strings.Cut(alert, "runbook_url")
	require.Contains(t, alert, "a Multi, which the metrics name `a, b`")
}

// Each alert names a section of docs/operations.md that there is.
func TestRules_Runbooks(t *testing.T) {
	doc, err := os.ReadFile("../../docs/operations.md")
	require.NoError(t, err)
	var anchors []string
	for line := range strings.Lines(string(doc)) {
		if title, ok := strings.CutPrefix(line, "### "); ok {
			anchors = append(anchors, strings.ReplaceAll(strings.ToLower(strings.TrimSpace(title)), " ", "-"))
		}
	}
	for _, g := range alerting(t, &rules.ManagerOptions{}) {
		for _, r := range g.AlertingRules() {
			page, anchor, _ := strings.Cut(r.Annotations().Get("runbook_url"), "#")
			require.Equal(t, "https://github.com/etcdlock/etcdlock/blob/main/docs/operations.md", page)
			require.Contains(t, anchors, anchor, r.Name())
		}
	}
}

package monitoring

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	client "github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/promlock"
)

// The rules on the metrics of real replicas. One replica waits for longer than any rule looks back. For a standby of an
// elector that is its ordinary life, and nothing fires. For a lock it is an alarm.
func TestRules_Standby(t *testing.T) {
	cluster := etcdtest.Start(t)
	replica := func() (*etcdlock.Client, *client.Registry) {
		metrics, registry := promlock.New(), client.NewRegistry()
		registry.MustRegister(metrics)
		locks := etcdlock.New(cluster.Client(t), etcdlock.WithHooks(metrics.Hooks()))
		t.Cleanup(func() { _ = locks.Close() })
		return locks, registry
	}
	for what, want := range map[string]map[string]string{
		"elector": {},
		"mutex":   {`{alertname="EtcdlockQueueOld", name="mutex"}`: "Somebody has waited for lock mutex for 20m 0s."},
	} {
		t.Run(what, func(t *testing.T) {
			ctx, cancel := context.WithCancel(bounded(t))
			in, ended := make(chan struct{}, 2), make(chan error)
			section := func(ctx context.Context, _ *etcdlock.Held) error {
				in <- struct{}{}
				<-ctx.Done()
				return ctx.Err()
			}
			var registries []*client.Registry
			for i := range 2 {
				locks, registry := replica()
				registries = append(registries, registry)
				go func() { // until cancel
					if what == "mutex" {
						ended <- locks.Mutex(what).Do(ctx, section)
					} else {
						ended <- locks.Elector(what).Run(ctx, section)
					}
				}()
				if i == 0 {
					<-in
				}
			}
			require.Eventually(t, func() bool {
				return slices.ContainsFunc(series(t, "y", registries[1]), func(s string) bool {
					return strings.HasPrefix(s, "etcdlock_waiting{") && strings.Contains(s, " 1x")
				})
			}, hang, tick)
			require.Equal(t, want, firing(t, standbyFor, strings.Join(append(series(t, "x", registries[0]), series(t, "y", registries[1])...), "\n")))
			cancel()
			for range registries {
				require.ErrorIs(t, <-ended, context.Canceled)
			}
		})
	}
}

const standbyFor = 20 * time.Minute

// series are what a scrape of the registry has, as it goes on for standbyFor if nothing happens: ages grow, and all
// else stays.
func series(t *testing.T, instance string, registry *client.Registry) (lines []string) {
	t.Helper()
	families, err := registry.Gather()
	require.NoError(t, err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			labels := []string{fmt.Sprintf("instance=%q", instance)}
			for _, l := range m.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			name, value := f.GetName(), 0.0
			switch f.GetType() {
			case dto.MetricType_GAUGE:
				value = m.GetGauge().GetValue()
			case dto.MetricType_COUNTER:
				value = m.GetCounter().GetValue()
			case dto.MetricType_HISTOGRAM:
				name, value = name+"_count", float64(m.GetHistogram().GetSampleCount())
			}
			steps := int(standbyFor / interval)
			line := fmt.Sprintf("%s{%s} %vx%d", name, strings.Join(labels, ","), value, steps)
			if strings.HasPrefix(name, "etcdlock_oldest_") && value > 0 {
				line = fmt.Sprintf("%s{%s} 0+%vx%d", name, strings.Join(labels, ","), interval.Seconds(), steps)
			}
			lines = append(lines, line)
		}
	}
	return lines
}

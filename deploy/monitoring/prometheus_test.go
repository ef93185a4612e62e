package monitoring

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	client "github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/discovery"
	"github.com/prometheus/prometheus/discovery/targetgroup"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/scrape"
	"github.com/prometheus/prometheus/tsdb"
	"github.com/stretchr/testify/require"
)

// A prometheus scrapes targets into a TSDB and answers queries from it, all with
// Prometheus's own packages.
type prometheus struct {
	db     *tsdb.DB
	engine *promql.Engine
	began  time.Time
}

const scrapeInterval = 200 * time.Millisecond // a scrape may take as long

// startPrometheus scrapes these targets until the test ends. Without native it
// stores the classic buckets of histograms, as a Prometheus does by default.
func startPrometheus(t *testing.T, native bool, targets ...string) *prometheus {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	db, err := tsdb.Open(t.TempDir(), log, nil, tsdb.DefaultOptions(), nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })

	cfg, err := config.Load(fmt.Sprintf(`
global: {scrape_interval: %v, scrape_timeout: %[1]v, scrape_native_histograms: %v}
scrape_configs:
  - {job_name: service, static_configs: [{targets: [%s]}]}
`, scrapeInterval, native, strings.Join(targets, ", ")), log)
	require.NoError(t, err)
	scraper, err := scrape.NewManager(&scrape.Options{DiscoveryReloadOnStartup: true}, log, nil, nil, db, client.NewRegistry())
	require.NoError(t, err)
	require.NoError(t, scraper.ApplyConfig(cfg))
	groups := map[string][]*targetgroup.Group{}
	for _, job := range cfg.ScrapeConfigs {
		for _, found := range job.ServiceDiscoveryConfigs {
			groups[job.JobName] = append(groups[job.JobName], found.(discovery.StaticConfig)...)
		}
	}
	discovered, ended := make(chan map[string][]*targetgroup.Group), make(chan error)
	go func() { ended <- scraper.Run(discovered) }() // until Stop
	discovered <- groups
	t.Cleanup(func() {
		scraper.Stop()
		require.NoError(t, <-ended)
	})
	engine := promql.NewEngine(promql.EngineOpts{MaxSamples: 1e7, Timeout: hang, EnableAtModifier: true, EnableNegativeOffset: true})
	return &prometheus{db, engine, time.Now()}
}

// query runs a range query from the start until now, as a graph does.
func (p *prometheus) query(t *testing.T, expr string) promql.Matrix {
	t.Helper()
	q, err := p.engine.NewRangeQuery(t.Context(), p.db, nil, expr, p.began, time.Now(), scrapeInterval)
	require.NoError(t, err, expr)
	defer q.Close()
	result := q.Exec(t.Context())
	require.NoError(t, result.Err, expr)
	require.Empty(t, result.Warnings, expr)
	matrix, err := result.Matrix()
	require.NoError(t, err, expr)
	// The matrix does not outlive q.Close.
	return copied(matrix)
}

func copied(m promql.Matrix) (c promql.Matrix) {
	for _, s := range m {
		c = append(c, promql.Series{Metric: s.Metric.Copy(), Floats: append([]promql.FPoint(nil), s.Floats...)})
	}
	return c
}

// positive reports whether some point of the result is above zero, and so neither
// missing nor NaN.
func positive(m promql.Matrix) bool {
	for _, s := range m {
		for _, p := range s.Floats {
			if p.F > 0 {
				return true
			}
		}
	}
	return false
}

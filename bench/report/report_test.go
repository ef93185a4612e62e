package report

import (
	"encoding/xml"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/bench/measure"
)

// add adds a value for each round.
func (r *Run) add(f figure, values ...float64) {
	for i, v := range values {
		r.Results = append(r.Results, Result{Round: i + 1, Servers: f.servers, Quantity: f.quantity, Peer: f.peer, Values: measure.Values{f.value: v}})
	}
}

func uncontended(peer string) figure { return figure{"embedded", "uncontended", peer, "p50_us"} }

// Results are read as they were written, and medians and ratios are computed over the rounds.
func TestReport_MediansAndRatios(t *testing.T) {
	var run, other Run
	run.add(uncontended("floor"), 100, 200, 900)
	run.add(uncontended("etcdlock"), 200, 800, 1800)
	other.add(atRest("held", 10, "requests"), 7)
	paths := []string{filepath.Join(t.TempDir(), "a.json"), filepath.Join(t.TempDir(), "b.json")}
	require.NoError(t, run.Write(paths[0]))
	require.NoError(t, other.Write(paths[1]))
	report, err := Read(paths...)
	require.NoError(t, err)
	require.Equal(t, run.Results, report[0].Results)
	require.Equal(t, 3, report[0].Rounds())
	require.InDelta(t, 800, report.get(uncontended("etcdlock")).median(), 0)
	require.Equal(t, []float64{2, 2, 4}, report.ratio(uncontended("etcdlock"), uncontended("floor")).values)
	require.Equal(t, "2.00× <sub>2.00×–4.00×</sub>", report.ratio(uncontended("etcdlock"), uncontended("floor")).show(factor))
	require.Equal(t, []float64{7}, report.get(atRest("held", 10, "requests")).values)
}

// A ratio is within a round of one run: two runs may be of two machines.
func TestReport_NoRatioAcrossRuns(t *testing.T) {
	var run, other Run
	run.add(uncontended("floor"), 100)
	other.add(uncontended("etcdlock"), 100)
	require.Empty(t, Report{&run, &other}.ratio(uncontended("etcdlock"), uncontended("floor")).values)
}

// A goal is met by a value within the limit, and never without a value or when two contenders held the lock at once.
func TestReport_Goals(t *testing.T) {
	over := func(overlaps float64, values ...float64) bool {
		var run Run
		run.add(uncontended("floor"), 100, 100, 100)
		run.add(uncontended("etcdlock"), values...)
		for _, res := range run.Results {
			res.Values["overlaps"] = overlaps
		}
		for _, g := range (Report{&run}).goals() {
			if g.What == "uncontended: p50 over the floor" {
				return g.Met
			}
		}
		t.Fatal("no such goal")
		return false
	}
	require.True(t, over(0, 100, 114, 900))
	require.False(t, over(0, 100, 116, 116))
	require.False(t, over(0))
	require.False(t, over(1, 100, 100, 100))

	for _, c := range Contenders {
		require.Positive(t, ofRing[c.String()].near*ofRing[c.String()].far, c)
	}
	for _, g := range (Report{&Run{}}).goals() {
		require.False(t, g.Met, g.What)
	}
}

// The whole page is written, with its plots, from whatever was measured.
func TestReport_Readme(t *testing.T) {
	var run Run
	run.add(uncontended("etcdlock"), 200, 400, 1800)
	grants := figure{"embedded", "grants/8x16", "etcdlock", "passed_per_s"}
	run.add(grants, 5, 6)
	run.Machine = map[string]string{"cores": "2"}
	run.Results = append(run.Results, Result{Round: 1, Servers: "embedded", Quantity: "grants/2x1", Peer: "etcdlock",
		Values: measure.Values{"per_s": 12345, "passed_per_s": 12345, "overlaps": 3}})
	run.Results = append(run.Results, Result{Round: 1, Servers: "far", Quantity: "grants/1x64", Peer: "zookeeper", Error: "gone"})
	for _, n := range []int{10, 100} {
		run.add(atRest("waiters", n, "requests"), 14)
	}
	run.add(figure{"embedded", "multi/4", "etcdlock", "p50_us"}, 300)
	run.add(figure{"embedded", "multi/4", "etcdlock, one by one", "p50_us"}, 600)
	run.add(figure{"embedded", "multi, requests/8", "etcdlock", "commits"}, 2)
	run.add(figure{"embedded", "items, wanted", "etcdlock, Contended", "p50_us"}, 5000)
	run.add(figure{"embedded", "items, wanted", "etcdlock", "p50_us"}, 2500)
	dir := t.TempDir()
	require.NoError(t, Report{&run}.WriteReadme(dir))
	text, err := os.ReadFile(filepath.Join(dir, "README.md"))
	require.NoError(t, err)
	goals, err := os.ReadFile(filepath.Join(dir, "goals.md"))
	require.NoError(t, err)
	text = append(text, goals...)
	for _, want := range []string{
		"| etcdlock | 400 µs <sub>200 µs–1,800 µs</sub>",
		"| etcdlock | 12,345 **(two held it at once, in 1 rounds)** | – |",
		"| cores | 2 |\n",
		"failed: far, grants/1x64, zookeeper, round 1: gone",
		"| waiters of 8 sessions, for one lock | 10 | – | 14.0 |",
		"|  | 100 | – | 14.0 |",
		"| heap of a lock that is held | at most 320 B | – | **no** |",
		"| 4 | 600 µs | 300 µs | 0.50× |",
		"| a Multi of 8 names: commits, uncontended | at most 2.00 | 2.00 | yes |",
		"| etcdlock, Contended | – | – | – | 5,000 µs | – | 2.00× |",
	} {
		require.Contains(t, string(text), want)
	}
	for _, name := range []string{"grants-embedded", "grants-three", "grants-far", "uncontended", "hand-over", "rest-requests", "rest-etcd", "rest-clients", "rest-bytes"} {
		f, err := os.Open(filepath.Join(dir, "plots", name+".svg"))
		require.NoError(t, err)
		defer f.Close()
		d := xml.NewDecoder(f)
		for err == nil {
			_, err = d.Token()
		}
		require.ErrorIs(t, err, io.EOF, "%s is no XML", name)
	}
}

func TestNumbers(t *testing.T) {
	require.Equal(t, "12,345", number(12345))
	require.Equal(t, "0.05", number(0.05))
	require.Equal(t, "14.0", number(14))
	require.Equal(t, "2,500 µs", duration(2500))
	require.Equal(t, "25.0 ms", duration(25_000))
	require.Equal(t, "187 B", size(187))
	require.Equal(t, "25.0 kB", size(25_000))
	require.Equal(t, "5.00 %", percent(0.05))
}

// The page about capacity is computed from the figures of the run, and is not written without one of them.
func TestReport_Capacity(t *testing.T) {
	var run Run
	for _, k := range Kinds {
		for _, n := range k.Sizes {
			for _, value := range []string{"requests", "bytes", "client_cpu", "etcd_cpu", "etcd_file_bytes", "etcd_memory_bytes", "set_up_us", "close_us", "sessions"} {
				if v := float64(n) / 1000; k.TTL > TTL {
					run.add(atRest(k.Name, n, value), 0.4*v)
				} else {
					run.add(atRest(k.Name, n, value), v)
				}
			}
		}
	}
	page := filepath.Join(t.TempDir(), "capacity.md")
	require.NoError(t, Report{&run}.WriteCapacity(page))
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	// Here a session takes a thousandth of everything, and 0.0004 of a core with the longer TTL.
	require.Contains(t, string(text), "half a core is used up by about 500 sessions with a TTL of 10 s, and by about 1,200 with 60 s")
	require.Contains(t, string(text), "| TTL 10 s | 100 | 100 | 200 | 25.0 |")
	require.Contains(t, string(text), "| TTL 30 s | 52.0 | 52.0 | 104 | 13.0 |")
	require.Contains(t, string(text), "| TTL 60 s | 40.0 | 40.0 | 80.0 | 10.0 |")

	run.Results = append(run.Results, Result{Round: 1, Servers: "scale", Quantity: "sessions/4000", Peer: "etcdlock", Error: "exit status 1: bench: session expired"})
	require.NoError(t, Report{&run}.WriteCapacity(page))
	text, err = os.ReadFile(page)
	require.NoError(t, err)
	require.Contains(t, string(text), `("session expired")`)

	run.Results = run.Results[1:]
	require.ErrorContains(t, Report{&run}.WriteCapacity(page), "no requests of idle/0")
}

package report

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/etcdlock/etcdlock/bench/measure"
)

// TestWriteReadme: results are read as they were written, medians and ratios are
// computed over the rounds, and overlaps are shown.
func TestWriteReadme(t *testing.T) {
	var run Run
	for round, us := range []float64{100, 200, 900} {
		for peer, factor := range map[string]float64{"floor": 1, "concurrency": 1.5, "etcdlock": 2} {
			run.Results = append(run.Results, Result{Round: round + 1, Servers: "embedded", Quantity: "uncontended", Peer: peer,
				Values: measure.Values{"p50_us": us * factor}})
		}
	}
	run.Results = append(run.Results, Result{Round: 1, Servers: "embedded", Quantity: "grants/2", Peer: "etcdlock",
		Values: measure.Values{"per_s": 12345, "passed_per_s": 12345, "overlaps": 3}})
	dir := t.TempDir()
	path := filepath.Join(dir, "results.json")
	if err := run.Write(path); err != nil {
		t.Fatal(err)
	}
	read, err := Read(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(read.Results) != len(run.Results) {
		t.Fatalf("%d results of %d", len(read.Results), len(run.Results))
	}
	if got := read.get("embedded", "uncontended", "etcdlock", "p50_us").median(); got != 400 {
		t.Errorf("median %v", got)
	}
	if got := read.ratio("embedded", "uncontended", "etcdlock", "p50_us", "embedded", "uncontended", "floor", "p50_us").median(); got != 2 {
		t.Errorf("ratio %v", got)
	}
	if err := read.WriteReadme(dir); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"| etcdlock | 400 µs <sub>200 µs–1,800 µs</sub>", "12,345 **(two held it at once, in 1 rounds)**"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("README.md has no %q", want)
		}
	}
	for _, plot := range []string{"grants-embedded", "grants-three", "grants-far", "uncontended", "hand-over"} {
		if _, err := os.Stat(filepath.Join(dir, "plots", plot+".svg")); err != nil {
			t.Error(err)
		}
	}
}

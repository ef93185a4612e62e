package report

import (
	_ "embed"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/template"
)

//go:embed readme.md.tmpl
var readme string

// sizes are the numbers of sessions, or of readers, that are compared.
var sizes = []string{"2", "16", "128", "512"}

// WriteReadme writes README.md and plots/ into dir.
func (r *Run) WriteReadme(dir string) error {
	if err := os.MkdirAll(filepath.Join(dir, "plots"), 0o755); err != nil {
		return err
	}
	for name, p := range r.plots() {
		if err := p.write(filepath.Join(dir, "plots", name+".svg")); err != nil {
			return err
		}
	}
	t, err := template.New("readme").Funcs(template.FuncMap{
		"run":    func() *Run { return r },
		"rounds": r.rounds,
		"list":   func(s ...string) []string { return s },
		"goals":  r.goals,
		"sorted": func(m map[string]string) []string { return slices.Sorted(maps.Keys(m)) },
		// the median of a value over the rounds
		"n": func(servers, quantity, peer, value string) string {
			return r.get(servers, quantity, peer, value).show(number)
		},
		"us": func(servers, quantity, peer, value string) string {
			return r.get(servers, quantity, peer, value).show(duration)
		},
		"commits": func(servers, quantity, peer string) string {
			return number(r.get(servers, quantity, peer, "txns").median() + r.get(servers, quantity, peer, "puts").median() +
				r.get(servers, quantity, peer, "deletes").median())
		},
		// the median over the rounds of the ratio of a value to that of another peer in
		// the same round, with the smallest and the largest ratio
		"over": func(servers, quantity, peer, value, other string) string {
			return r.ratio(servers, quantity, peer, value, servers, quantity, other, value).show(factor)
		},
		"overFloor": func(servers, quantity, peer, value string) string {
			return r.ratio(servers, quantity, peer, value, servers, "hand-over", "floor", value).show(factor)
		},
	}).Parse(readme)
	if err != nil {
		return err
	}
	var b strings.Builder
	if err := t.Execute(&b, r); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "README.md"), []byte(b.String()), 0o644)
}

func (r *Run) plots() map[string]plot {
	peers := []string{"floor", "etcdlock", "concurrency", "zookeeper", "redsync, fsync", "redsync"}
	grants := func(servers, title string) plot {
		p := plot{title: title, unit: "grants per second to another session than the one before, by number of sessions", points: sizes}
		for _, name := range peers {
			s := series{name: name}
			for _, n := range sizes {
				value := "passed_per_s"
				if name == "floor" {
					value = "per_s"
				}
				s.values = append(s.values, r.get(servers, "grants/"+n, name, value).median())
			}
			p.series = append(p.series, s)
		}
		return p
	}
	times := func(title, quantity string) plot {
		p := plot{title: title, unit: "microseconds", points: []string{"p50", "mean", "p99"}}
		for _, name := range peers {
			q := quantity
			if strings.HasPrefix(q, "hand-over") {
				if strings.HasPrefix(name, "redsync") {
					continue // it hardly ever passes the lock to another session
				}
				if name == "floor" {
					q = "hand-over"
				}
			}
			s := series{name: name}
			for _, v := range p.points {
				s.values = append(s.values, r.get("embedded", q, name, v+"_us").median())
			}
			p.series = append(p.series, s)
		}
		return p
	}
	return map[string]plot{
		"grants-embedded": grants("embedded", "One etcd member: how fast a lock is passed on that all want"),
		"grants-three":    grants("three", "Three etcd members: how fast a lock is passed on that all want"),
		"grants-far":      grants("far", "Three etcd members, 2 ms apart: how fast a lock is passed on"),
		"uncontended":     times("Lock and Unlock when nobody else wants the lock", "uncontended"),
		"hand-over":       times("From one holder's Unlock to the next one's Lock, two sessions", "hand-over/2"),
	}
}

// rounds returns the number of rounds that have results.
func (r *Run) rounds() int {
	n := 0
	for _, res := range r.Results {
		n = max(n, res.Round)
	}
	return n
}

// show formats the median and, if the rounds differ, the smallest and the largest value.
func (s sample) show(format func(float64) string) string {
	if !s.ok() {
		return "–"
	}
	text := format(s.median())
	if low, high := format(s.values[0]), format(s.values[len(s.values)-1]); low != high {
		text += fmt.Sprintf(" <sub>%s–%s</sub>", low, high)
	}
	if s.overlapped > 0 {
		text += fmt.Sprintf(" **(two held it at once, in %d rounds)**", s.overlapped)
	}
	return text
}

func factor(v float64) string { return number(v) + "×" }

// duration formats microseconds.
func duration(us float64) string {
	switch {
	case us >= 1e6:
		return number(us/1e6) + " s"
	case us >= 1e4:
		return number(us/1e3) + " ms"
	}
	return number(us) + " µs"
}

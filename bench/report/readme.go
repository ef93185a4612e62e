package report

import (
	"embed"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/template"
)

//go:embed readme.md.tmpl goals.md.tmpl names.md.tmpl
var pages embed.FS

// WriteReadme writes README.md, names.md, goals.md and plots/ into dir.
func (rep Report) WriteReadme(dir string) error {
	plots := filepath.Join(dir, "plots")
	if err := os.MkdirAll(plots, 0o755); err != nil {
		return err
	}
	for _, some := range []map[string]plotted{rep.plots(), rep.curves()} {
		for name, p := range some {
			if err := p.write(plots, name); err != nil {
				return err
			}
		}
	}
	t, err := template.New("").Funcs(template.FuncMap{
		"list":      func(s ...string) []string { return s },
		"sorted":    func(m map[string]string) []string { return slices.Sorted(maps.Keys(m)) },
		"title":     func(servers string) string { return titles[servers] },
		"sets":      func() []int { return Sets },
		"goals":     rep.goals,
		"grants":    rep.grants,
		"names":     rep.names,
		"handovers": rep.handovers,
		"requests":  rep.requests,
		"readers":   rep.readers,
		"scale":     rep.scale,
		"memory":    rep.memory,
		// the median of a value over the rounds
		"n": func(servers, quantity, peer, value string) string {
			return rep.get(figure{servers, quantity, peer, value}).show(number)
		},
		"us": func(servers, quantity, peer, value string) string {
			return rep.get(figure{servers, quantity, peer, value}).show(duration)
		},
		// the median over the rounds of the ratio of a value to that of another peer in
		// the same round, with the smallest and the largest ratio
		"over": func(servers, quantity, peer, value, other string) string {
			f := figure{servers, quantity, peer, value}
			return rep.ratio(f, f.of(other)).show(factor)
		},
	}).ParseFS(pages, "*.tmpl")
	if err != nil {
		return err
	}
	for page, from := range map[string]string{"README.md": "readme.md.tmpl", "goals.md": "goals.md.tmpl", "names.md": "names.md.tmpl"} {
		var b strings.Builder
		if err := t.ExecuteTemplate(&b, from, rep); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, page), []byte(b.String()), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// plots are those of the peers.
func (rep Report) plots() map[string]plotted {
	peers := slices.Concat([]string{"floor", "etcdlock", "etcdlock, Release", "concurrency", serialized}, others)
	grants := func(servers, title string) plotted {
		p := plotted{title: title, unit: "grants a second to another contender", across: "processes x goroutines"}
		for _, c := range Contenders {
			p.points = append(p.points, c.String())
		}
		for _, name := range peers {
			f := figure{servers: servers, peer: name, value: "passed_per_s"}
			if name == "floor" {
				f.value = "per_s"
			}
			s := series{name: name}
			for _, sample := range rep.overShapes("grants", Contenders, f, figure{}) {
				s.values = append(s.values, sample.median())
			}
			p.series = append(p.series, s)
		}
		return p
	}
	times := func(title, quantity string, peers ...string) plotted {
		p := plotted{title: title, unit: "microseconds", points: []string{"p50", "mean", "p99"}}
		for _, name := range peers {
			q := quantity
			if name == "floor" {
				q, _, _ = strings.Cut(q, "/")
			}
			s := series{name: name}
			for _, v := range p.points {
				s.values = append(s.values, rep.get(figure{"embedded", q, name, v + "_us"}).median())
			}
			p.series = append(p.series, s)
		}
		return p
	}
	return map[string]plotted{
		"grants-embedded": grants("embedded", "One etcd member: how fast a lock is passed on that all want"),
		"grants-three":    grants("three", "Three etcd members: how fast a lock is passed on that all want"),
		"grants-far":      grants("far", "Three etcd members, 2 ms apart: how fast a lock is passed on"),
		"uncontended": times("Lock and Unlock when nobody else wants the lock", "uncontended",
			append([]string{"floor", "etcdlock", "concurrency"}, others...)...),
		// redsync hardly ever passes the lock to another session.
		"hand-over": times("From one holder's Unlock to the next one's Lock, two processes", "hand-over/2x1",
			"floor", "etcdlock", "concurrency", "zookeeper"),
	}
}

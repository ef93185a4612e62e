package report

import (
	"slices"
	"strings"

	"github.com/etcdlock/etcdlock/bench/measure"
)

// A table is one in Markdown.
type table struct{ strings.Builder }

func newTable(head ...string) *table {
	t := &table{}
	t.row(head[0], head[1:]...)
	t.WriteString("|" + strings.Repeat("---|", len(head)) + "\n")
	return t
}

func (t *table) row(name string, cells ...string) {
	t.WriteString("| " + name + " | " + strings.Join(cells, " | ") + " |\n")
}

// rowOf adds a row if any of its samples has a value.
func (t *table) rowOf(name string, format func(float64) string, samples []sample) {
	if slices.ContainsFunc(samples, sample.ok) {
		cells := make([]string, len(samples))
		for i, s := range samples {
			cells[i] = s.show(format)
		}
		t.row(name, cells...)
	}
}

var titles = map[string]string{
	"embedded": "one member", "three": "three members", "far": "three members, 2 ms apart",
	"names, one": "one member", "names, three": "three members", "names, far": "three members, 2 ms apart",
	"names, away": "three members, 2 ms apart, the client 10 ms away",
}

const serialized = "concurrency behind sync.Mutex"

// LikeALock is the floor of grants with the requests that a lock needs.
const LikeALock = "floor with a lock's requests"

// others are the peers that do not use etcd.
var others = []string{"zookeeper", "redsync, fsync", "redsync"}

// overShapes are the samples of a figure, or of its ratio to another, for each of the contenders.
func (rep Report) overShapes(quantity string, shapes []measure.Contenders, f, by figure) (all []sample) {
	for _, c := range shapes {
		f.quantity = quantity + "/" + c.String()
		if by.value != "" {
			by.quantity = f.quantity
		}
		all = append(all, rep.ratio(f, by))
	}
	return all
}

// grants is the table of how often a lock is passed on.
func (rep Report) grants(servers string) string {
	head := []string{"grants a second, " + titles[servers]}
	for _, c := range Contenders {
		head = append(head, c.String())
	}
	t := newTable(head...)
	f := figure{servers: servers, value: "per_s"}
	for _, p := range slices.Concat([]string{"floor", LikeALock, "etcdlock", "etcdlock, Release", "concurrency", serialized}, others) {
		t.rowOf(p, number, rep.overShapes("grants", Contenders, f.of(p), figure{}))
	}
	passed := figure{servers: servers, value: "passed_per_s"}
	for _, p := range others[1:] {
		t.rowOf(p+": to another contender", number, rep.overShapes("grants", Contenders, passed.of(p), figure{}))
	}
	for _, p := range []string{"floor", LikeALock, "concurrency", serialized} {
		t.rowOf("etcdlock over "+p, factor, rep.overShapes("grants", Contenders, f.of("etcdlock"), f.of(p)))
	}
	return t.String()
}

// names is the table of locks of many names: a value of each peer, and the ratio to concurrency.
func (rep Report) names(servers, value string) string {
	what, format := "cycles a second", number
	switch value {
	case "p50_us", "p99_us":
		what, format = strings.TrimSuffix(value, "_us")+" of a cycle", duration
	case "client_cpu_us":
		what, format = "CPU of the client for a cycle", duration
	case "etcd_cpu_us":
		what, format = "CPU of etcd for a cycle", duration
	case "cpu_us":
		what, format = "CPU of client and etcd for a cycle", duration
	case "requests":
		what = "requests for a cycle"
	}
	head := []string{what}
	for _, n := range Names {
		head = append(head, n.String())
	}
	t := newTable(head...)
	row := func(name string, format func(float64) string, peer, by string) {
		var all []sample
		for _, n := range Names {
			all = append(all, rep.ofNames(servers, n.String(), peer, value, by))
		}
		t.rowOf(name, format, all)
	}
	for _, p := range []string{"floor", "concurrency", "etcdlock", "etcdlock, Release"} {
		row(p, format, p, "")
	}
	row("etcdlock over concurrency", factor, "etcdlock", "concurrency")
	return t.String() + "\n"
}

// ofNames is a value of a peer where many names are locked, or its ratio to another peer.
func (rep Report) ofNames(servers, names, peer, value, by string) sample {
	f, over := figure{servers, "names/" + names, peer, value}, figure{}
	if by != "" {
		over = f.of(by)
	}
	return rep.ratio(f, over)
}

// handovers is the table of the time from one holder to the next.
func (rep Report) handovers(servers string) string {
	head := []string{titles[servers], "2x1: p50", "mean", "p99"}
	for _, c := range Handovers[1:] {
		head = append(head, c.String()+": p50", "p99")
	}
	t := newTable(head...)
	row := func(peer string, by figure) (all []sample) {
		for _, c := range Handovers {
			for _, value := range []string{"p50_us", "mean_us", "p99_us"} {
				if c == Handovers[0] || value != "mean_us" {
					f := figure{servers, "hand-over/" + c.String(), peer, value}
					if by.servers != "" {
						by.value = value
					}
					all = append(all, rep.ratio(f, by))
				}
			}
		}
		return all
	}
	floor := figure{servers: servers, quantity: "hand-over", peer: "floor"}
	var floors []sample
	for _, value := range []string{"p50_us", "mean_us", "p99_us"} {
		f := floor
		f.value = value
		floors = append(floors, rep.get(f))
	}
	t.rowOf("floor", duration, slices.Concat(floors, make([]sample, 2*(len(Handovers)-1))))
	for _, p := range slices.Concat([]string{"etcdlock", "concurrency"}, others) {
		t.rowOf(p, duration, row(p, figure{}))
	}
	t.rowOf("etcdlock over the floor", factor, row("etcdlock", floor))
	return t.String()
}

// requests is the table of requests for an acquisition.
func (rep Report) requests() string {
	t := newTable("requests for an acquisition", "commits", "serializable reads", "linearizable reads", "watches")
	for _, c := range Requests {
		for _, p := range []string{"etcdlock", "concurrency"} {
			t.rowOf(p+", "+c.String(), number, rep.values("embedded", "requests/"+c.String(), p, "commits", "serializable_reads", "linearizable_reads", "watches"))
		}
	}
	return t.String()
}

func (rep Report) values(servers, quantity, peer string, names ...string) (all []sample) {
	for _, name := range names {
		all = append(all, rep.get(figure{servers, quantity, peer, name}))
	}
	return all
}

// readers is the table of bursts of readers, and of writers behind readers.
func (rep Report) readers(quantity, reads string) string {
	head := []string{reads}
	for _, c := range Readers {
		head = append(head, c.String()+": p50", "reads", "watches")
	}
	t := newTable(head...)
	for _, p := range []string{"etcdlock", "recipes"} {
		var cells []string
		for _, c := range Readers {
			q := quantity + "/" + c.String()
			some := rep.values("embedded", q, p, "p50_us", "serializable_reads", "linearizable_reads", "watches")
			cells = append(cells, some[0].show(duration), number(some[1].median()+some[2].median()), some[3].show(number))
		}
		t.row(p, cells...)
	}
	return t.String()
}

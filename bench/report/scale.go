package report

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// A Kind is something whose cost at rest is measured for growing numbers of it.
type Kind struct {
	Name, Is string
	TTL      time.Duration
	Sizes    []int
}

// TTL is the default of sessions.
const TTL = 10 * time.Second

// Kinds are all of them, in the order of the report.
var Kinds = []Kind{
	{"idle", "nothing: an etcd that nobody uses", TTL, []int{0}},
	{"waiters", "waiters of 8 sessions, for one lock", TTL, []int{10, 100, 1_000, 10_000}},
	{"held", "locks that one session holds", TTL, []int{10, 100, 1_000, 10_000, 100_000}},
	{"watched", "locks that one session holds, each watched for its loss", TTL, []int{10, 100, 1_000, 10_000}},
	{"names", "locks that one session holds and another one waits for", TTL, []int{10, 100, 1_000, 10_000}},
	// Of 10,000 in one process with one connection each, two cores that others use too lose the leases; of 4,000, sometimes.
	{"sessions", "sessions, each with a connection and a lock", TTL, []int{10, 100, 1_000, 2_000, 4_000}},
	{"sessions60", "the same with a TTL of 60 s", 6 * TTL, []int{1_000}},
}

// largest is the largest number of a kind that was measured.
func (rep Report) largest(k Kind) int {
	for _, n := range slices.Backward(k.Sizes) {
		if rep.get(atRest(k.Name, n, "requests")).ok() {
			return n
		}
	}
	return k.Sizes[0]
}

// atRest is a figure of n things of a kind at rest.
func atRest(kind string, n int, value string) figure {
	return figure{"scale", fmt.Sprintf("%s/%d", kind, n), "etcdlock", value}
}

// scale is the table of the cost at rest.
func (rep Report) scale() string {
	t := newTable("at rest", "number", "sessions", "requests a second", "for each session", "traffic a second", "CPU of the clients", "CPU of etcd")
	rep.eachSize(func(name string, k Kind, n int) {
		get := func(value string) sample { return rep.get(atRest(k.Name, n, value)) }
		perSession := rep.ratio(atRest(k.Name, n, "requests"), atRest(k.Name, n, "sessions"))
		t.row(name, grouped(int64(n)), get("sessions").show(number), get("requests").show(number), perSession.show(number),
			get("bytes").show(size), get("client_cpu").show(percent), get("etcd_cpu").show(percent))
	})
	return t.String()
}

// memory is the table of what the things at rest take, each.
func (rep Report) memory() string {
	t := newTable("each of them takes", "number", "heap of the process", "stacks", "goroutines", "etcd's file", "etcd's memory", "set up", "close")
	rep.eachSize(func(name string, k Kind, n int) {
		get := func(value string) sample { return rep.get(atRest(k.Name, n, value)) }
		t.row(name, grouped(int64(n)), get("heap_bytes").show(size), get("stack_bytes").show(size), get("goroutines").show(number),
			get("etcd_file_bytes").show(size), get("etcd_memory_bytes").show(size), get("set_up_us").show(duration), get("close_us").show(duration))
	})
	return t.String()
}

// eachSize calls f for all numbers that were measured, with the kind's name for the first of them.
func (rep Report) eachSize(f func(name string, k Kind, n int)) {
	for _, k := range Kinds {
		name := k.Is
		for _, n := range k.Sizes {
			if rep.get(atRest(k.Name, n, "requests")).ok() {
				f(name, k, n)
				name = ""
			}
		}
	}
}

// curves are the plots of the cost at rest.
func (rep Report) curves() map[string]plotted {
	curve := func(title, unit, value string, factor float64) plotted {
		p := plotted{title: title, unit: unit, across: "how many", points: []string{"1", "10", "100", "1,000", "10,000", "100,000"}}
		for _, k := range Kinds {
			s := series{name: k.Name}
			for _, n := range k.Sizes {
				s.at = append(s.at, math.Log10(float64(n)))
				s.values = append(s.values, factor*rep.get(atRest(k.Name, n, value)).median())
			}
			if len(s.values) > 1 {
				p.series = append(p.series, s)
			}
		}
		return p
	}
	return map[string]plotted{
		"rest-requests": curve("At rest: requests to etcd", "requests a second", "requests", 1),
		"rest-etcd":     curve("At rest: processor time of etcd", "percent of a core", "etcd_cpu", 100),
		"rest-clients":  curve("At rest: processor time of the clients", "percent of a core", "client_cpu", 100),
		"rest-bytes":    curve("Bytes in etcd's file for each", "bytes", "etcd_file_bytes", 1),
	}
}

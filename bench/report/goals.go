package report

// A Goal is a limit that the project sets itself.
type Goal struct {
	What, Demand, Found string
	Met                 bool
}

// goals compares the results with the limits.
func (r *Run) goals() []Goal {
	var goals []Goal
	add := func(what, demand string, s sample, met func(float64) bool) {
		goals = append(goals, Goal{what, demand, s.show(number), s.ok() && s.overlapped == 0 && met(s.median())})
	}
	atMost := func(what string, limit float64, s sample) {
		add(what, "at most "+number(limit), s, func(v float64) bool { return v <= limit })
	}
	atLeast := func(what string, limit float64, s sample) {
		add(what, "at least "+number(limit), s, func(v float64) bool { return v >= limit })
	}
	same := func(servers, quantity, value, other string) sample {
		return r.ratio(servers, quantity, "etcdlock", value, servers, quantity, other, value)
	}
	floor := func(servers, quantity, value, floorValue string) sample {
		return r.ratio(servers, quantity, "etcdlock", value, servers, "hand-over", "floor", floorValue)
	}
	for _, q := range []string{"uncontended", "uncontended, used"} {
		atMost(q+", p50, over concurrency's", 1.05, same("embedded", q, "p50_us", "concurrency"))
		atMost(q+", p50, over the floor", 1.15, same("embedded", q, "p50_us", "floor"))
	}
	for i, n := range sizes {
		atLeast("grants per second, "+n+" sessions, over concurrency's", []float64{50, 10, 2, 2}[i],
			same("embedded", "grants/"+n, "per_s", "concurrency"))
	}
	for i, n := range sizes {
		atLeast("the same on three members, "+n+" sessions", []float64{30, 6, 2, 2}[i],
			same("three", "grants/"+n, "per_s", "concurrency"))
	}
	atMost("hand-over, 2 waiters, p50, over the floor", 1.5, floor("embedded", "hand-over/2", "p50_us", "p50_us"))
	atMost("hand-over, 2 waiters, mean, over the floor", 1.5, floor("embedded", "hand-over/2", "mean_us", "mean_us"))
	atMost("hand-over, 2 waiters, p99, over the floor's", 3, floor("embedded", "hand-over/2", "p99_us", "p99_us"))
	atMost("hand-over, 64 waiters, p50, over the floor", 1.5, floor("embedded", "hand-over/64", "p50_us", "p50_us"))
	atMost("hand-over with 5,000 waiters over that with 50, p50", 4,
		r.ratio("embedded", "hand-over, deep/5000", "etcdlock", "p50_us", "embedded", "hand-over, deep/50", "etcdlock", "p50_us"))
	atMost("round trips to the quorum in a hand-over", 1.25, r.get("far", "round trips", "etcdlock", "round_trips"))
	for _, n := range []string{"1", "16", "128", "512"} {
		atMost("burst of "+n+" readers, over recipes", 0.33,
			r.ratio("embedded", "burst/"+n, "etcdlock", "p50_us", "embedded", "burst/"+n, "recipes", "p50_us"))
	}
	atMost("reads of 512 readers in a burst", 512, r.get("embedded", "burst/512", "etcdlock", "serializable_reads"))
	atMost("writer behind 512 readers: last unlock to grant, over the floor at rest", 1.5,
		r.ratio("embedded", "writer behind/512", "etcdlock", "p50_us", "embedded", "hand-over, at rest", "floor", "p50_us"))
	atMost("writer behind 512 readers: reads, whatever their number", 3, r.get("embedded", "writer behind/512", "etcdlock", "serializable_reads"))
	atMost("a waiter's goroutines, beyond its caller's", 1.1, r.get("process", "waiting/512", "etcdlock", "goroutines"))
	atMost("a waiter's bytes", 6144, r.get("process", "waiting/512", "etcdlock", "bytes"))
	atMost("bytes of a lock that is held", 200, r.get("process", "holding/10000", "etcdlock", "heap_bytes"))
	atMost("release of 10,000 locks by Close, over concurrency's", 1, same("process", "holding/10000", "close_us", "concurrency"))
	atMost("inversions of the order of arrival, of 760 pairs", 0, r.get("embedded", "order", "etcdlock", "inversions"))
	atMost("holders at once among 16 goroutines of one session", 1, r.get("embedded", "one session/16", "etcdlock", "most"))
	atLeast("grants per second to them, over concurrency behind a sync.Mutex", 1,
		same("embedded", "one session/16", "per_s", "concurrency behind sync.Mutex"))
	return goals
}

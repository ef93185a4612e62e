package demo

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// An acquisition is one passage through a lock: what etcd saw of it, and what
// its worker says.
type acquisition struct {
	token int64 // the create revision of its entry in the queue

	// As etcd's watch had it; 0 where it had not.
	worker  string // whose lease the entry hangs on
	shared  bool
	gone    int64     // the revision at which the entry left the queue
	goneAt  time.Time // when the demo heard of that
	begin   int64     // the revision of the section's first guarded write
	end     int64     // and of its last
	section sectionValue

	// As its worker says; zero where it has not.
	granted   time.Time // Lock returned
	deadline  time.Time // the lease was good until then at least
	releasing time.Time // the section was left
	released  time.Time // Unlock returned

	killed    time.Time // when the demo killed the worker in this section
	leaseGone bool      // and etcd said afterwards that its lease had run out
}

// entered reports whether etcd had an entry of it.
func (a *acquisition) entered() bool { return a.worker != "" }

// left is when the section was over for certain: left, or its process killed.
func (a *acquisition) left() time.Time {
	if !a.killed.IsZero() {
		return a.killed
	}
	return a.releasing
}

// counterWrite is a write to what the lock protects.
type counterWrite struct {
	rev int64
	counterValue
}

// A record gathers what happens at one lock, from etcd's events, which come
// in etcd's order, and from the workers' reports.
type record struct {
	paths   lockPaths
	workers map[clientv3.LeaseID]string
	acqs    map[int64]*acquisition
	current map[string]int64 // the create revision of each key in the queue
	counter []counterWrite
	odd     []string // what should not happen at all
}

func newRecord(p lockPaths) *record {
	return &record{
		paths:   p,
		workers: make(map[clientv3.LeaseID]string),
		acqs:    make(map[int64]*acquisition),
		current: make(map[string]int64),
	}
}

// at is the acquisition of that token, which whoever mentions it first brings
// into being: etcd's event or its worker's report.
func (r *record) at(token int64) *acquisition {
	a := r.acqs[token]
	if a == nil {
		a = &acquisition{token: token}
		r.acqs[token] = a
	}
	return a
}

// ordered are the acquisitions that etcd has seen, in the order of their tokens.
func (r *record) ordered() []*acquisition {
	all := slices.SortedFunc(maps.Values(r.acqs), func(a, b *acquisition) int { return cmp.Compare(a.token, b.token) })
	return slices.DeleteFunc(all, func(a *acquisition) bool { return !a.entered() })
}

// apply takes in an event of etcd, heard of at t.
func (r *record) apply(ev *clientv3.Event, t time.Time) {
	key := string(ev.Kv.Key)
	switch {
	case strings.HasPrefix(key, r.paths.Name+"/"):
		r.applyEntry(ev, key, t)
	case ev.Type != clientv3.EventTypePut:
		r.oddly("%s was deleted", key)
	case key == r.paths.counter():
		w := counterWrite{rev: ev.Kv.ModRevision}
		if err := json.Unmarshal(ev.Kv.Value, &w.counterValue); err != nil {
			r.oddly("%s holds %q", key, ev.Kv.Value)
		}
		r.counter = append(r.counter, w)
	case strings.HasPrefix(key, r.paths.sections()):
		r.applySection(ev)
	default:
		r.oddly("%s was written", key)
	}
}

// applyEntry takes in a change of the queue. A write lock has two entries, one
// of them shared, of one revision.
func (r *record) applyEntry(ev *clientv3.Event, key string, t time.Time) {
	if ev.Type == clientv3.EventTypeDelete {
		token, ok := r.current[key]
		if !ok {
			r.oddly("%s was deleted before it was there", key)
			return
		}
		delete(r.current, key)
		a := r.at(token)
		a.gone, a.goneAt = ev.Kv.ModRevision, t
		return
	}
	worker := r.workers[clientv3.LeaseID(ev.Kv.Lease)]
	if !ev.IsCreate() || worker == "" {
		r.oddly("%s was written by none of the workers", key)
		return
	}
	shared := strings.HasPrefix(key, r.paths.Name+"/r")
	a := r.at(ev.Kv.CreateRevision)
	a.shared = shared && (!a.entered() || a.shared)
	a.worker = worker
	r.current[key] = a.token
}

func (r *record) applySection(ev *clientv3.Event) {
	token, v, err := parseSection(r.paths, ev.Kv)
	if err != nil {
		r.oddly("%v", err)
		return
	}
	a := r.at(token)
	switch {
	case a.begin == 0 && !v.Ended:
		a.begin = ev.Kv.ModRevision
	case a.begin != 0 && a.end == 0 && v.Ended:
		a.end = ev.Kv.ModRevision
	default:
		r.oddly("%s was written once too often", ev.Kv.Key)
	}
	a.section = v
}

// tell takes in a worker's report.
func (r *record) tell(rep report) {
	switch rep.Event {
	case eventGranted:
		a := r.at(rep.Token)
		a.granted, a.deadline = rep.At, rep.Deadline
	case eventReleasing:
		r.at(rep.Token).releasing = rep.At
	case eventReleased:
		r.at(rep.Token).released = rep.At
	case eventReady, eventQueued, eventLost, eventDone:
		// of the process, not of the acquisition
	}
}

func (r *record) oddly(format string, args ...any) {
	r.odd = append(r.odd, fmt.Sprintf(format, args...))
}

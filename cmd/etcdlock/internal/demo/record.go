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

// An acquisition is what etcd and a worker say of one acquisition of a lock.
type acquisition struct {
	token int64 // the create revision of its entry in the queue

	// According to etcd's watch; 0 if it has not shown it.
	worker  string // the owner of the entry's lease
	shared  bool
	gone    int64     // the revision at which the entry left the queue
	goneAt  time.Time // when the demo saw that
	begin   int64     // the revision of the section's first guarded write
	end     int64     // and of its last
	section sectionValue

	// According to its worker; zero if it has not reported it.
	granted   time.Time // Lock returned
	deadline  time.Time // the lease lasted at least until then
	releasing time.Time // the section was left
	released  time.Time // Unlock returned

	killed    time.Time // when the demo killed the worker in this section
	leaseGone bool      // afterwards etcd said that its lease had ended
}

// entered reports whether etcd had an entry for it.
func (a *acquisition) entered() bool { return a.worker != "" }

// left is when the section was certainly over: the worker left it, or was killed.
func (a *acquisition) left() time.Time {
	if !a.killed.IsZero() {
		return a.killed
	}
	return a.releasing
}

// counterWrite is a write to the counter that the lock protects.
type counterWrite struct {
	rev int64
	counterValue
}

// A record collects what happens at one lock, from etcd's events, which come in etcd's
// order, and from the workers' reports.
type record struct {
	paths   lockPaths
	workers map[clientv3.LeaseID]string
	acqs    map[int64]*acquisition
	current map[string]int64 // the create revision of each key in the queue
	counter []counterWrite
	odd     []string // events that must not happen
}

func newRecord(p lockPaths) *record {
	return &record{
		paths:   p,
		workers: make(map[clientv3.LeaseID]string),
		acqs:    make(map[int64]*acquisition),
		current: make(map[string]int64),
	}
}

// at is the acquisition with that token. The first event or report that mentions the
// token creates it.
func (r *record) at(token int64) *acquisition {
	a := r.acqs[token]
	if a == nil {
		a = &acquisition{token: token}
		r.acqs[token] = a
	}
	return a
}

// ordered lists the acquisitions with entries in etcd, in the order of their tokens.
func (r *record) ordered() []*acquisition {
	all := slices.SortedFunc(maps.Values(r.acqs), func(a, b *acquisition) int { return cmp.Compare(a.token, b.token) })
	return slices.DeleteFunc(all, func(a *acquisition) bool { return !a.entered() })
}

// apply records an event of etcd that came at t.
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

// applyEntry records a change of the queue. A write lock has two keys, one of them
// shared, with the same revision.
func (r *record) applyEntry(ev *clientv3.Event, key string, t time.Time) {
	if ev.Type == clientv3.EventTypeDelete {
		token, ok := r.current[key]
		if !ok {
			r.oddly("%s was deleted before it was created", key)
			return
		}
		delete(r.current, key)
		a := r.at(token)
		a.gone, a.goneAt = ev.Kv.ModRevision, t
		return
	}
	worker := r.workers[clientv3.LeaseID(ev.Kv.Lease)]
	if !ev.IsCreate() || worker == "" {
		r.oddly("%s was not written by a worker", key)
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
		r.oddly("%s was written too often", ev.Kv.Key)
	}
	a.section = v
}

// tell records a report of a worker.
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
		// these say nothing about the acquisition
	}
}

func (r *record) oddly(format string, args ...any) {
	r.odd = append(r.odd, fmt.Sprintf(format, args...))
}

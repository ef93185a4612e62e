package demo

import (
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// A sim simulates a history: events like etcd's and reports like the workers'. Each
// takes one revision and one millisecond.
type sim struct {
	rec     *record
	rev     int64
	now     time.Time
	created map[string]int64
	n       int // the counter
}

var simZero = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func newSim(name string, workers ...string) *sim {
	rec := newRecord(lockPaths{Name: "demo/" + name, Data: "demo/data/" + name})
	for i, w := range workers {
		rec.workers[clientv3.LeaseID(i+1)] = w
	}
	return &sim{rec: rec, rev: 10, now: simZero, created: make(map[string]int64)}
}

func (s *sim) step() {
	s.rev++
	s.now = s.now.Add(time.Millisecond)
}

// put and del make changes at the current revision.
func (s *sim) put(key, value string, lease clientv3.LeaseID) {
	if s.created[key] == 0 {
		s.created[key] = s.rev
	}
	s.rec.apply(&clientv3.Event{Type: clientv3.EventTypePut, Kv: &mvccpb.KeyValue{
		Key: []byte(key), Value: []byte(value), Lease: int64(lease), CreateRevision: s.created[key], ModRevision: s.rev,
	}}, s.now)
}

func (s *sim) del(key string) {
	delete(s.created, key)
	s.rec.apply(&clientv3.Event{Type: clientv3.EventTypeDelete, Kv: &mvccpb.KeyValue{Key: []byte(key), ModRevision: s.rev}}, s.now)
}

func (s *sim) keys(worker string) (lease clientv3.LeaseID, keys []string) {
	for id, w := range s.rec.workers {
		if w == worker {
			lease = id
		}
	}
	exclusive, shared := fmt.Sprintf("%s/%x", s.rec.paths.Name, lease), fmt.Sprintf("%s/r%x", s.rec.paths.Name, lease)
	switch worker[0] {
	case 'r':
		return lease, []string{shared}
	case 'w':
		return lease, []string{exclusive, shared}
	}
	return lease, []string{exclusive}
}

// queue adds an entry of the worker to the queue.
func (s *sim) queue(worker string) *acquisition {
	s.step()
	lease, keys := s.keys(worker)
	for _, k := range keys {
		s.put(k, "{}", lease)
	}
	return s.rec.at(s.rev)
}

func (s *sim) tell(e event, a *acquisition) {
	s.now = s.now.Add(100 * time.Microsecond)
	s.rec.tell(report{Event: e, At: s.now, Token: a.token, Deadline: s.now.Add(time.Millisecond)})
}

// enter is the beginning of the section, and leave is its end.
func (s *sim) enter(a *acquisition) {
	s.tell(eventGranted, a)
	s.step()
	s.put(s.rec.paths.section(a.token), toJSON(sectionValue{Worker: a.worker}), 0)
	a.section.Read = s.n // the worker remembers it and writes it at the end
}

func (s *sim) leave(a *acquisition) {
	s.step()
	v := a.section
	v.Ended, v.Last = true, s.n
	if !a.shared {
		s.n++
		v.Last = s.n
		s.put(s.rec.paths.counter(), toJSON(counterValue{N: s.n, Token: a.token, Worker: a.worker}), 0)
	}
	s.put(s.rec.paths.section(a.token), toJSON(v), 0)
	s.tell(eventReleasing, a)
	s.dequeue(a)
	s.tell(eventReleased, a)
}

func (s *sim) dequeue(a *acquisition) {
	s.step()
	_, keys := s.keys(a.worker)
	for _, k := range keys {
		s.del(k)
	}
}

// die kills the worker in its section, and ends its lease.
func (s *sim) die(a *acquisition) {
	a.section.Read = 0
	a.killed = s.now
	s.now = s.now.Add(2 * time.Second)
	s.dequeue(a)
	a.leaseGone = true
}

func (s *sim) outcome() lockOutcome {
	l := lockOutcome{name: "lock", acqs: s.rec.ordered(), counter: s.rec.counter, odd: s.rec.odd}
	l.final = finalState{counter: s.n, sections: make(map[int64]sectionValue)}
	for _, a := range l.acqs {
		if a.begin != 0 {
			l.final.sections[a.token] = a.section
		}
	}
	return l
}

// simMutex is a good history of a mutex: p1, p2 (which is killed), p3, p1 again.
func simMutex() *sim {
	s := newSim("mutex", "p1", "p2", "p3")
	a := s.queue("p1")
	s.enter(a)
	b, c := s.queue("p2"), s.queue("p3")
	s.leave(a)
	s.enter(b)
	d := s.queue("p1")
	s.die(b)
	s.enter(c)
	s.leave(c)
	s.enter(d)
	s.leave(d)
	return s
}

// simRW is a good history of a read-write lock: w1, r1 and r2, w2.
func simRW() *sim {
	s := newSim("rw", "w1", "w2", "r1", "r2")
	a := s.queue("w1")
	s.enter(a)
	b, c, d := s.queue("r1"), s.queue("r2"), s.queue("w2")
	s.leave(a)
	s.enter(b)
	s.enter(c)
	s.leave(c)
	s.leave(b)
	s.enter(d)
	s.leave(d)
	return s
}

// simOutcome is a good outcome.
func simOutcome() outcome {
	return outcome{
		locks: []lockOutcome{simMutex().outcome(), simRW().outcome()},
		workers: []workerOutcome{
			{name: "p1", rounds: 2, wanted: 2, finished: true}, {name: "p2", killed: true}, {name: "p3", rounds: 1, wanted: 1, finished: true},
			{name: "w1", rounds: 1, wanted: 1, finished: true}, {name: "w2", rounds: 1, wanted: 1, finished: true},
			{name: "r1", rounds: 1, wanted: 1, finished: true}, {name: "r2", rounds: 1, wanted: 1, finished: true},
		},
		ttl: 2 * time.Second,
	}
}

package history

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// FromModel makes a history of what a run of model/lock.pml prints, as if it had
// happened: so the model and CheckTrace can be held against each other. Each line takes
// a millisecond, and an observer hears of each change at once.
func FromModel(lines []string) (l *Log, steps []Step, claims []Claim, err error) {
	m := modelRun{log: NewLog(LockPrefix), by: map[string]*modelEntry{}, live: map[string]int64{}}
	for i, line := range lines {
		m.at = time.UnixMilli(int64(i))
		if err := m.read(line); err != nil {
			return nil, nil, nil, fmt.Errorf("line %d of the model's run, %q: %w", i+1, line, err)
		}
	}
	return m.log, m.steps, m.claims, nil
}

const modelLock = LockPrefix + "m"

// modelEntry is what is known of an acquisition: A, B, ...
type modelEntry struct {
	kind    string
	key     int
	session int64
	token   int64 // once it is in the queue, as it knows
	had     bool
	down    bool
}

func (e *modelEntry) keys() (exclusive, shared string) {
	number := ""
	if e.key > 0 {
		number = fmt.Sprintf("-%x", e.key)
	}
	lease := e.session + 1
	return fmt.Sprintf("%s/%x%s", modelLock, lease, number), fmt.Sprintf("%s/r%x%s", modelLock, lease, number)
}

type modelRun struct {
	log    *Log
	steps  []Step
	claims []Claim
	at     time.Time
	by     map[string]*modelEntry
	live   map[string]int64 // the create revisions of the keys that are there
	rev    int64
}

func (m *modelRun) read(line string) error {
	who, what, ok := strings.Cut(line, ": ")
	if !ok {
		return errors.New("nobody says it")
	}
	switch who {
	case "etcd":
		return m.etcd(what)
	case "somebody":
		return m.somebody(what)
	case "clock":
		var session, remains, trusted int64
		_, err := fmt.Sscanf(what, "etcd gives session %d another %d, itself counts on %d", &session, &remains, &trusted)
		if trusted == 0 {
			m.steps = append(m.steps, Step{What: Ended, At: m.at, Lease: session + 1})
		}
		return err
	case "net":
		return nil // a request that is lost changes nothing
	}
	e := m.by[who]
	switch {
	case strings.Contains(what, "asks for the lock"):
		e = &modelEntry{}
		m.by[who] = e
		_, err := fmt.Sscanf(what, "a %s asks for the lock, with key %d of session %d", &e.kind, &e.key, &e.session)
		return err
	case e == nil:
		return errors.New("it has not asked for the lock")
	case strings.HasPrefix(what, "is in the queue"):
		_, err := fmt.Sscanf(what, "is in the queue, at revision %d", &e.token)
		m.step(e, Enqueued)
		return err
	case what == "granted":
		e.had = true
		m.step(e, Granted)
	case what == "gives the lock back":
		m.step(e, GaveBack)
	case what == "downgrades":
		e.down = true
	case what == "passes over that key":
		e.key += 2
	case what == "has lost it" && e.had:
		m.step(e, Lost)
	case what == "has lost it", what == "its ctx ends", what == "is told that it is locked":
		m.step(e, Abandoned)
	}
	return nil
}

func (m *modelRun) step(e *modelEntry, what What) {
	m.steps = append(m.steps, Step{What: what, At: m.at, Name: modelLock, Token: e.token, Lease: e.session + 1})
}

func (m *modelRun) etcd(what string) error {
	var who string
	var token, session int64
	var wrote int
	switch {
	case strings.Contains(what, "guarded transaction"):
		who, result, _ := strings.Cut(what, "'s guarded transaction is carried out: ")
		e := m.by[who]
		if _, err := fmt.Sscan(result, &wrote); err != nil || e == nil {
			return fmt.Errorf("no result of %q", who)
		}
		if key, shared := e.keys(); wrote == 1 {
			if e.down || e.kind == "reader" {
				key = shared
			}
			m.claims = append(m.claims, Claim{Key: key, Token: e.token, Revision: m.rev})
		}
		return nil
	case strings.HasSuffix(what, "is written"):
		_, err := fmt.Sscanf(what, "at %d the entry of %s is written", &m.rev, &who)
		e := m.by[who]
		if err != nil || e == nil {
			return errors.New("nobody writes it")
		}
		var events []*clientv3.Event
		exclusive, shared := e.keys()
		if e.kind != "reader" {
			events = append(events, m.put(exclusive, e.session+1))
		}
		if e.kind != "mutex" {
			events = append(events, m.put(shared, e.session+1))
		}
		m.log.Add(events, m.at)
		return nil
	case strings.Contains(what, "the lease of session"):
		_, err := fmt.Sscanf(what, "at %d the lease of session %d ends", &m.rev, &session)
		lease := fmt.Sprintf("%x", session+1)
		m.remove(func(key string, _ int64) bool {
			base, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(key, modelLock+"/"), "r"), "-")
			return base == lease
		})
		return err
	case strings.Contains(what, "the exclusive key"):
		_, err := fmt.Sscanf(what, "at %d the exclusive key of revision %d is deleted", &m.rev, &token)
		m.remove(func(key string, created int64) bool {
			return created == token && !strings.HasPrefix(key, modelLock+"/r")
		})
		return err
	}
	_, err := fmt.Sscanf(what, "at %d the entry of revision %d is deleted", &m.rev, &token)
	m.remove(func(_ string, created int64) bool { return created == token })
	return err
}

func (m *modelRun) somebody(what string) error {
	var who, kind string
	var session int64
	if _, err := fmt.Sscanf(what, "revokes the lease of session %d", &session); err == nil {
		m.log.WillRevoke(session + 1)
		return nil
	}
	_, err := fmt.Sscanf(what, "at %d removes %s %s key", &m.rev, &who, &kind)
	e := m.by[strings.TrimSuffix(who, "'s")]
	if err != nil || e == nil {
		return fmt.Errorf("nobody's entry: %w", err)
	}
	key, shared := e.keys()
	if kind == "shared" {
		key = shared
	}
	m.log.WillRemove(Entry{Key: key, Created: m.live[key]})
	m.remove(func(k string, _ int64) bool { return k == key })
	return nil
}

func (m *modelRun) put(key string, lease int64) *clientv3.Event {
	m.live[key] = m.rev
	return &clientv3.Event{Type: clientv3.EventTypePut, Kv: &mvccpb.KeyValue{Key: []byte(key), Lease: lease, CreateRevision: m.rev, ModRevision: m.rev}}
}

// remove deletes the keys that are there and are meant.
func (m *modelRun) remove(meant func(key string, created int64) bool) {
	var events []*clientv3.Event
	for _, key := range slices.Sorted(maps.Keys(m.live)) {
		if meant(key, m.live[key]) {
			delete(m.live, key)
			events = append(events, &clientv3.Event{Type: clientv3.EventTypeDelete, Kv: &mvccpb.KeyValue{Key: []byte(key), ModRevision: m.rev}})
		}
	}
	m.log.Add(events, m.at)
}

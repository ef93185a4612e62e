package history

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Where things lie in the etcd of a run, which holds nothing else.
const (
	LockPrefix = "lock/" // and the names of the locks
	SetPrefix  = "set/"  // and the keys of the sets
)

// A Log is what etcd did: all its events, in etcd's order. It is safe for
// concurrent use.
type Log struct {
	mu      sync.Mutex
	news    chan struct{} // closed, and another one, when something was added
	seen    int64         // all up to this revision is in the log
	entries []*Entry      // in the order of their creation
	live    map[string]*Entry
	writes  []Claim // the guarded writes of sets
	leases  map[int64]bool
	odd     []string
	prefix  string // of the names of the locks that are followed
}

// An Entry is one key of a lock's queue, from its creation to its deletion. A
// write lock has two.
type Entry struct {
	Name, Key string
	Shared    bool
	Lease     int64
	Created   int64 // the revision, which is the token
	Gone      int64 // the revision of its deletion; 0 if it is there
	// GoneSeen is when an observer had heard of the deletion. It was carried out
	// earlier than that, never later.
	GoneSeen time.Time
	// Foreign: somebody else removed it, or was about to.
	Foreign bool
	// Unheard: its session may not have heard of that, since a watch has lost events. See LostEvents.
	Unheard bool
	nonce   string // of its value, "" if that has none
}

func (e *Entry) String() string { return fmt.Sprintf("%s (created at %d)", e.Key, e.Created) }

// NewLog is the log of an etcd that is still empty, about the locks whose names begin with prefix.
func NewLog(prefix string) *Log {
	return &Log{prefix: prefix, seen: 1, news: make(chan struct{}), live: make(map[string]*Entry), leases: make(map[int64]bool)}
}

// Follow writes down what etcd does, until the returned function is called, as
// heard through each of the clients: one for each member, so that one that is
// down or cut off delays nothing.
//
// Whoever hears of a revision first writes it down. Each watch, whenever it is
// opened, begins right behind the log, and a watch leaves nothing out. So the log
// has no gaps, as long as nobody compacts what is not in it yet (see Revision).
// Since every revision of etcd has events, Add can tell if it has one all the same.
func (l *Log) Follow(clients ...*clientv3.Client) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for _, c := range clients {
		wg.Go(func() { l.follow(ctx, c) })
	}
	return func() { cancel(); wg.Wait() }
}

func (l *Log) follow(ctx context.Context, c *clientv3.Client) {
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for ctx.Err() == nil {
		wctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
		for wr := range c.Watch(wctx, "\x00", clientv3.WithFromKey(), clientv3.WithRev(l.Revision()+1)) {
			if wr.Err() != nil {
				break // no leader, or compacted: another observer was quicker
			}
			l.Add(wr.Events, time.Now())
		}
		cancel()
		select {
		case <-again.C:
		case <-ctx.Done():
		}
	}
}

// Revision is the one up to which the log is complete.
func (l *Log) Revision() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.seen
}

// Wait waits until the log is complete up to rev.
func (l *Log) Wait(ctx context.Context, rev int64) error {
	for {
		l.mu.Lock()
		seen, news := l.seen, l.news
		l.mu.Unlock()
		if seen >= rev {
			return nil
		}
		select {
		case <-news:
		case <-ctx.Done():
			return fmt.Errorf("etcd's history up to revision %d: %w", rev, ctx.Err())
		}
	}
}

// Add writes down events that were heard of at the time at, and passes over what
// is in the log already.
func (l *Log) Add(events []*clientv3.Event, at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	had := l.seen
	for _, ev := range events {
		rev := ev.Kv.ModRevision
		if rev <= had {
			continue
		}
		if rev > l.seen+1 {
			l.oddly("etcd's history has a gap from revision %d to %d", l.seen, rev)
		}
		l.seen = rev
		l.addLocked(ev, at)
	}
	if l.seen > had {
		close(l.news)
		l.news = make(chan struct{})
	}
}

// entryKey is <name>/<lease>, <name>/r<lease>, or either with -<n>.
var entryKey = regexp.MustCompile(`^(.+)/(r?)[1-9a-f][0-9a-f]{0,15}(-[1-9a-f][0-9a-f]{0,15})?$`)

func (l *Log) addLocked(ev *clientv3.Event, at time.Time) {
	key, rev := string(ev.Kv.Key), ev.Kv.ModRevision
	parts := entryKey.FindStringSubmatch(key)
	switch {
	case strings.HasPrefix(key, SetPrefix):
		var v SetValue
		if err := json.Unmarshal(ev.Kv.Value, &v); ev.Type == clientv3.EventTypePut && err == nil {
			l.writes = append(l.writes, Claim{v.Worker, v.Key, v.Token, rev})
		} else {
			l.oddly("%s was deleted, or holds %q", key, ev.Kv.Value)
		}
	case !strings.HasPrefix(key, l.prefix):
		// a mark in the history
	case parts == nil:
		l.oddly("%s is no entry", key)
	case ev.IsCreate():
		e := &Entry{Name: parts[1], Key: key, Shared: parts[2] != "", Lease: ev.Kv.Lease, Created: rev, nonce: nonceOf(ev)}
		l.entries = append(l.entries, e)
		l.live[key] = e
	case ev.IsModify() && l.live[key].publishes(ev):
		// SetValue: nothing of the queue changes
	case ev.IsModify():
		l.oddly("%s was written again at %d", l.live[key], rev)
	case l.live[key] == nil:
		l.oddly("%s was deleted at %d before it was there", key, rev)
	default:
		e := l.live[key]
		e.Gone, e.GoneSeen = rev, at
		delete(l.live, key)
	}
}

// publishes reports whether a put on the entry changes no more than what its owner publishes: the lease and the nonce of
// the value are as before. An entry without a nonce can't prove that.
func (e *Entry) publishes(put *clientv3.Event) bool {
	return e != nil && e.nonce != "" && nonceOf(put) == e.nonce && put.Kv.Lease == e.Lease
}

func nonceOf(put *clientv3.Event) string {
	var v struct{ Nonce string }
	if json.Unmarshal(put.Kv.Value, &v) != nil {
		return ""
	}
	return v.Nonce
}

func (l *Log) oddly(format string, args ...any) {
	l.odd = append(l.odd, fmt.Sprintf(format, args...))
}

// Live returns copies of the entries that are in etcd, oldest first.
func (l *Log) Live() []Entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	live := make([]Entry, 0, len(l.live))
	for _, e := range l.live {
		live = append(live, *e)
	}
	slices.SortFunc(live, func(a, b Entry) int {
		if a.Created != b.Created {
			return int(a.Created - b.Created)
		}
		return strings.Compare(a.Key, b.Key)
	})
	return live
}

// WillRemove says that somebody other than its owner is about to remove an entry.
func (l *Log) WillRemove(e Entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if live := l.live[e.Key]; live != nil && live.Created == e.Created {
		live.Foreign = true
	}
}

// LostEvents says that watches have lost events between from and to, as watches of etcd 3.4 and 3.5 did. What somebody else
// removed then may have been granted all the same, until its session looked: a watch that shows a later event and not
// this one says that the entry was there.
func (l *Log) LostEvents(from, to time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	to = to.Add(time.Second) // the observer may have heard of it later
	for _, e := range l.entries {
		if (e.Foreign || l.leases[e.Lease]) && e.Gone != 0 && !e.GoneSeen.Before(from) && !e.GoneSeen.After(to) {
			e.Unheard = true
		}
	}
}

// WillRevoke says that somebody other than its owner is about to revoke a lease.
func (l *Log) WillRevoke(lease int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.leases[lease] = true
}

// Interfered reports whether somebody else has revoked the lease, or removed an
// entry that hung on it, or was about to.
func (l *Log) Interfered(lease int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.leases[lease] || slices.ContainsFunc(l.entries, func(e *Entry) bool { return e.Foreign && e.Lease == lease })
}

// String is etcd's history of all entries, for people.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var b strings.Builder
	for _, e := range l.entries {
		fmt.Fprintf(&b, "%d to %d: %s", e.Created, e.Gone, e.Key)
		if !e.GoneSeen.IsZero() {
			fmt.Fprintf(&b, ", seen at %s", e.GoneSeen.Format(clock))
		}
		if e.Foreign || l.leases[e.Lease] {
			b.WriteString(", removed by others or its lease revoked")
		}
		b.WriteByte('\n')
	}
	return b.String()
}

type entryID struct {
	key   string
	token int64
}

// byIDLocked needs l.mu.
func (l *Log) byIDLocked() map[entryID]*Entry {
	m := make(map[entryID]*Entry, len(l.entries))
	for _, e := range l.entries {
		m[entryID{e.Key, e.Created}] = e
	}
	return m
}

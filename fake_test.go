package etcdlock

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/fakeetcd"
	"github.com/etcdlock/etcdlock/internal/keyspace"
	"github.com/etcdlock/etcdlock/internal/queue"
)

var discard = slog.New(slog.DiscardHandler)

// fakeEtcd is a fake of etcd with sessions on it, for tests in a synctest bubble.
type fakeEtcd struct{ *fakeetcd.Server }

func newFakeEtcd() *fakeEtcd { return &fakeEtcd{fakeetcd.New()} }

// session is a session on the fake, without the goroutine that renews.
func (f *fakeEtcd) session(id clientv3.LeaseID) *Session {
	s := f.bareSession(id)
	s.startInspect()
	return s
}

// bareSession is a session that does not inspect its keys either.
func (f *fakeEtcd) bareSession(id clientv3.LeaseID) *Session {
	var s *Session
	client := f.Client(func(ctx context.Context) (int64, error) { return s.keepAlive(ctx) })
	s = makeSession(client, config{lease: id, ttl: 10 * time.Second, log: discard, owner: "o"})
	s.keepAlive = func(context.Context) (int64, error) { return 10, nil }
	s.record(time.Now(), 3600)
	s.ttl = 10 * time.Second
	return s
}

// entries are the keys below prefix now.
func (f *fakeEtcd) entries(prefix string) []queue.Entry { return queue.Entries(f.Keys(prefix)) }

// writeAll writes the keys, separated by spaces, in one revision.
func (f *fakeEtcd) writeAll(keys string) {
	var ops []*pb.RequestOp
	for _, key := range strings.Fields(keys) {
		ops = append(ops, fakeetcd.PutOp(key, "", 0))
	}
	f.Do(ops...)
}

// entitled is the definition of who may hold the lock.
func entitled(kind keyspace.Kind, rev int64, entries []queue.Entry) bool {
	return !slices.ContainsFunc(entries, func(e queue.Entry) bool {
		k := keyspace.KindOf("a", e.Key)
		return e.Rev < rev && (k == keyspace.Exclusive || k == keyspace.Shared && kind == keyspace.Exclusive)
	})
}

package queue

import (
	"testing"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/etcdlock/etcdlock/internal/keyspace"
)

func TestBlocked(t *testing.T) {
	x := func(rev int64) Entry { return Entry{"a/1", rev} }
	y := func(rev int64) Entry { return Entry{"a/2-1", rev} }
	z := func(rev int64) Entry { return Entry{"a/9", rev} }
	r := func(rev int64) Entry { return Entry{"a/r3", rev} }
	r2 := func(rev int64) Entry { return Entry{"a/r4-a", rev} }
	f := func(rev int64) Entry { return Entry{"a/b/5", rev} }
	x2 := func(rev int64) Entry { return Entry{"a/3", rev} }
	many := []Entry{{"a/r3", 3}, {"a/r4", 4}, {"a/r5", 5}, {"a/r6", 6}, {"a/r7", 7}}
	for _, tc := range []struct {
		name    string
		wants   keyspace.Kind
		queue   []Entry
		blocked bool
	}{
		{"empty", keyspace.Exclusive, nil, false},
		{"empty, reader", keyspace.Shared, nil, false},
		{"only later ones", keyspace.Exclusive, []Entry{x(10), r(12)}, false},
		{"one writer", keyspace.Exclusive, []Entry{x(3)}, true},
		{"reader behind a writer", keyspace.Shared, []Entry{x(3)}, true},
		{"reader behind a write lock's two keys", keyspace.Shared, []Entry{x(3), r(3)}, true},
		{"writer behind a write lock's two keys", keyspace.Exclusive, []Entry{x(3), r(3)}, true},
		{"two writers", keyspace.Exclusive, []Entry{x(3), y(5)}, true},
		{"three writers, the earlier one first", keyspace.Exclusive, []Entry{x(3), z(4), y(5)}, true},
		{"three writers, in another order", keyspace.Exclusive, []Entry{y(5), x(3), z(4)}, true},
		{"four writers, the last but two first", keyspace.Exclusive, []Entry{x(3), x2(6), z(4), y(5)}, true},
		{"reader behind two writers", keyspace.Shared, []Entry{y(5), x(3)}, true},
		{"reader behind three writers", keyspace.Shared, []Entry{y(5), x(3), z(4)}, true},
		{"key order is no order", keyspace.Exclusive, []Entry{x(6), y(5), z(3)}, true},
		{"readers don't wait for readers", keyspace.Shared, []Entry{r(3), r2(4)}, false},
		{"reader behind reader behind writer", keyspace.Shared, []Entry{x(3), r(4)}, true},
		{"writer behind readers", keyspace.Exclusive, []Entry{r(3), r2(4)}, true},
		{"writer behind a few readers behind writer", keyspace.Exclusive, []Entry{x(2), r(3), r2(4)}, true},
		{"writer behind many readers behind writer", keyspace.Exclusive, append(many, x(2)), true},
		{"writer behind many readers", keyspace.Exclusive, many, true},
		{"reader between writers", keyspace.Exclusive, []Entry{x(2), r(3), y(4)}, true},
		{"foreign keys don't block", keyspace.Exclusive, []Entry{f(2), f(3)}, false},
		{"foreign keys don't count", keyspace.Exclusive, []Entry{f(2), x(3)}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			require.Equal(t, tc.blocked, Blocked("a", tc.wants, 10, tc.queue))
		})
	}
}

func TestAhead(t *testing.T) {
	queue := func(name string, keys ...Entry) *pb.RangeResponse {
		r := &pb.RangeResponse{}
		for _, e := range keys {
			r.Kvs = append(r.Kvs, &mvccpb.KeyValue{Key: []byte(name + e.Key), CreateRevision: e.Rev})
		}
		return r
	}
	a := queue("a/", Entry{"1", 3}, Entry{"r1", 3}, Entry{"r2", 4}, Entry{"r3", 5}, Entry{"4", 6}, Entry{"x/1", 7}, Entry{"5", 9})
	b := queue("b/", Entry{"1", 3}, Entry{"r2", 4})
	require.Equal(t, 4, Ahead([]string{"a"}, 8, []*pb.RangeResponse{a}), "a write lock counts once, foreign keys don't")
	require.Equal(t, 4, Ahead([]string{"a", "b"}, 8, []*pb.RangeResponse{a, b}), "what is in two queues counts once")
	require.Equal(t, 0, Ahead([]string{"a"}, 3, []*pb.RangeResponse{a}))
}

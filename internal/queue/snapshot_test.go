package queue

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/etcdlock/etcdlock/internal/keyspace"
)

// Whether an entry holds is what the locks themselves go by: all of the queue.
func TestSnapshot_HoldersProperty(t *testing.T) {
	t.Parallel()
	const name = "n"
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 1))
		s := NewSnapshot(name)
		writes := 0 // with both of their keys
		for range r.IntN(8) {
			rev, lease := 1+r.Int64N(20), int64(1+r.IntN(3))
			ex, sh := keyspace.Base(name, keyspace.Exclusive, lease), keyspace.Base(name, keyspace.Shared, lease)
			if n := r.IntN(3); n > 0 {
				ex, sh = fmt.Sprintf("%s-%x", ex, n), fmt.Sprintf("%s-%x", sh, 3-n)
			}
			if s.Keys[ex].Rev+s.Keys[sh].Rev != 0 || slices.ContainsFunc(s.Acquisitions(), func(a Acquisition) bool { return a.Rev == rev && a.Lease == lease }) {
				continue
			}
			which := r.IntN(3)
			if which != 1 {
				s.Keys[ex] = Key{Rev: rev, Lease: lease}
			}
			if which != 0 {
				s.Keys[sh] = Key{Rev: rev, Lease: lease}
			}
			if which == 2 {
				writes++
			}
		}
		var all []Entry
		for key, k := range s.Keys {
			all = append(all, Entry{Key: key, Rev: k.Rev})
		}
		q := s.Acquisitions()
		require.Len(t, q, len(s.Keys)-writes, "seed %d", seed)
		s.Rev = int64(1 + seed)
		require.Equal(t, s.Rev, s.First().Rev)
		first := s.First().Acquisitions()
		require.Equal(t, q[:len(first)], first, "seed %d", seed)
		require.Equal(t, len(q) > 0, len(first) > 0)
		require.True(t, slices.IsSortedFunc(q, func(a, b Acquisition) int { return int(a.Rev - b.Rev) }))
		for _, e := range q {
			require.Equal(t, s.Keys[e.Key].Rev, e.Rev)
			require.Equal(t, keyspace.KindOf(name, e.Key) == keyspace.Shared, e.Read)
			if e.SharedKey != "" {
				require.Equal(t, e.Rev, s.Keys[e.SharedKey].Rev)
			}
			require.Equal(t, !Blocked(name, keyspace.KindOf(name, e.Key), e.Rev, all), e.Holds, "seed %d: %v in %v", seed, e, all)
		}
	}
}

// A write lock has one shared key; another of the same revision and lease, which
// only others can have written, is a reader.
func TestSnapshot_TwoSharedKeys(t *testing.T) {
	t.Parallel()
	k := Key{Rev: 7, Lease: 31}
	q := (&Snapshot{Name: "n", Keys: map[string]Key{"n/1f": k, "n/r1f": k, "n/r1f-1": k}}).Acquisitions()
	require.Len(t, q, 2)
	require.Equal(t, "n/r1f", q[0].SharedKey)
	require.Equal(t, "n/r1f-1", q[1].Key)
}

func written(key string, rev int64) *mvccpb.Event {
	return &mvccpb.Event{Type: put, Kv: &mvccpb.KeyValue{Key: []byte(key), CreateRevision: rev, ModRevision: rev}}
}

func del(key string, rev int64) *mvccpb.Event {
	return &mvccpb.Event{Type: 1, Kv: &mvccpb.KeyValue{Key: []byte(key), ModRevision: rev}}
}

// Events lead from one state to the next; those that the reading has shown are passed over.
func TestSnapshot_Apply(t *testing.T) {
	s := NewSnapshot("n")
	s.Rev = 5
	require.False(t, s.Apply([]*mvccpb.Event{written("n/1", 4), written("n/stray", 6)}))
	require.Empty(t, s.Keys, "the first event is older than the reading")
	require.Contains(t, s.Foreign, "n/stray")
	require.True(t, s.Apply([]*mvccpb.Event{written("n/1", 7), written("n/r1", 7)}), "two events of one revision")
	require.Len(t, s.Keys, 2)
	require.EqualValues(t, 7, s.Rev)
	require.False(t, s.Apply([]*mvccpb.Event{del("n/stray", 8)}))
	require.Empty(t, s.Foreign)
	require.True(t, s.Apply([]*mvccpb.Event{del("n/1", 9)}))
	require.Len(t, s.Keys, 1)
	require.False(t, s.Apply([]*mvccpb.Event{del("n/r1", 9)}), "it has seen that revision")
}

// A reader is told once of any number of changes, and gets the newest state.
func TestFollower(t *testing.T) {
	f := NewFollower()
	require.Empty(t, f.Changed())
	f.Replace(NewSnapshot("n"))
	require.Len(t, f.Changed(), 1, "the first reading is a change")
	f.Apply([]*mvccpb.Event{written("n/1", 2)})
	f.Apply([]*mvccpb.Event{written("n/2", 3)})
	f.Newest(func(s *Snapshot) { require.Len(t, s.Keys, 2) })
	require.Empty(t, f.Changed())
	f.Apply([]*mvccpb.Event{written("n/stray", 4)})
	require.Empty(t, f.Changed(), "a foreign key is no change")
	rev, keys := f.At()
	require.EqualValues(t, 4, rev)
	require.Equal(t, 3, keys)
	same := NewSnapshot("n")
	f.Newest(func(s *Snapshot) { same.Keys = s.Keys })
	f.Replace(same)
	require.Empty(t, f.Changed(), "the same entries are no change")
	f.Replace(NewSnapshot("n"))
	require.Len(t, f.Changed(), 1)
}

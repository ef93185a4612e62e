package removal

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/queue"
	"github.com/etcdlock/etcdlock/internal/sender"
	"github.com/etcdlock/etcdlock/internal/test/fakeetcd"
)

// A world is a fake etcd.
type world struct {
	*fakeetcd.Server
	etcd       *etcd.Client
	background func(f func(context.Context)) bool
}

func newWorld(t *testing.T) *world {
	f := fakeetcd.New()
	life, end := context.WithCancel(context.Background())
	t.Cleanup(end)
	return &world{f, etcd.NewClient(f.Client(nil)), func(f func(context.Context)) bool { go f(life); return true }}
}

// Keys are removed as far as they are those of the entry, and it is told of each whether it was there.
func TestRemove_I5(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		next := []queue.Entry{{Key: "a/6", Rev: w.WriteOn(5, "", "a/6")}, {Key: "a/7", Rev: 1}, {Key: "a/8", Rev: w.WriteOn(5, "", "a/8")}}
		seen := []queue.Entry{next[0], next[2]}
		removals := New(t.Context(), sender.New(w.etcd, w.background), w.background)
		remove := func(rev int64, keys ...string) []bool {
			r, err := removals.Remove(t.Context(), removals.Add("a", &Leaving{Keys: keys, Rev: rev, Next: next}))
			require.NoError(t, err)
			require.False(t, r.Ambiguous)
			require.Equal(t, seen, r.There)
			require.Equal(t, w.Do(), r.At)
			return r.Removed
		}
		rev := w.WriteOn(5, "", "a/5", "a/r5")
		require.Equal(t, []bool{false}, remove(rev-1, "a/5"))
		require.Equal(t, []bool{false, false}, remove(rev-1, "a/5", "a/r5"))
		require.Equal(t, []string{"a/5", "a/6", "a/8", "a/r5"}, w.There("a/"))
		require.Equal(t, []bool{true}, remove(rev, "a/5"))
		require.Equal(t, []bool{false, true}, remove(rev, "a/5", "a/r5"))
		require.Equal(t, []string{"a/6", "a/8"}, w.There("a/"))

		beside := func(rev int64, next ...queue.Entry) (Result, error) {
			return removals.Remove(t.Context(), removals.Add("a", &Leaving{Keys: []string{"a/5"}, Kept: "a/r5", Rev: rev, Next: next, Now: true}))
		}
		rev = w.WriteOn(5, "", "a/5", "a/r5")
		r, err := beside(rev-1, next...)
		require.NoError(t, err)
		require.Empty(t, r.Removed)
		require.Contains(t, w.There("a/"), "a/5")
		for _, was := range []bool{true, false} {
			r, err = beside(rev, next...)
			require.NoError(t, err)
			require.Equal(t, []bool{was}, r.Removed)
			require.Equal(t, seen, r.There)
			require.Equal(t, next, r.Sought)
		}
		require.Equal(t, []string{"a/6", "a/8", "a/r5"}, w.There("a/"))

		// It is sent again without what it looks for, since etcd may allow less, before anybody is told.
		w.WriteOn(5, "", "a/5")
		w.Step = func(_ context.Context, what string) error {
			w.Step = func(context.Context, string) error { return nil }
			return rpctypes.ErrGRPCTooManyOps
		}
		r, err = beside(rev, next...)
		require.NoError(t, err)
		require.Empty(t, r.Sought)

		// An attempt before a refusal may have been carried out.
		w.WriteOn(5, "", "a/5")
		steps := 0
		w.Step = func(_ context.Context, what string) error {
			switch steps++; steps {
			case 2:
				return errors.New("the reply is lost")
			case 3:
				return rpctypes.ErrGRPCPermissionDenied
			}
			return nil
		}
		o := &owner{removed: func(got Result) { r = got }}
		<-removals.RemoveLater(removals.Add("a", &Leaving{Keys: []string{"a/5"}, Kept: "a/r5", Rev: rev, Owner: o}))
		require.True(t, r.Ambiguous)
		require.Equal(t, 1, o.refused)

		lost := false
		w.Step = func(_ context.Context, what string) error {
			if what == "Txn." && !lost {
				lost = true
				return errors.New("the reply is lost")
			}
			return nil
		}
		r, err = Remove(t.Context(), w.etcd, etcd.Policy{}, []string{"a/r5"}, rev)
		require.NoError(t, err)
		require.Equal(t, Result{At: w.Do(), Removed: []bool{false}, Ambiguous: true}, r)
	})
}

// A removal that is slow is sent again beside itself, so its attempts must share nothing that they write.
// The race detector tells.
func TestRemove_BesideItself(t *testing.T) {
	w := newWorld(t)
	removals := New(t.Context(), sender.New(w.etcd, w.background), w.background)
	var next []queue.Entry
	for i := range 3 { // where append makes room for four
		next = append(next, queue.Entry{Key: fmt.Sprintf("a/%d", i+6), Rev: 1})
	}
	for _, keys := range [][]string{{"a/5"}, {"a/5", "a/r5"}} {
		rev := w.WriteOn(5, "", keys...)
		var attempts atomic.Int32
		second, carriedOut := context.WithCancel(t.Context())
		w.Step = func(_ context.Context, what string) error {
			if what == "Txn" && attempts.Add(1) == 1 {
				<-second.Done()
			} else if what == "Txn." { // of another one than the first
				carriedOut()
			}
			return nil
		}
		_, err := removals.Remove(t.Context(), removals.Add("a", &Leaving{Keys: keys, Rev: rev, Next: next}))
		require.NoError(t, err)
		require.Empty(t, w.There("a/"))
	}
}

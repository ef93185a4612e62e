package settle

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/queue"
	"github.com/etcdlock/etcdlock/internal/sender"
)

var errEnded = errors.New("ctx has ended, and why")

// A row is a fake etcd with the Removals of a session, whose entries in the queue of "a" leave.
type row struct {
	*world
	*Removals
	t     *testing.T
	life  context.CancelCauseFunc
	close context.CancelFunc // of the client

	mu      sync.Mutex
	held    chan struct{} // holds back requests, before they are carried out
	answers []error       // to the next requests
	txns    int
	removed []string
}

func newRow(t *testing.T) *row {
	w := newWorld(t)
	life, end := context.WithCancelCause(t.Context())
	r := &row{world: w, t: t, life: end}
	t.Cleanup(func() { end(nil) })
	ctx, stop := context.WithCancel(context.Background())
	client := clientv3.NewCtxClient(ctx)
	client.KV, r.close = clientv3.NewKVFromKVClient(w.Server, client), stop
	background := func(f func(context.Context)) bool {
		return ctx.Err() == nil && w.background(func(life context.Context) {
			bound, unbind := etcd.Bind(life, ctx)
			defer unbind()
			f(bound)
		})
	}
	c := etcd.NewClient(client)
	r.Removals = NewRemovals(life, c, sender.New(c, background), background, func(context.Context) error { return errEnded })
	w.Step = func(ctx context.Context, what string) error {
		r.mu.Lock()
		held := r.held
		var answer error
		if what == "Txn" {
			if r.txns++; len(r.answers) > 0 {
				answer, r.answers = r.answers[0], r.answers[1:]
			}
		}
		r.mu.Unlock()
		if what == "Txn" && held != nil && answer == nil {
			select {
			case <-held:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return answer
	}
	return r
}

func (r *row) holdBack() (goOn func()) {
	held := make(chan struct{})
	r.mu.Lock()
	r.held = held
	r.mu.Unlock()
	return func() {
		r.mu.Lock()
		r.held = nil
		r.mu.Unlock()
		close(held)
		synctest.Wait()
	}
}

// enter puts an entry into the queue, and leave has it wait for its removal.
func (r *row) enter(key string) queue.Entry { return queue.Entry{Key: key, Rev: r.put("", key)} }

func (r *row) leave(q queue.Entry, now bool, next ...queue.Entry) *Leaving {
	return r.Add("a", &Leaving{Keys: []string{q.Key}, Rev: q.Rev, Next: next, Now: now, Removed: func(got Removal) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if !got.Found(false) {
			r.t.Errorf("%v was not there", q)
		}
		if len(got.Sought) != len(got.There) {
			r.t.Errorf("sought %v, found %v", got.Sought, got.There)
		}
		r.removed = append(r.removed, q.Key)
	}})
}

func (r *row) enterMany(n int) (qs []queue.Entry) {
	for i := range n {
		qs = append(qs, r.enter(fmt.Sprintf("a/5-%x", i+1)))
	}
	return qs
}

func (r *row) requireTxns(n int) {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	require.Equal(r.t, n, r.txns)
	r.txns = 0
}

func onRow(t *testing.T, play func(t *testing.T, r *row)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := newRow(t)
		play(t, r)
		synctest.Wait()
		require.False(t, r.Any())
	})
}

// A removal by which nobody gets in waits for the reply to the one before; all that wait then go together. One that
// lets somebody in does not wait, and takes the others along.
func TestRemovals_Together(t *testing.T) {
	for _, unlock := range []bool{false, true} {
		remove := func(r *row, l *Leaving) {
			if !unlock {
				r.RemoveLater("a", l)
			} else {
				go func() {
					_, err := r.Remove(context.Background(), "a", l)
					if err != nil {
						r.t.Error(err)
					}
				}()
			}
			synctest.Wait()
		}
		onRow(t, func(t *testing.T, r *row) {
			qs := r.enterMany(10)
			goOn := r.holdBack()
			for _, q := range qs {
				remove(r, r.leave(q, false))
			}
			r.requireTxns(1)
			goOn()
			r.requireTxns(1)
			require.Empty(r.t, r.there("a/"))
			require.Len(r.t, r.removed, 10)
		})
		onRow(t, func(t *testing.T, r *row) {
			qs := r.enterMany(10)
			goOn := r.holdBack()
			for i, q := range qs {
				remove(r, r.leave(q, i == 7))
			}
			r.requireTxns(2)
			goOn()
			r.requireTxns(1) // the last two
			require.Empty(r.t, r.there("a/"))
		})
	}
}

// A removal by which nobody gets in also waits for the reply to a txn that does more, or goes with the next one.
func TestRemovals_BesideAnEnqueue(t *testing.T) {
	onRow(t, func(t *testing.T, r *row) {
		qs := r.enterMany(6)
		for range 2 {
			require.Empty(t, r.Take("a"))
		}
		r.RemoveLater("a", r.leave(qs[0], false))
		r.Replied("a")
		synctest.Wait()
		r.requireTxns(0) // one is on its way still
		r.RemoveLater("a", r.leave(qs[1], false))
		taken := r.Take("a")
		require.Len(t, taken, 2)
		r.RemoveLater("a", r.leave(qs[2], false))
		r.Return("a", taken, false) // else each txn to come might take it along, and fail
		synctest.Wait()
		r.requireTxns(1)
		require.Len(t, r.there("a/"), 3)
		r.Replied("a")
		r.Replied("a")

		for range 2 {
			require.Empty(t, r.Take("a"))
		}
		r.RemoveLater("a", r.leave(qs[5], false))
		r.Replied("a")
		synctest.Wait()
		r.requireTxns(0)
		r.Replied("a")
		synctest.Wait()
		r.requireTxns(1)

		require.Empty(t, r.Take("a"))
		r.RemoveLater("a", r.leave(qs[3], true))
		synctest.Wait()
		r.requireTxns(1)
		r.Replied("a")
		require.False(t, r.Any())

		require.Empty(t, r.Take("a"))
		r.Replied("a")
		require.False(t, r.Any())
		r.RemoveLater("a", r.leave(qs[4], false))
		synctest.Wait()
		r.requireTxns(1)
	})
}

// Removals that are wanted at the same moment go together, whoever comes first, and look for nobody who leaves too.
func TestRemovals_AtTheSameMoment(t *testing.T) {
	onRow(t, func(t *testing.T, r *row) {
		qs := r.enterMany(6)
		var ls []*Leaving
		for i, q := range qs[:5] {
			ls = append(ls, r.leave(q, i == 4, qs[i+1]))
		}
		removal, err := r.Remove(t.Context(), "a", ls[0])
		require.NoError(t, err)
		require.Equal(t, []bool{true}, removal.Removed)
		for _, l := range ls[1:] {
			again, err := r.Remove(t.Context(), "a", l)
			require.NoError(t, err)
			require.Equal(t, removal.At, again.At)
		}
		r.requireTxns(1)
		require.Equal(t, []queue.Entry{qs[5]}, ls[4].removal.There)
		require.Empty(t, ls[3].removal.Sought)
		require.Equal(t, []string{"a/5-6"}, r.there("a/"))
	})
}

// Whoever has an entry removed that another goroutine released, the other goroutine is told of it.
func TestRemovals_ByAnother(t *testing.T) {
	onRow(t, func(t *testing.T, r *row) {
		goOn := r.holdBack()
		first := r.RemoveLater("a", r.leave(r.enter("a/5"), false))
		synctest.Wait()
		l := r.leave(r.enter("a/5-1"), false)
		goOn() // the reply to the first has it sent
		<-first
		removal, err := r.Remove(t.Context(), "a", l)
		require.NoError(t, err)
		require.Equal(t, []bool{true}, removal.Removed)
		r.requireTxns(2)
	})
}

// One request has a limited number of operations; the lowest entries come first, and those of other names apart.
func TestRemovals_Many(t *testing.T) {
	onRow(t, func(t *testing.T, r *row) {
		qs := r.enterMany(3*etcd.Batch + 1)
		goOn := r.holdBack()
		r.RemoveLater("a", r.leave(qs[0], true))
		synctest.Wait()
		rest := slices.Clone(qs[1:])
		slices.Reverse(rest)
		for _, q := range rest {
			r.RemoveLater("a", r.leave(q, false))
		}
		goOn()
		r.requireTxns(4)
		require.Empty(t, r.there("a/"))
		require.Equal(t, "a/5-2", r.removed[1])
		require.Equal(t, "a/5-61", r.removed[len(r.removed)-1])

		// An entry of more keys than that goes alone.
		var keys []string
		for i := range etcd.Batch + 1 {
			keys = append(keys, fmt.Sprintf("a%d/5", i))
		}
		rev := r.put("", keys...)
		other := r.leave(r.enter("a/6"), false)
		l := r.Add("a", &Leaving{Keys: keys, Rev: rev, Now: true})
		require.Equal(t, Batch{other}, r.Take("a"), "nor does it travel")
		r.Replied("a")
		r.Return("a", Batch{other}, false)
		_, err := r.Remove(t.Context(), "a", l)
		require.NoError(t, err)
		synctest.Wait()
		require.Empty(t, r.there("a"))
	})
}

// A batch that etcd refuses, because it allows less for example, goes one by one, and each goes on until it is done.
// Who waits is told why it takes longer.
func TestRemovals_Refused(t *testing.T) {
	onRow(t, func(t *testing.T, r *row) {
		qs := r.enterMany(3)
		var ls []*Leaving
		for _, q := range qs {
			ls = append(ls, r.leave(q, true))
		}
		r.answers = []error{rpctypes.ErrGRPCTooManyOps, rpctypes.ErrGRPCPermissionDenied}
		refused := 0
		ls[0].Refused = func() { refused++ }
		_, err := r.Remove(t.Context(), "a", ls[0])
		require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
		<-ls[0].done
		require.Equal(t, 1, refused, "not of the batch")
		r.requireTxns(5)
		require.Empty(t, r.there("a/"))

		l := r.leave(r.enter("a/5"), true)
		r.answers = []error{rpctypes.ErrGRPCPermissionDenied}
		_, err = r.Remove(t.Context(), "a", l)
		require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
		<-l.done
		require.Empty(t, r.there("a/"))
	})
	onRow(t, func(t *testing.T, r *row) { // another one does not wait for the next attempt
		l := r.leave(r.enter("a/5"), false)
		r.answers = []error{rpctypes.ErrGRPCPermissionDenied, rpctypes.ErrGRPCPermissionDenied}
		_, err := r.Remove(t.Context(), "a", l)
		require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
		synctest.Wait()
		began := time.Now()
		_, err = r.Remove(t.Context(), "a", r.leave(r.enter("a/5-1"), false))
		require.NoError(t, err)
		require.Zero(t, time.Since(began))
		<-l.done
	})
}

// Whatever ends a wait, the removal goes on. It may have been carried out before, and is not said to be found missing.
func TestRemovals_WaitEnds(t *testing.T) {
	for _, alone := range []bool{true, false} {
		onRow(t, func(t *testing.T, r *row) {
			l := r.leave(r.enter("a/5"), true)
			if !alone {
				r.leave(r.enter("a/5-1"), true)
			}
			goOn := r.holdBack()
			ctx, cancel := context.WithCancel(t.Context())
			result := make(chan error)
			go func() {
				_, err := r.Remove(ctx, "a", l)
				result <- err
			}()
			synctest.Wait()
			cancel()
			if err := <-result; alone {
				require.ErrorIs(t, err, context.Canceled)
			} else {
				require.ErrorIs(t, err, errEnded)
			}
			goOn()
			<-l.done
			require.Empty(t, r.there("a/"))
		})
	}
	onRow(t, func(t *testing.T, r *row) { // the attempt that was given up was carried out
		l := r.leave(r.enter("a/5"), true)
		ctx, cancel := context.WithCancel(t.Context())
		step := r.Step
		r.Step = func(_ context.Context, what string) error {
			if what == "Txn." {
				cancel()
			}
			return step(ctx, "")
		}
		_, err := r.Remove(ctx, "a", l)
		require.ErrorIs(t, err, context.Canceled)
		<-l.done
		require.Equal(t, []bool{false}, l.removal.Removed)
		require.True(t, l.removal.Ambiguous)
	})
	onRow(t, func(t *testing.T, r *row) {
		goOn := r.holdBack()
		defer goOn()
		first, l := r.leave(r.enter("a/5"), false), r.leave(r.enter("a/5-1"), false)
		r.RemoveLater("a", first)
		result := make(chan error)
		go func() {
			_, err := r.Remove(t.Context(), "a", l)
			result <- err
		}()
		synctest.Wait()
		r.life(errEnded)
		require.ErrorIs(t, <-result, errEnded)
	})
}

// What leaves travels with a txn that does more, which says what became of it.
func TestRemovals_Take(t *testing.T) {
	onRow(t, func(t *testing.T, r *row) {
		require.Empty(t, r.Take("a"))
		r.Replied("a")
		qs := r.enterMany(3)
		a, b := r.leave(qs[0], true, qs[2]), r.leave(qs[1], true)
		taken := r.Take("a")
		require.Equal(t, Batch{a, b}, taken)
		r.RemoveLater("a", a)
		synctest.Wait()
		r.requireTxns(0)
		resp, err := r.world.etcd.Client.Txn(t.Context()).Then(taken.Ops()...).Commit()
		require.NoError(t, err)
		r.Replied("a")
		taken.Done(resp.Header.Revision, resp.Responses, false)
		require.Equal(t, Removal{At: resp.Header.Revision, Removed: []bool{true}, Sought: qs[2:], There: qs[2:]}, a.removal)
		require.Equal(t, []string{"a/5-3"}, r.there("a/"))
		<-a.done
		<-b.done

		c := r.leave(qs[2], true)
		taken = r.Take("a")
		r.world.Server.Remove("a/5-3") // by the txn, whose reply is lost
		r.Replied("a")
		r.Return("a", taken, true)
		<-c.done
		require.True(t, c.removal.Ambiguous)
	})
}

// A client that was closed ends the wait, also of those for whose request another one was sent, and where nothing can
// be begun any more.
func TestRemovals_ClientClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRow(t)
		r.holdBack()
		results := make(chan error)
		remove := func(l *Leaving) {
			go func() {
				_, err := r.Remove(t.Context(), "a", l)
				results <- err
			}()
			synctest.Wait()
		}
		qs := r.enterMany(5)
		for _, q := range qs[:3] {
			remove(r.leave(q, false))
		}
		r.close()
		l := r.leave(qs[3], true)
		r.leave(qs[4], true)
		remove(l)
		for range 4 {
			require.ErrorIs(t, <-results, etcd.ErrClientClosed)
		}
	})
}

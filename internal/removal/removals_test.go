package removal

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
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/queue"
	"github.com/etcdlock/etcdlock/internal/sender"
)

var errEnded = errors.New("the session has ended")

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
	ops     int // of the last of them
	removed []string
}

func newRow(t *testing.T) *row {
	w := newWorld(t)
	life, end := context.WithCancelCause(t.Context())
	r := &row{world: w, t: t, life: end}
	t.Cleanup(func() { end(nil) })
	ctx, stop := context.WithCancel(context.Background())
	client := clientv3.NewCtxClient(ctx)
	client.KV, r.close = clientv3.NewKVFromKVClient(counter{w.Server, r}, client), stop
	background := func(f func(context.Context)) bool {
		return ctx.Err() == nil && w.background(func(life context.Context) {
			bound, unbind := etcd.Bind(life, ctx)
			defer unbind()
			f(bound)
		})
	}
	w.etcd = etcd.NewClient(client)
	r.Removals = New(life, sender.New(w.etcd, background), background)
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

// A counter counts the operations of the last transaction.
type counter struct {
	pb.KVClient
	*row
}

func (c counter) Txn(ctx context.Context, req *pb.TxnRequest, opts ...grpc.CallOption) (*pb.TxnResponse, error) {
	c.row.mu.Lock()
	c.ops = len(req.Success)
	c.row.mu.Unlock()
	return c.KVClient.Txn(ctx, req, opts...)
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
func (r *row) enter(key string) queue.Entry { return queue.Entry{Key: key, Rev: r.WriteOn(5, "", key)} }

func (r *row) leave(q queue.Entry, now bool, next ...queue.Entry) *Leaving {
	return r.Add("a", &Leaving{Keys: []string{q.Key}, Rev: q.Rev, Next: next, Now: now, Owner: &owner{removed: func(got Result) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if !got.Found(false) {
			r.t.Errorf("%v was not there", q)
		}
		if got.Sought != nil && !slices.Equal(next, got.Sought) {
			r.t.Errorf("sought %v instead of %v", got.Sought, next)
		}
		r.removed = append(r.removed, q.Key)
	}}})
}

type owner struct {
	removed func(got Result)
	refused int
}

func (o *owner) Removed(got Result) { o.removed(got) }
func (o *owner) Refused(error)      { o.refused++ }

// enqueue has another goroutine send the enqueue of an entry of "a".
func (r *row) enqueue(key string) {
	c := &sender.Command{Names: []string{"a"}, Cmps: []clientv3.Cmp{CreatedAt(key, 0)}, Then: []clientv3.Op{clientv3.OpPut(key, "")}}
	go func() {
		reply, _, err := r.Removals.sender.Do(context.Background(), r.Removals.life, c)
		if err != nil || !reply.Succeeded {
			r.t.Error(err)
		}
	}()
	synctest.Wait()
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
				r.RemoveLater(l)
			} else {
				go func() {
					_, err := r.Remove(context.Background(), l)
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
			require.Empty(r.t, r.There("a/"))
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
			require.Empty(r.t, r.There("a/"))
		})
	}
}

// A removal by which nobody gets in also waits for the reply to an enqueue, or goes with the next one.
func TestRemovals_BesideAnEnqueue(t *testing.T) {
	onRow(t, func(t *testing.T, r *row) {
		qs := r.enterMany(6)
		goOn := r.holdBack()
		r.enqueue("a/6")
		r.RemoveLater(r.leave(qs[0], false))
		r.RemoveLater(r.leave(qs[1], false))
		synctest.Wait()
		r.requireTxns(1)
		r.enqueue("a/7") // and both
		r.requireTxns(1)
		r.RemoveLater(r.leave(qs[2], false))
		synctest.Wait()
		r.requireTxns(0)
		r.RemoveLater(r.leave(qs[3], true)) // and the one before
		synctest.Wait()
		r.requireTxns(1)
		r.RemoveLater(r.leave(qs[4], false))
		synctest.Wait()
		r.requireTxns(0)
		goOn()
		r.requireTxns(1)
		r.RemoveLater(r.leave(qs[5], false))
		synctest.Wait()
		r.requireTxns(1)
		require.Equal(t, []string{"a/6", "a/7"}, r.There("a/"))
		require.Len(t, r.removed, len(qs))
	})
}

// Removals that are wanted at the same moment go together, whoever comes first.
func TestRemovals_AtTheSameMoment(t *testing.T) {
	onRow(t, func(t *testing.T, r *row) {
		qs := r.enterMany(6)
		var ls []*Leaving
		for i, q := range qs[:5] {
			ls = append(ls, r.leave(q, i == 4, qs[i+1]))
		}
		removal, err := r.Remove(t.Context(), ls[0])
		require.NoError(t, err)
		require.Equal(t, []bool{true}, removal.Removed)
		for _, l := range ls[1:] {
			again, err := r.Remove(t.Context(), l)
			require.NoError(t, err)
			require.Equal(t, removal.At, again.At)
		}
		r.requireTxns(1)
		require.Equal(t, []queue.Entry{qs[5]}, ls[4].result.There)
		require.Equal(t, []string{"a/5-6"}, r.There("a/"))
	})
}

// Whoever has an entry removed that another goroutine released, the other goroutine is told of it.
func TestRemovals_ByAnother(t *testing.T) {
	onRow(t, func(t *testing.T, r *row) {
		goOn := r.holdBack()
		first := r.RemoveLater(r.leave(r.enter("a/5"), false))
		synctest.Wait()
		l := r.leave(r.enter("a/5-1"), false)
		goOn() // the reply to the first has it sent
		<-first
		removal, err := r.Remove(t.Context(), l)
		require.NoError(t, err)
		require.Equal(t, []bool{true}, removal.Removed)
		r.requireTxns(2)
	})
}

// One request has a limited number of commands; an entry of many keys goes alone.
func TestRemovals_Many(t *testing.T) {
	onRow(t, func(t *testing.T, r *row) {
		qs := r.enterMany(3*64 + 1)
		goOn := r.holdBack()
		r.RemoveLater(r.leave(qs[0], true))
		synctest.Wait()
		for _, q := range qs[1:] {
			r.RemoveLater(r.leave(q, false))
		}
		goOn()
		r.requireTxns(4)
		require.Empty(t, r.There("a/"))
		require.Len(t, r.removed, len(qs))

		var keys []string
		for i := range 33 {
			keys = append(keys, fmt.Sprintf("a%d/5", i))
		}
		rev := r.WriteOn(5, "", keys...)
		l := r.Add("a", &Leaving{Keys: keys, Rev: rev})
		goOn = r.holdBack()
		r.enqueue("a/6")
		r.RemoveLater(l)
		synctest.Wait()
		r.requireTxns(2) // it goes with no other, so it waits for none: there may be one at each moment
		goOn()
		require.Equal(t, []string{"a/6"}, r.There("a"))
	})
}

// Removals that etcd refuses together, because it allows less for example, go one by one, and each goes on until it is done.
// Who waits is told why it takes longer.
func TestRemovals_Refused(t *testing.T) {
	onRow(t, func(t *testing.T, r *row) {
		qs := r.enterMany(3)
		var ls []*Leaving
		for _, q := range qs {
			ls = append(ls, r.leave(q, true))
		}
		r.answers = []error{rpctypes.ErrGRPCTooManyOps, rpctypes.ErrGRPCPermissionDenied, rpctypes.ErrGRPCPermissionDenied, rpctypes.ErrGRPCPermissionDenied}
		done := r.RemoveLater(ls[1])
		_, err := r.Remove(t.Context(), ls[0])
		require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
		_, err = r.Remove(t.Context(), ls[2])
		require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
		<-done
		<-time.After(etcd.RetryMax)
		synctest.Wait()
		require.Equal(t, 1, ls[0].Owner.(*owner).refused, "not of all together")
		r.requireTxns(1 + 3 + 3)
		require.Empty(t, r.There("a/"))
	})
	onRow(t, func(t *testing.T, r *row) { // another one does not wait for the next attempt
		l := r.leave(r.enter("a/5"), false)
		r.answers = []error{rpctypes.ErrGRPCPermissionDenied}
		_, err := r.Remove(t.Context(), l)
		require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
		synctest.Wait()
		began := time.Now()
		_, err = r.Remove(t.Context(), r.leave(r.enter("a/5-1"), false))
		require.NoError(t, err)
		require.Zero(t, time.Since(began))
		require.Equal(t, []string{"a/5"}, r.There("a/"))
		<-time.After(etcd.RetryMax)
		synctest.Wait()
		require.Empty(t, r.There("a/"))
	})
}

// A removal that etcd goes on refusing is sent again after pauses that grow. Only the first time it is sent at once, without
// what it looks for, which may be too much.
func TestRemovals_RefusedForLong(t *testing.T) {
	for _, unlock := range []bool{true, false} {
		for _, looks := range []bool{true, false} {
			onRow(t, func(t *testing.T, r *row) {
				qs := r.enterMany(2)
				next, times := []queue.Entry(nil), 1
				if looks {
					next, times = qs[1:], 2
				}
				for range 100 {
					r.answers = append(r.answers, rpctypes.ErrGRPCPermissionDenied)
				}
				l := r.leave(qs[0], true, next...)
				if unlock {
					_, err := r.Remove(t.Context(), l)
					require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
				} else {
					r.RemoveLater(l)
				}
				synctest.Wait()
				r.requireTxns(times)
				require.Equal(t, 1, r.ops)
				for pause := etcd.RetryMax; pause < refusedMax; pause *= 2 {
					<-time.After(pause - 1)
					synctest.Wait()
					r.requireTxns(0)
					<-time.After(1)
					synctest.Wait()
					r.requireTxns(1)
				}
				<-time.After(2 * refusedMax)
				synctest.Wait()
				r.requireTxns(2)
				require.Equal(t, 8, l.Owner.(*owner).refused)
				r.mu.Lock()
				r.answers = nil
				r.mu.Unlock()
				<-time.After(refusedMax)
				synctest.Wait()
				require.Equal(t, []string{"a/5-2"}, r.There("a/"))
				require.Equal(t, []string{"a/5-1"}, r.removed)
				require.Empty(t, l.result.Sought, "whoever waits reads what is there")

				r.answers = []error{rpctypes.ErrGRPCPermissionDenied, rpctypes.ErrGRPCPermissionDenied, rpctypes.ErrGRPCPermissionDenied}
				r.RemoveLater(r.leave(qs[1], true))
				r.close()
				synctest.Wait() // nothing goes round
				r.pending = 0
			})
		}
	}
}

// A removal is repeated that was not carried out. It finds its key, so nothing is in doubt.
func TestRemovals_Repeated(t *testing.T) {
	onRow(t, func(t *testing.T, r *row) {
		for _, keys := range [][]string{{"a/5"}, {"a/5", "a/r5"}} {
			r.answers = []error{errors.New("the connection is lost")}
			l := r.Add("a", &Leaving{Keys: keys, Rev: r.WriteOn(5, "", keys...), Now: true})
			got, err := r.Remove(t.Context(), l)
			require.NoError(t, err)
			require.True(t, got.Found(true))
			require.False(t, got.Ambiguous)
		}
	})
}

// The reply to a removal is lost, and etcd refuses to repeat it. Who finds the key gone at last is not told of a loss.
func TestRemovals_LostAndRefused(t *testing.T) {
	for _, unlock := range []bool{true, false} {
		onRow(t, func(t *testing.T, r *row) {
			txns, step := 0, r.Step
			r.Step = func(ctx context.Context, what string) error {
				switch what {
				case "Txn.":
					if txns++; txns == 1 {
						return errors.New("the reply is lost")
					}
				case "Txn":
					if txns == 1 {
						txns++
						return rpctypes.ErrGRPCPermissionDenied
					}
				}
				return step(ctx, what)
			}
			l := r.leave(r.enter("a/5"), true)
			if unlock {
				_, err := r.Remove(t.Context(), l)
				require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
				synctest.Wait()
			} else {
				r.RemoveLater(l)
			}
			<-time.After(time.Second)
			synctest.Wait()
			require.Equal(t, []bool{false}, l.result.Removed)
			require.True(t, l.result.Ambiguous)
		})
	}
}

// Whatever ends a wait, the removal goes on. It may have been carried out before, and is not said to be found missing.
func TestRemovals_WaitEnds(t *testing.T) {
	for _, alone := range []bool{true, false} {
		onRow(t, func(t *testing.T, r *row) {
			goOn := r.holdBack()
			l := r.leave(r.enter("a/5"), true)
			if !alone {
				r.RemoveLater(r.leave(r.enter("a/5-1"), true))
			}
			ctx, cancel := context.WithCancel(t.Context())
			result := make(chan error)
			go func() {
				_, err := r.Remove(ctx, l)
				result <- err
			}()
			synctest.Wait()
			cancel()
			require.ErrorIs(t, <-result, context.Canceled)
			goOn()
			require.Empty(t, r.There("a/"))
			require.False(t, r.Any())
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
		_, err := r.Remove(ctx, l)
		require.ErrorIs(t, err, context.Canceled)
		synctest.Wait()
		require.Equal(t, []bool{false}, l.result.Removed)
		require.True(t, l.result.Ambiguous)
	})
	onRow(t, func(t *testing.T, r *row) {
		goOn := r.holdBack()
		defer goOn()
		first, l := r.leave(r.enter("a/5"), false), r.leave(r.enter("a/5-1"), false)
		r.RemoveLater(first)
		result := make(chan error)
		go func() {
			_, err := r.Remove(t.Context(), l)
			result <- err
		}()
		synctest.Wait()
		r.life(errEnded)
		require.ErrorIs(t, <-result, errEnded)
	})
}

// A removal travels with the next enqueue of its name, which says what became of it.
func TestRemovals_WithAnEnqueue(t *testing.T) {
	onRow(t, func(t *testing.T, r *row) {
		qs := r.enterMany(3)
		a, b := r.leave(qs[0], true, qs[2]), r.leave(qs[1], true)
		r.enqueue("a/6")
		r.requireTxns(1)
		require.Equal(t, []string{"a/5-3", "a/6"}, r.There("a/"))
		require.Equal(t, Result{At: r.world.Do(), Removed: []bool{true}, Sought: qs[2:], There: qs[2:]}, a.result)
		<-r.RemoveLater(a)
		got, err := r.Remove(t.Context(), b)
		require.NoError(t, err)
		require.Equal(t, b.result, got)
		r.requireTxns(0)

		c := r.leave(qs[2], true)
		lost, step := false, r.Step
		r.Step = func(ctx context.Context, what string) error {
			if what == "Txn" && !lost {
				r.world.Server.Remove("a/5-3") // by that txn, whose reply is lost
				lost = true
				return errors.New("the reply is lost")
			}
			return step(ctx, what)
		}
		r.enqueue("a/7")
		<-r.RemoveLater(c)
		require.True(t, c.result.Ambiguous)
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
				_, err := r.Remove(t.Context(), l)
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

// While the client drains, the removals go through that were added before, also if etcd refuses to look for other entries with one.
// A later one goes when the client has drained. What etcd refuses is not waited for.
func TestDrain(t *testing.T) {
	for what, answer := range map[string]error{"answered": nil, "refused": rpctypes.ErrGRPCPermissionDenied, "too many": rpctypes.ErrGRPCTooManyOps} {
		synctest.Test(t, func(t *testing.T) {
			r := newRow(t)
			early, late := r.enter("a/5"), r.enter("b/5")
			var next []queue.Entry
			if what == "too many" {
				next = []queue.Entry{late}
			}
			l := r.leave(early, true, next...)
			var resume func()
			go func() { resume = r.etcd.Drain(time.Minute, r.Drain(), nil) }()
			synctest.Wait()
			r.RemoveLater(r.Add("b", &Leaving{Keys: []string{late.Key}, Rev: late.Rev, Now: true}))
			synctest.Wait()
			require.Equal(t, []string{"a/5", "b/5"}, r.There(""))
			if answer != nil {
				r.answers = []error{answer}
			}
			require.Nil(t, resume)
			r.RemoveLater(l)
			synctest.Wait()
			require.NotNil(t, resume, what)
			require.Equal(t, what == "refused", slices.Contains(r.There(""), "a/5"), what)
			require.Contains(t, r.There(""), "b/5")
			<-r.Drain()
			resume()
			<-time.After(time.Minute)
			require.Empty(t, r.There(""))
			require.Zero(t, r.open)
		})
	}
}

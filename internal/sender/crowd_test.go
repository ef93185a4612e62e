package sender

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/etcdlock/etcdlock/internal/etcd"
)

// countFlights has etcd take a millisecond for each request, and then refuse it as refuses says. most is how many were on their way
// together.
func (p *post) countFlights(refuses func(r *pb.TxnRequest) error) (most *int) {
	flying := 0
	most = new(int)
	p.set(func() {
		p.before = func(ctx context.Context, r *pb.TxnRequest) error {
			p.set(func() { flying++; *most = max(*most, flying) })
			defer p.set(func() { flying-- })
			if err := etcd.Sleep(ctx, time.Millisecond); err != nil {
				return err
			}
			return refuses(r)
		}
	})
	return most
}

// Thousands of goroutines want one name, and no request can have two of their entries; or etcd takes no two commands
// together. A bounded number of requests are on their way, and the next one leaves as soon as one is answered.
func TestSender_Crowd(t *testing.T) {
	for what, together := range map[string]bool{"one name": true, "by themselves": false} {
		t.Run(what, func(t *testing.T) {
			onPost(t, func(p *post) {
				if !together {
					p.Sender.limits.most = 1
				}
				const n = 4 * maxSeats
				most := p.countFlights(func(*pb.TxnRequest) error { return nil })
				began := time.Now()
				var all sync.WaitGroup
				for i := range n {
					key := fmt.Sprintf("n/%d", i)
					if !together {
						key = fmt.Sprintf("n%d/1", i)
					}
					all.Go(func() {
						r, ambiguous, err := p.Do(p.Context(), nil, put(key))
						assert.NoError(t, err)
						assert.True(t, r.Succeeded && !ambiguous)
					})
				}
				all.Wait()
				require.Equal(t, maxSeats, *most)
				require.Less(t, time.Since(began), 2*n/maxSeats*time.Millisecond) // of a clock that stands still while anything is computed
				require.Len(t, p.keys(), n)
			})
		})
	}
}

// While nothing is answered, a crowd waits. Who leaves it leaves nothing behind. The first request that can go has the first of
// the crowd, the locks of other names and the removals that came before it, within it and after it, however long it is.
func TestSender_CrowdWaits(t *testing.T) {
	onPost(t, func(p *post) {
		p.etcd.NeverHedge()
		goOn := p.holdBack()
		for i := range maxSeats {
			p.put(fmt.Sprintf("n/%d", i))
		}
		ctx, cancel := context.WithCancel(p.Context())
		p.send(ctx, "gone", put("n/gone"))
		p.put("n/waits")
		p.put("other/1")
		crowd, leave := context.WithCancel(p.Context())
		for i := range 1000 {
			p.send(crowd, "crowd", put(fmt.Sprintf("n/crowd%d", i)))
		}
		p.put("late/1")
		p.send(p.Context(), "-y/1", remove("y/1", 1))
		<-time.After(time.Second)
		synctest.Wait()
		require.Equal(t, maxSeats, len(p.requests()))
		cancel()
		synctest.Wait()
		require.ErrorIs(t, p.errs["gone"], context.Canceled)
		require.False(t, p.doubt["gone"])
		goOn()
		p.requireAll(false, "n/waits", "other/1", "late/1")
		require.Contains(t, p.requests(), "(-y/1) (n/waits) (other/1) (late/1)")
		require.NotContains(t, p.keys(), "n/gone")
		leave()
	})
}

// All seats are taken when the caller leaves whose enqueue has taken a removal along. The removal goes anew, and takes no seat
// beyond these.
func TestSender_CrowdLosesALeader(t *testing.T) {
	onPost(t, func(p *post) {
		p.enter("a/1")
		p.etcd.NeverHedge()
		goOn, flying, most := make(chan struct{}), 0, 0
		p.set(func() {
			p.before = func(ctx context.Context, _ *pb.TxnRequest) error {
				p.set(func() { flying++; most = max(most, flying) })
				defer p.set(func() { flying-- })
				select {
				case <-goOn:
				case <-ctx.Done():
				}
				return ctx.Err()
			}
		})
		p.put("a/0") // so that the next one of the name does not wait for company
		for i := range maxSeats - 2 {
			p.put(fmt.Sprintf("n/%d", i))
		}
		p.requests()
		gone := p.offer(true, "a/1")
		ctx, leave := context.WithCancel(p.Context())
		p.send(ctx, "a/2", put("a/2"))
		p.await(p.Context(), gone)
		p.put("n/waits")
		require.Equal(t, []string{"(-a/1) (a/2)"}, p.requests())
		require.Equal(t, maxSeats, flying)
		leave()
		synctest.Wait()
		require.ErrorIs(t, p.errs["a/2"], context.Canceled)
		require.Equal(t, maxSeats, flying)
		close(goOn)
		synctest.Wait()
		require.Equal(t, maxSeats, most)
		p.requireAll(false, "-a/1", "n/waits")
		require.Equal(t, []bool{false}, gone.told)
	})
}

// Etcd refuses each request that has several commands of a crowd. They go by themselves then, and no more of them at a time than
// of any other crowd.
func TestSender_CrowdIsTakenApart(t *testing.T) {
	onPost(t, func(p *post) {
		p.etcd.NeverHedge()
		const n = 4 * maxSeats
		goOn := p.holdBack()
		most := p.countFlights(func(r *pb.TxnRequest) error {
			if len(keysOf(r)) == 1 {
				return nil
			}
			return rpctypes.ErrGRPCPermissionDenied
		})
		var all sync.WaitGroup
		for i := range n {
			all.Go(func() {
				r, ambiguous, err := p.Do(p.Context(), nil, put(fmt.Sprintf("n%d/1", i)))
				assert.NoError(t, err)
				assert.True(t, r.Succeeded && !ambiguous)
			})
		}
		<-time.After(100 * time.Millisecond)
		goOn()
		all.Wait()
		require.LessOrEqual(t, *most, maxSeats)
		require.Len(t, p.keys(), n)
	})
}

// A looking ctx looks, when it is asked whether it has ended, whether its caller holds the Sender's mutex.
type looking struct {
	context.Context
	p     *post
	taken atomic.Bool
}

func (l *looking) Err() error {
	for range 100_000 { // others hold it for a moment
		if l.p.Sender.mu.TryLock() {
			l.p.Sender.mu.Unlock()
			return l.Context.Err()
		}
		runtime.Gosched()
	}
	l.taken.Store(true)
	return l.Context.Err()
}

// Callers whose ctxs end in an outage don't wait for each other: each asks for 20 ms why there is no connection.
func TestSender_CallersLeaveTogether(t *testing.T) {
	onPost(t, func(p *post) {
		goOn := p.holdBack()
		p.fill()
		ctx, leave := context.WithCancel(p.Context())
		waits, flies := &looking{Context: ctx, p: p}, &looking{Context: ctx, p: p}
		p.send(flies, "a/1", put("a/1"))
		p.send(flies, "b/1", put("b/1"))
		<-time.After(patienceNear)
		synctest.Wait()
		p.send(waits, "c/1", put("c/1"))
		leave()
		synctest.Wait()
		for _, label := range []string{"a/1", "b/1", "c/1"} {
			require.ErrorIs(t, p.errs[label], context.Canceled)
			require.Equal(t, label != "c/1", p.doubt[label])
		}
		require.False(t, waits.taken.Load() || flies.taken.Load())
		goOn()
	})
}

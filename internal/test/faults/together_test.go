package faults

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/test/harness"
)

// Locks of many names that share requests.

// packed is how many entries a request puts, if it carries more than one command.
func packed(req any) (puts int) {
	txn, ok := req.(*pb.TxnRequest)
	if !ok {
		return 0
	}
	for _, op := range txn.Success {
		if slices.ContainsFunc(op.GetRequestTxn().GetSuccess(), func(op *pb.RequestOp) bool { return op.GetRequestPut() != nil }) {
			puts++
		}
	}
	return puts
}

// together has n goroutines call lock at once, while the first requests are held back, so that most of them share one. lose
// says of a request that was carried out whether its reply is lost. It returns how many requests were shared.
func together(t *testing.T, w *harness.Wire, n int, lose func(req any) bool, lock func(i int)) (shared int) {
	t.Helper()
	var before, several, begun atomic.Int32
	hold := make(chan struct{})
	w.OnUnary(func(ctx context.Context, method string, req any, send func(context.Context) error) error {
		if method == "Txn" && before.Add(1) <= 3 {
			<-hold
		}
		if packed(req) > 1 {
			several.Add(1)
		}
		if err := send(ctx); err != nil || !lose(req) {
			return err
		}
		return harness.ErrLostReply
	})
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { begun.Add(1); lock(i) })
	}
	// Where etcd is busy, the session has only one request on its way.
	require.Eventually(t, func() bool { return before.Load() >= 1 && int(begun.Load()) == n }, harness.Hang, harness.Tick)
	for i := 0; several.Load() == 0 && i < 200; i++ { // what did not come with the first ones shares a request after some ms
		harness.Elapse(harness.Tick)
	}
	close(hold)
	all.Wait()
	w.OnUnary(nil)
	return int(several.Load())
}

func none(any) bool { return false }

// Etcd allows fewer operations than many names need together. Each lock is had, and released.
func TestFault_J9_ManyNamesAndFewOperations(t *testing.T) {
	t.Parallel()
	for _, ops := range []uint{8, 16} {
		t.Run(fmt.Sprintf("max-txn-ops=%d", ops), func(t *testing.T) {
			own := etcdtest.Start(t, etcdtest.WithConfig(func(c *embed.Config) { c.MaxTxnOps = ops }))
			c, w := harness.WiredClient(t, own)
			s := newSession(t, c)
			name := harness.LockName(t)
			tokens := make([]int64, 3*60)
			for round := range 3 {
				together(t, w, 60, none, func(i int) {
					h, err := etcdlock.NewRWMutex(s, fmt.Sprintf("%s-%d", name, i)).Lock(harness.Ctx(t))
					if assert.NoError(t, err) {
						tokens[60*round+i] = h.Token()
						assert.NoError(t, h.Unlock(harness.Ctx(t)))
					}
				})
			}
			harness.RequireReleased(t, own.Client(t), name, tokens...)
		})
	}
}

// A name without rights among many costs the others nothing but the time to send them again, once.
func TestFault_J9_ManyNamesAndOneForbidden(t *testing.T) {
	t.Parallel()
	_, as := harness.StartWithAuth(t)
	w := harness.NewWire()
	c := as("worker", etcdtest.WithClientConfig(func(c *clientv3.Config) { c.DialOptions = w.DialOptions() }))
	// Etcd before 3.6.9 does not check the rights to nested operations.
	_, nested := c.Txn(harness.Ctx(t)).Then(clientv3.OpTxn(nil, []clientv3.Op{clientv3.OpPut("forbidden", "")}, nil)).Commit()
	s := newSession(t, c)
	for _, again := range []bool{false, true} {
		shared := together(t, w, 40, none, func(i int) {
			name := fmt.Sprintf("a/%d", i)
			if i%20 == 7 {
				name = fmt.Sprintf("forbidden/%d", i)
			}
			h, err := etcdlock.NewMutex(s, name).Lock(harness.Ctx(t))
			switch {
			case i%20 != 7:
				if assert.NoError(t, err) {
					assert.NoError(t, h.Unlock(harness.Ctx(t)))
				}
			case err == nil && nested == nil:
				h.Release()
			default:
				assert.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
			}
		})
		require.True(t, shared > 0 || again)
	}
	require.NoError(t, s.Err())
}

// The reply to a request is lost that carries many entries. Each of them has its lock, once, and leaves nothing.
func TestFault_A1_ReplyForManyNamesIsLost(t *testing.T) {
	c, w := harness.WiredClient(t, cluster)
	s := newSession(t, c)
	name := harness.LockName(t)
	var lost atomic.Bool
	together(t, w, 40, func(req any) bool { return packed(req) > 1 && lost.CompareAndSwap(false, true) }, func(i int) {
		name := fmt.Sprintf("%s-%d", name, i)
		h, err := etcdlock.NewMutex(s, name).Lock(harness.Ctx(t))
		if !assert.NoError(t, err) {
			return
		}
		assert.NoError(t, h.Check(harness.Ctx(t)))
		resp, err := h.Txn(harness.Ctx(t)).Then(clientv3.OpPut(name+"-value", "1")).Commit()
		assert.NoError(t, err)
		assert.True(t, err != nil || resp.Succeeded)
		assert.NoError(t, h.Unlock(harness.Ctx(t)))
	})
	require.True(t, lost.Load())
	for i := range 40 {
		requireFree(t, fmt.Sprintf("%s-%d", name, i))
	}
}

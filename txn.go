// Transactions that etcd carries out only while the lock is held.

package etcdlock

import (
	"context"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/settle"
)

// Txn is a transaction that does nothing unless the lock is held when etcd carries it out. Build it and Commit it
// like the client's own, and read its response likewise. Commit returns ErrLost when the hold was gone, apart from a
// response that says that the caller's own comparison failed, and ErrNotHeld after Unlock.
//
// It costs one request. Commit repeats what etcd has certainly not carried out, until ctx or the hold ends. What
// leaves it open, a lost reply or a ctx or hold that ends before the answer, is not repeated, since the caller's
// operations need not be safe to repeat: such an error is [ErrOutcomeUnknown], besides ErrLost or ctx's error. After
// every other error nothing was carried out, but for one case: clientv3 by itself repeats a transaction that etcd, or
// a proxy, has answered with Canceled or DeadlineExceeded.
func (h *Held) Txn(ctx context.Context) clientv3.Txn {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.fenced = true
	return &guardedTxn{h: h, ctx: ctx}
}

type guardedTxn struct {
	h         *Held
	ctx       context.Context
	cmps      []clientv3.Cmp
	then      []clientv3.Op
	otherwise []clientv3.Op
}

func (t *guardedTxn) If(cs ...clientv3.Cmp) clientv3.Txn {
	t.cmps = append(t.cmps, cs...)
	return t
}

func (t *guardedTxn) Then(ops ...clientv3.Op) clientv3.Txn {
	t.then = append(t.then, ops...)
	return t
}

func (t *guardedTxn) Else(ops ...clientv3.Op) clientv3.Txn {
	t.otherwise = append(t.otherwise, ops...)
	return t
}

func (t *guardedTxn) Commit() (*clientv3.TxnResponse, error) {
	resp, err := t.commit()
	return resp, t.h.wrap("transaction under", err)
}

func (t *guardedTxn) commit() (*clientv3.TxnResponse, error) {
	h := t.h
	var last error // which ends it, whatever error it is
	life, over := h.untilOver()
	defer over()
	ctx, stop := etcd.Bind(t.ctx, life)
	defer stop()
	resp, _, err := etcd.Do(t.ctx, h.s.etcd, etcd.Policy{Life: life}, func(context.Context) (resp *clientv3.TxnResponse, err error) {
		for {
			if last = h.Err(); last != nil {
				return nil, nil
			}
			keys := h.Keys()
			var held []clientv3.Cmp
			for _, key := range keys {
				held = append(held, settle.CreatedAt(key, h.rev))
			}
			// Not under an attempt's time limit, which would only leave its outcome open.
			resp, err = h.s.etcd.Txn(ctx, func(txn clientv3.Txn) clientv3.Txn {
				return txn.If(held...).Then(clientv3.OpTxn(t.cmps, t.then, t.otherwise))
			})
			switch {
			case err == nil && !resp.Succeeded:
				if last = h.markLost(keys[0], resp.Header.Revision); last == nil {
					continue // it was downgraded meanwhile, and nothing was carried out
				}
			case err != nil && !etcd.NotCarriedOut(err):
				last = fmt.Errorf("%w: %w", ErrOutcomeUnknown, h.preferLoss(etcd.Explain(err)))
				return nil, nil
			}
			return resp, err
		}
	})
	switch {
	case err != nil:
		return nil, h.preferLoss(h.s.lease.Translate(err)) // it was not carried out
	case last != nil:
		return nil, last
	}
	inner := resp.Responses[0].GetResponseTxn()
	return &clientv3.TxnResponse{Header: resp.Header, Succeeded: inner.Succeeded, Responses: inner.Responses}, nil
}

package etcdlock

import (
	"context"
	"errors"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Txn is a transaction that does nothing unless the lock is held when etcd
// carries it out. Build it and Commit it like the client's own, and read its
// response likewise; Commit returns ErrLost when the hold was gone, apart
// from a response that says that the caller's own comparison failed, and
// ErrNotHeld after Unlock.
//
// It costs one request. Commit repeats what etcd has certainly not carried out,
// until ctx or the hold ends; an error that leaves it open, such as a lost reply,
// is returned, since the caller's operations need not be safe to repeat.
func (h *Held) Txn(ctx context.Context) clientv3.Txn { return &guardedTxn{h: h, ctx: ctx} }

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
	return resp, wrap("transaction under", t.h.name, err)
}

func (t *guardedTxn) commit() (*clientv3.TxnResponse, error) {
	h := t.h
	var resp *clientv3.TxnResponse
	var last error // which ends it, whatever error it is
	err := h.s.retry(t.ctx, func(context.Context) (err error) {
		for {
			if last = h.Err(); last != nil {
				return nil
			}
			key := h.Key()
			// Not under an attempt's time limit, which would only leave its
			// outcome open.
			resp, err = h.s.client.Txn(t.ctx).If(createdAt(key, h.rev)).Then(clientv3.OpTxn(t.cmps, t.then, t.otherwise)).Commit()
			switch {
			case err == nil && !resp.Succeeded:
				if last = h.markLost(key); last == nil {
					continue // it was downgraded meanwhile, and nothing was carried out
				}
			case err != nil && !refused(err) && !dropped(err):
				last = err // nobody knows whether it was carried out
				return nil
			}
			return err
		}
	})
	switch {
	case err != nil:
		return nil, h.errOr(err) // it was not carried out
	case last != nil:
		return nil, last
	}
	inner := resp.Responses[0].GetResponseTxn()
	return &clientv3.TxnResponse{Header: resp.Header, Succeeded: inner.Succeeded, Responses: inner.Responses}, nil
}

// dropped reports whether etcd says that it has not even proposed the request.
func dropped(err error) bool {
	return errors.Is(err, rpctypes.ErrNoLeader) || errors.Is(err, rpctypes.ErrTooManyRequests) ||
		strings.Contains(err.Error(), "raft proposal dropped") // which has no type of its own
}

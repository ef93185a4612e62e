// Transactions that etcd carries out only while the lock is held.

package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"unicode/utf8"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/removal"
	"github.com/etcdlock/etcdlock/internal/settle"
)

// Txn is a transaction that does nothing unless the lock is held when etcd carries it out. Build it and Commit it
// like the client's own, and read its response likewise. Commit returns ErrLost when the hold was gone, and ErrNotHeld after
// Unlock: a response that has not succeeded says that the caller's own comparison failed.
//
// It costs one request. Commit repeats what etcd has certainly not carried out, until ctx or the hold ends. If a reply is lost,
// etcd is full, or ctx or the hold ends before the answer, the outcome is open, and Commit repeats nothing: the caller's
// operations need not be safe to repeat. Such an error is [ErrOutcomeUnknown], and also etcd's, ErrLost, ErrNotHeld or ctx's.
// After any other error nothing was carried out. There is one exception: if etcd or a proxy answers Canceled or
// DeadlineExceeded, clientv3 itself repeats the transaction, and it may be carried out twice.
//
// Give Txn a ctx with a deadline. On a member that hangs, Commit waits for as long as ctx and the hold live, or until the keepalive
// of the client's connection ends it: see clientv3.Config.DialKeepAliveTime. After 5 s a log line says so, once a minute for all.
func (h *Held) Txn(ctx context.Context) clientv3.Txn {
	h.useFence()
	return etcd.Build(func(t *etcd.Txn) (*clientv3.TxnResponse, error) {
		resp, err := h.commitIfHeld(ctx, t.Op())
		h.s.lease.Outages.Refused(txnOp, err, h.wrap)
		return resp, h.wrap(txnOp, err)
	})
}

func (h *Held) useFence() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.fenced = true
}

func (h *Held) commitIfHeld(callers context.Context, op clientv3.Op) (*clientv3.TxnResponse, error) {
	var last error // which ends it, whatever error it is
	life, over := h.untilOver()
	defer over()
	ctx, stop := etcd.Bind(callers, life)
	defer stop()
	defer h.s.lease.Outages.Late(h.label(), h.rev)()
	resp, _, err := etcd.Do(callers, h.s.etcd, etcd.Policy{Life: life}, func(context.Context) (resp *clientv3.TxnResponse, err error) {
		for {
			if last = h.Err(); last != nil {
				return nil, nil
			}
			if err = h.s.etcd.AwaitConnection(ctx); err != nil {
				return nil, err // nothing was sent
			}
			keys := h.Keys()
			var held []clientv3.Cmp
			for _, key := range keys {
				held = append(held, removal.CreatedAt(key, h.rev))
			}
			// Not under an attempt's time limit, which would only leave its outcome open.
			resp, err = h.s.etcd.Txn(ctx, func(txn clientv3.Txn) clientv3.Txn { return txn.If(held...).Then(op) })
			switch {
			case err == nil && !resp.Succeeded:
				if last = h.markLost(keys[0]); last == nil {
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

// SetValue publishes a value with the hold's entry, in the place of the one before: see [WithValue]. The value is text, and the
// empty text publishes nothing. SetValue costs a read and a transaction that does nothing unless the lock is held, both repeated
// until etcd has confirmed, or ctx or the hold ends. After an error of ctx, or ErrOutcomeUnknown, the value may be either. Of two
// calls at once, the call that etcd carries out last counts. The fence of the hold is in use then, as after Txn.
func (h *Held) SetValue(ctx context.Context, value string) error {
	return h.wrap("set the value of", h.setValue(ctx, value))
}

func (h *Held) setValue(ctx context.Context, value string) error {
	if !utf8.ValidString(value) {
		return errNotText
	}
	h.useFence()
	life, stop := h.untilOver()
	defer stop()
	either, end := etcd.Bind(ctx, life)
	defer end()
	var pause etcd.Backoff
	for sent := false; ; sent = true {
		h.mu.Lock()
		keys := slices.Clone(h.allKeys()) // which are the part's own, and a Downgrade changes them
		h.mu.Unlock()
		kvs, err := h.s.etcd.ReadValues(ctx, life, keys...)
		if err != nil {
			return h.preferLoss(h.s.lease.Translate(err))
		}
		// No key has the same revision twice, so an attempt that comes late changes no newer value. A key that is not
		// there is for the transaction to tell of, or Downgrade has removed it.
		publish, same := settle.Publish(kvs, value)
		if sent && same {
			return nil
		}
		resp, err := h.commitIfHeld(ctx, publish)
		switch {
		case errors.Is(err, ErrOutcomeUnknown) && !etcd.Lasts(err):
			_ = pause.Wait(either) // the next reading tells if one of them has ended
		case err != nil || resp.Succeeded:
			return err
		}
	}
}

// The requests of the user of a lease, and their errors in its words.

package lease

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
)

// Put calls send and translates its error. send sends a request that writes entries; put is one of its operations. send blocks
// until etcd has answered, or ctx or l.Ctx ends. A repetition of the request finds the entries that were written.
func (l *Lease) Put(ctx context.Context, put clientv3.Op, send func() (ambiguous bool, err error)) (ambiguous bool, err error) {
	before, key := l.Outages.All.Alarm(), ""
	ambiguous, err = send()
	if etcd.ReplyTooLarge(err) { // the reply to a repetition is short
		_, err = send()
	}
	if etcd.RefusesAll(err) {
		key = string(put.KeyBytes())
		switch {
		case !errors.Is(err, rpctypes.ErrNoSpace):
		case before == nil:
			ambiguous = ambiguous || l.written(ctx, put)
		case l.checks != nil: // the alarm may have been lifted meanwhile, and etcd be full again by this request: a check is enough
			l.checks.doubt()
		}
	}
	if errors.Is(err, rpctypes.ErrLeaseNotFound) { // an error shows no revision: see etcd.Client.hintsOfLease
		l.Confirm(ctx)
	}
	l.Outages.Answered(before, key, err)
	passed, err := l.refusedInstead(ctx, err)
	if passed {
		again, err := l.Put(ctx, put, send)
		return ambiguous || again, err
	}
	return ambiguous, l.Translate(err)
}

// written reports whether etcd has, or may have, carried out put. Etcd answers the request by which it becomes full with a
// refusal, although it has carried the request out. Nobody else's entry has that value.
func (l *Lease) written(ctx context.Context, put clientv3.Op) bool {
	got, _, err := l.Client.ReadAt(ctx, l.Ctx, 0, etcd.ReadValue(string(put.KeyBytes())))
	return err != nil || len(got[0].Kvs) > 0 && bytes.Equal(got[0].Kvs[0].Value, put.ValueBytes())
}

// Read reads the state at rev, or with 0 the present: see etcd.Client.ReadAt. It ends with ctx and with life.
func (l *Lease) Read(ctx, life context.Context, rev int64, reads ...etcd.Read) (got []*pb.RangeResponse, at int64, err error) {
	got, at, err = l.Client.ReadAt(ctx, life, rev, reads...)
	return got, at, l.Translate(err)
}

// Translate is the error of a request in the words of callers. If the client was closed, Translate ends the use of the lease.
func (l *Lease) Translate(err error) error {
	if errors.Is(err, etcd.ErrClientClosed) {
		l.End(l.Expired, "client closed")
		return fmt.Errorf("%w: %w", l.Expired, err)
	}
	return err
}

// WaitError is the error of a wait whose ctx has ended. If ctx ended because l.Ctx did, that is the cause of l.Ctx.
func (l *Lease) WaitError(ctx context.Context) error {
	if cause := l.Err(); cause != nil && errors.Is(context.Cause(ctx), cause) {
		return cause
	}
	return l.Client.CtxError(ctx, l.Outages.All.Why())
}

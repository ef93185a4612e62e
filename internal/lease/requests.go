// The requests of the user of a lease, and their errors in its words.

package lease

import (
	"context"
	"errors"
	"fmt"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
)

// Txn sends a transaction until etcd has answered, or ctx or l.Ctx ends. It must be safe to repeat, and to run beside
// itself.
func (l *Lease) Txn(ctx context.Context, build func(clientv3.Txn) clientv3.Txn) (resp *clientv3.TxnResponse, ambiguous bool, err error) {
	resp, ambiguous, err = etcd.Do(ctx, l.Client, etcd.Policy{Life: l.Ctx, Hedge: true}, func(ctx context.Context) (*clientv3.TxnResponse, error) {
		return l.Client.Txn(ctx, build)
	})
	return resp, ambiguous, l.Translate(l.refusedInstead(ctx, err))
}

// Read reads the state at rev, or with 0 the present: see etcd.Client.ReadAt. It ends with ctx and with life.
func (l *Lease) Read(ctx, life context.Context, rev int64, reads ...etcd.Read) (got []*pb.RangeResponse, at int64, err error) {
	got, at, err = l.Client.ReadAt(ctx, life, rev, reads...)
	return got, at, l.Translate(err)
}

// Translate is the error of a request in the words of callers. That the client was closed ends the use of the lease.
func (l *Lease) Translate(err error) error {
	if errors.Is(err, etcd.ErrClientClosed) {
		l.End(l.Expired, "client closed")
		return fmt.Errorf("%w: %w", l.Expired, err)
	}
	return err
}

// WaitError is the error of a wait whose ctx, one that ends with l.Ctx, has ended. The end of l.Ctx comes first.
func (l *Lease) WaitError(ctx context.Context) error {
	if cause := l.Err(); cause != nil && errors.Is(context.Cause(ctx), cause) {
		return cause
	}
	return l.Client.CtxError(ctx, l.Outages.All.Why())
}

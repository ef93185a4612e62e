// The requests of a session, and their errors in the words of callers.

package etcdlock

import (
	"context"
	"errors"
	"fmt"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
)

// txn sends a transaction of the session until etcd has answered, or ctx or life ends. It must be
// safe to repeat, and to run beside itself.
func (s *Session) txn(ctx, life context.Context, build func(clientv3.Txn) clientv3.Txn) (resp *clientv3.TxnResponse, ambiguous bool, err error) {
	resp, ambiguous, err = etcd.Do(ctx, s.etcd, etcd.Policy{Life: life, Hedge: true}, func(ctx context.Context) (*clientv3.TxnResponse, error) {
		return build(s.etcd.Txn(ctx)).Commit()
	})
	return resp, ambiguous, s.translate(err)
}

// read reads the state at rev, or with 0 the present: see etcd.Client.ReadAt. It ends with ctx and
// with life.
func (s *Session) read(ctx, life context.Context, rev int64, reads ...etcd.Read) (got []*pb.RangeResponse, at int64, err error) {
	got, at, err = s.etcd.ReadAt(ctx, life, rev, reads...)
	return got, at, s.translate(err)
}

// translate is the error of a request of the session, in the words of callers. That the client
// was closed ends the session.
func (s *Session) translate(err error) error {
	if errors.Is(err, etcd.ErrClientClosed) {
		s.terminate(ErrSessionExpired, "client closed")
		return fmt.Errorf("%w: %w", ErrSessionExpired, err)
	}
	return err
}

// waitError is the error of a wait whose ctx, one that ends with the session, has ended. The
// session's end comes first.
func (s *Session) waitError(ctx context.Context) error {
	if cause := s.Err(); cause != nil && errors.Is(context.Cause(ctx), cause) {
		return cause
	}
	return s.etcd.CtxError(ctx, s.outages.Why())
}

// Which key of a session its client may not write any more.

package settle

import (
	"context"
	"errors"
	"math"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
)

// InTheWay is a key of an entry that the client has no right to write, "" if none is found until ctx ends. It writes
// nothing: etcd checks the rights on all operations of a txn, also on those that it does not carry out. There is one search at a
// time, and its answer goes to all who have asked before it began: each of a thousand locks may ask when the lease is refused.
func (k *Keys) InTheWay(ctx context.Context) (key string) {
	asked := time.Now()
	select {
	case k.rights.turn <- struct{}{}:
		defer func() { <-k.rights.turn }()
	case <-ctx.Done():
		return ""
	}
	if k.rights.began.After(asked) {
		return k.rights.key
	}
	began := time.Now()
	if key = k.inTheWay(ctx); ctx.Err() == nil {
		k.rights.began, k.rights.key = began, key
	}
	return key
}

// rights is what the last search for a key without rights has found. Who has the turn guards it.
type rights struct {
	turn  chan struct{}
	began time.Time
	key   string
}

func (k *Keys) inTheWay(ctx context.Context) (key string) {
	k.mu.Lock()
	keys := k.inUse.Some(func(key string) bool {
		_, entering := k.entering[key]
		return !entering && k.usesLocked(key)
	})
	k.mu.Unlock()
	// etcd may also refuse many keys for their number.
	_ = Apart(keys, math.MaxInt, func(some []string) error {
		if key != "" {
			return nil
		}
		err := k.writable(ctx, some)
		if len(some) == 1 && errors.Is(err, rpctypes.ErrPermissionDenied) {
			key = some[0]
		}
		return err
	})
	return key
}

// writable has etcd say whether the client has the rights to write these keys.
func (k *Keys) writable(ctx context.Context, keys []string) error {
	ops := make([]clientv3.Op, 0, len(keys))
	for _, key := range keys {
		ops = append(ops, clientv3.OpPut(key, ""))
	}
	_, _, err := etcd.Do(ctx, k.etcd, etcd.Policy{Life: k.life}, func(ctx context.Context) (*clientv3.TxnResponse, error) {
		return k.etcd.Txn(ctx, func(t clientv3.Txn) clientv3.Txn {
			return t.If(clientv3.Compare(clientv3.Version(keys[0]), "<", 0)).Then(ops...) // never
		})
	})
	return err
}

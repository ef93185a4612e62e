package soak

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/test/history"
)

// The control: a history that is known to be wrong, made with real locks on a real
// etcd, so that the judge is known to judge. A holder's write is stuck in the
// network until the lock is another's, and arrives then. Where it is not
// guarded it destroys what the next holder has written, whoever's lock it was,
// etcd's own or this package's. Under Held.Txn it does nothing.
func TestControl_StuckWrite(t *testing.T) {
	t.Parallel()
	for how, lock := range map[string]func(context.Context, *testing.T, *clientv3.Client, int) (writes, error){
		"concurrency.Mutex":             incumbent,
		"Mutex, and a write by itself":  unguarded,
		"Mutex, and a write by its Txn": guarded,
	} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(context.Background(), hang)
			t.Cleanup(cancel)
			cluster := etcdtest.Start(t)
			proxy := cluster.Proxy(t)
			clients := []*clientv3.Client{cluster.Client(t, proxy), cluster.Client(t)}
			set, record := setKey(locked, 0), &history.Record{}
			// add does what a worker does who has found the set empty.
			add := func(worker int, write writes) error {
				op := history.SetOp{Worker: worker, Set: set, Add: true, Element: worker, Call: time.Now()}
				value, err := json.Marshal(history.SetValue{Elements: history.Set(0).With(worker)})
				require.NoError(t, err)
				err = write(ctx, clientv3.OpPut(set, string(value)))
				op.Return, op.Unknown = time.Now(), err != nil
				record.Op(op)
				return err
			}

			write0, err := lock(ctx, t, clients[0], 5)
			require.NoError(t, err)
			proxy.Hold(etcdtest.ToServer)
			stuck := make(chan error, 1)
			go func() { stuck <- add(0, write0) }()
			write1, err := lock(ctx, t, clients[1], 60) // when the other lease has expired
			require.NoError(t, err)
			require.NoError(t, add(1, write1))
			proxy.Release(etcdtest.ToServer)
			err = <-stuck

			call := time.Now()
			resp, rerr := clients[1].Get(ctx, set)
			require.NoError(t, rerr)
			left := elementsOf(t, resp.Kvs).Elements
			record.Op(history.SetOp{Worker: 2, Set: set, Call: call, Return: time.Now(), Elements: left})
			v := record.Judge(history.NewLog(history.LockPrefix))
			if how == "Mutex, and a write by its Txn" {
				require.ErrorIs(t, err, etcdlock.ErrLost)
				require.Empty(t, v.Problems)
				return
			}
			require.NoError(t, err)
			require.Len(t, v.Problems, 1)
			require.Contains(t, v.Problems[0], "not linearizable")
			t.Logf("seen: what the next holder wrote is gone: %v is left", left)
		})
	}
}

// locked is the lock that the control uses.
const locked = history.LockPrefix + "x"

// writes is a way to write under a lock.
type writes func(ctx context.Context, put clientv3.Op) error

func incumbent(ctx context.Context, _ *testing.T, c *clientv3.Client, ttl int) (writes, error) {
	s, err := concurrency.NewSession(c, concurrency.WithTTL(ttl))
	if err != nil {
		return nil, err
	}
	return plainly(c), concurrency.NewMutex(s, locked).Lock(ctx)
}

func unguarded(ctx context.Context, t *testing.T, c *clientv3.Client, ttl int) (writes, error) {
	_, err := guarded(ctx, t, c, ttl)
	return plainly(c), err
}

func plainly(c *clientv3.Client) writes {
	return func(ctx context.Context, put clientv3.Op) error {
		_, err := c.Do(ctx, put)
		return err
	}
}

func guarded(ctx context.Context, t *testing.T, c *clientv3.Client, ttl int) (writes, error) {
	s, err := etcdlock.NewSession(ctx, c, etcdlock.WithTTL(time.Duration(ttl)*time.Second))
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = s.Close() })
	h, err := etcdlock.NewMutex(s, locked).Lock(ctx)
	return func(ctx context.Context, put clientv3.Op) error {
		_, err := h.Txn(ctx).Then(put).Commit()
		return err
	}, err
}

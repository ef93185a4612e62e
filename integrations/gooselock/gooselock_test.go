package gooselock

import (
	"context"
	"os"
	"testing"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/integrations/internal/locktest"
	"github.com/etcdlock/etcdlock/internal/test/harness"
)

var cluster *etcdtest.Cluster

func TestMain(m *testing.M) { os.Exit(harness.Main(&cluster, m.Run)) }

func TestLocker(t *testing.T) {
	locktest.Behaves(t, cluster, context.Canceled, func(locks *etcdlock.Client, name string) locktest.Lock {
		l := New(locks, name)
		return locktest.Lock{
			Lock:   func(ctx context.Context) error { return l.Lock(ctx, nil) },
			Unlock: func(ctx context.Context) error { return l.Unlock(ctx, nil) },
		}
	})
}

func TestLocker_Session(t *testing.T) {
	locktest.Behaves(t, cluster, context.Canceled, func(locks *etcdlock.Client, name string) locktest.Lock {
		l := New(locks, name)
		return locktest.Lock{
			Lock:   func(ctx context.Context) error { return l.SessionLock(ctx, nil) },
			Unlock: func(ctx context.Context) error { return l.SessionUnlock(ctx, nil) },
		}
	})
}

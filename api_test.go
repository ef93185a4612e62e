package etcdlock_test

import (
	"context"
	"iter"
	"log/slog"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
)

// The names and signatures that other code compiles against. They may grow, and
// never change.
type (
	lockFunc    = func(context.Context) (*etcdlock.Held, error)
	enqueueFunc = func(context.Context) (*etcdlock.Ticket, error)
	doFunc      = func(context.Context, func(ctx context.Context, h *etcdlock.Held) error) error
)

var (
	_ func(context.Context, *clientv3.Client, ...etcdlock.SessionOption) (*etcdlock.Session, error) = etcdlock.NewSession
	_ func(time.Duration) etcdlock.SessionOption                                                    = etcdlock.WithTTL
	_ func(string) etcdlock.SessionOption                                                           = etcdlock.WithOwner
	_ func(clientv3.LeaseID) etcdlock.SessionOption                                                 = etcdlock.WithLease
	_ func(*slog.Logger) etcdlock.SessionOption                                                     = etcdlock.WithLogger
	_ interface {
		Client() *clientv3.Client
		Lease() clientv3.LeaseID
		TTL() time.Duration
		Context() context.Context
		Done() <-chan struct{}
		Err() error
		Deadline() time.Time
		Refresh(ctx context.Context) error
		Orphan()
		Close(ctx context.Context) error
	} = (*etcdlock.Session)(nil)
	// A SessionSource where there was a *Session once: every call that compiled
	// then does now.
	_ func(etcdlock.SessionSource, string) *etcdlock.Mutex   = etcdlock.NewMutex
	_ func(etcdlock.SessionSource, string) *etcdlock.RWMutex = etcdlock.NewRWMutex
	_                                                        = []etcdlock.SessionSource{(*etcdlock.Session)(nil), (*etcdlock.Pool)(nil)}
	_                                                        = []lockFunc{(&etcdlock.Mutex{}).Lock, (&etcdlock.Mutex{}).TryLock, (&etcdlock.RWMutex{}).Lock, (&etcdlock.RWMutex{}).TryLock, (&etcdlock.RWMutex{}).RLock, (&etcdlock.RWMutex{}).TryRLock}
	_                                                        = []enqueueFunc{(&etcdlock.Mutex{}).Enqueue, (&etcdlock.RWMutex{}).Enqueue, (&etcdlock.RWMutex{}).REnqueue}
	_                                                        = []doFunc{(&etcdlock.Mutex{}).Do, (&etcdlock.RWMutex{}).Do, (&etcdlock.RWMutex{}).RDo}
	_ interface {
		Done() <-chan struct{}
		Wait(ctx context.Context) (*etcdlock.Held, error)
		Ahead(ctx context.Context) (int, error)
		Cancel(ctx context.Context) error
	} = (*etcdlock.Ticket)(nil)
	_ interface {
		Context() context.Context
		Done() <-chan struct{}
		Err() error
		Valid() bool
		Deadline() time.Time
		Check(ctx context.Context) error
		Token() int64
		Key() string
		IsOwner() clientv3.Cmp
		Txn(ctx context.Context) clientv3.Txn
		Downgrade(ctx context.Context) error
		Unlock(ctx context.Context) error
	} = (*etcdlock.Held)(nil)
	_ func(*clientv3.Client, ...etcdlock.SessionOption) *etcdlock.Pool = etcdlock.NewPool
	_ interface {
		Close(ctx context.Context) error
	} = (*etcdlock.Pool)(nil)
	_ func(*clientv3.Client, string, ...etcdlock.ElectorOption) *etcdlock.Elector = etcdlock.NewElector
	_ func(time.Duration, func(*etcdlock.Held)) etcdlock.ElectorOption            = etcdlock.WithOverrun
	_ etcdlock.ElectorOption                                                      = etcdlock.SessionOption(nil)
	_ interface {
		Run(ctx context.Context, lead func(ctx context.Context, term *etcdlock.Held) error) error
		Leader(ctx context.Context) (etcdlock.Entry, error)
		Observe(ctx context.Context) iter.Seq2[etcdlock.Entry, error]
		IsLeader() bool
		Check(grace time.Duration) error
	} = (*etcdlock.Elector)(nil)
	_ func(context.Context, *clientv3.Client, string) (etcdlock.Queue, error)          = etcdlock.Inspect
	_ func(context.Context, *clientv3.Client, string) iter.Seq2[etcdlock.Queue, error] = etcdlock.Watch
	_ func(context.Context, *clientv3.Client, string) iter.Seq2[string, error]         = etcdlock.Names
	_ func(context.Context, *clientv3.Client, etcdlock.Entry) error                    = etcdlock.Break
	_ interface {
		Holders() []etcdlock.Entry
		Waiters() []etcdlock.Entry
	} = etcdlock.Queue{}
	_ = []error{etcdlock.ErrLocked, etcdlock.ErrSessionExpired, etcdlock.ErrSessionClosed, etcdlock.ErrLost, etcdlock.ErrNotHeld, etcdlock.ErrNotFound, etcdlock.ErrNoLeader, etcdlock.ErrWouldDeadlock, etcdlock.ErrInvalidName}
)

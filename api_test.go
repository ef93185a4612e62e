package etcdlock_test

import (
	"context"
	"io"
	"iter"
	"log/slog"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
)

// The names and signatures that other code compiles against. New ones may be added, but none
// may change.
type (
	lockFunc    = func(context.Context) (*etcdlock.Held, error)
	enqueueFunc = func(context.Context) (*etcdlock.Ticket, error)
	doFunc      = func(context.Context, func(ctx context.Context, h *etcdlock.Held) error) error
)

var (
	_ func(context.Context, *clientv3.Client, ...etcdlock.Option) (*etcdlock.Session, error) = etcdlock.NewSession
	_ func(time.Duration) etcdlock.Option                                                    = etcdlock.WithTTL
	_ func(string) etcdlock.Option                                                           = etcdlock.WithOwner
	_ func(clientv3.LeaseID) etcdlock.Option                                                 = etcdlock.WithLease
	_ func(*slog.Logger) etcdlock.Option                                                     = etcdlock.WithLogger
	_ func(...*etcdlock.Hooks) etcdlock.Option                                               = etcdlock.WithHooks
	_                                                                                        = etcdlock.Hooks{
		SessionUp: func(etcdlock.SessionUpInfo) {}, Renewed: func(etcdlock.RenewedInfo) {}, SessionEnded: func(etcdlock.SessionEndedInfo) {},
		Enqueued: func(context.Context, etcdlock.EnqueuedInfo) {}, Granted: func(context.Context, etcdlock.GrantedInfo) {}, Abandoned: func(context.Context, etcdlock.AbandonedInfo) {},
		Released: func(context.Context, etcdlock.ReleasedInfo) {}, Lost: func(context.Context, etcdlock.LostInfo) {},
	}
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
		Close() error
	} = (*etcdlock.Session)(nil)
	_ func(*etcdlock.Session, string) *etcdlock.Mutex           = etcdlock.NewMutex
	_ func(*etcdlock.Session, string) *etcdlock.RWMutex         = etcdlock.NewRWMutex
	_ func(*etcdlock.Session, ...etcdlock.Part) *etcdlock.Multi = etcdlock.NewMulti
	_                                                           = []func(string) etcdlock.Part{etcdlock.Write, etcdlock.Read}
	_                                                           = []lockFunc{(&etcdlock.Mutex{}).Lock, (&etcdlock.Mutex{}).TryLock, (&etcdlock.RWMutex{}).Lock, (&etcdlock.RWMutex{}).TryLock, (&etcdlock.RWMutex{}).RLock, (&etcdlock.RWMutex{}).TryRLock, (&etcdlock.Multi{}).Lock, (&etcdlock.Multi{}).TryLock}
	_                                                           = []enqueueFunc{(&etcdlock.Mutex{}).Enqueue, (&etcdlock.RWMutex{}).Enqueue, (&etcdlock.RWMutex{}).REnqueue, (&etcdlock.Multi{}).Enqueue}
	_                                                           = []doFunc{(&etcdlock.Mutex{}).Do, (&etcdlock.RWMutex{}).Do, (&etcdlock.RWMutex{}).RDo, (&etcdlock.Multi{}).Do}
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
		Keys() []string
		Contended() <-chan struct{}
		IsOwner() clientv3.Cmp
		Txn(ctx context.Context) clientv3.Txn
		Downgrade(ctx context.Context) error
		Session() *etcdlock.Session
		Unlock(ctx context.Context) error
		Release()
	} = (*etcdlock.Held)(nil)
	_ func(*clientv3.Client, ...etcdlock.Option) *etcdlock.Client = etcdlock.New
	_ interface {
		Mutex(name string) *etcdlock.Mutex
		RWMutex(name string) *etcdlock.RWMutex
		Multi(parts ...etcdlock.Part) *etcdlock.Multi
		Elector(name string, opts ...etcdlock.ElectorOption) *etcdlock.Elector
		Session(ctx context.Context) (*etcdlock.Session, error)
		Ready(ctx context.Context) error
		Inspect(ctx context.Context, name string) (etcdlock.Queue, error)
		Watch(ctx context.Context, name string) iter.Seq2[etcdlock.Queue, error]
		ListNames(ctx context.Context, prefix string) iter.Seq2[string, error]
		Break(ctx context.Context, e etcdlock.Entry) error
		io.Closer
	} = (*etcdlock.Client)(nil)
	_ func(time.Duration, func(*etcdlock.Held)) etcdlock.ElectorOption = etcdlock.WithOverrun
	_ interface {
		Run(ctx context.Context, lead func(ctx context.Context, term *etcdlock.Held) error) error
		Leader(ctx context.Context) (etcdlock.Entry, error)
		Observe(ctx context.Context) iter.Seq2[etcdlock.Entry, error]
		IsLeader() bool
		Check(grace time.Duration) error
	} = (*etcdlock.Elector)(nil)
	_ interface {
		Holders() []etcdlock.Entry
		Waiters() []etcdlock.Entry
	} = etcdlock.Queue{}
	_ = []error{etcdlock.ErrLocked, etcdlock.ErrSessionExpired, etcdlock.ErrSessionClosed, etcdlock.ErrLost, etcdlock.ErrNotHeld, etcdlock.ErrNotFound, etcdlock.ErrElectionNoLeader, etcdlock.ErrWouldDeadlock, etcdlock.ErrInvalidName}
)

// A Mutex: it has at most one hold.

package concurrency

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
)

// noKey is what Key returns after an Unlock that etcd has confirmed. No entry has this key.
const noKey = "\x00"

// A Mutex is a lock that sessions take one at a time. Two Mutexes of one session exclude each other too. But a Lock of
// the Mutex that has the lock already does not wait, so goroutines that must exclude each other need a Mutex each,
// or one Locker. It is safe for concurrent use. A copy is the same Mutex: one has the lock that the other has taken.
type Mutex struct {
	s     *Session
	inner *etcdlock.Mutex // all copies refer to it, and nothing else does
	name  string
	st    *mutexState
}

// mutexState is what outlives a Mutex that nobody can reach any more, nor a copy of it.
type mutexState struct {
	turn chan struct{} // held by a Lock or TryLock

	mu   sync.Mutex
	hold *etcdlock.Held
	key  string
	// token is that of the last hold, also after its Unlock.
	token int64
	// leaving: an Unlock has ended with its ctx, and the release goes on. The next Unlock is its repetition.
	leaving bool
}

// NewMutex makes a Mutex. It makes no request. The name may end in "/". A nil session is an error of Lock and TryLock.
func NewMutex(s *Session, pfx string) *Mutex {
	if s == nil {
		return &Mutex{name: pfx}
	}
	m := &Mutex{s: s, inner: etcdlock.NewMutex(s.inner, pfx), name: pfx, st: &mutexState{turn: make(chan struct{}, 1)}}
	runtime.AddCleanup(m.inner, func(st *mutexState) { s.drop(pfx, st) }, m.st)
	return m
}

// state is the state of the Mutex. A Mutex without a session has no lock.
func (m *Mutex) state() *mutexState {
	if m.st == nil {
		return &mutexState{}
	}
	return m.st
}

// Lock takes the lock, and waits for it. If this Mutex has the lock, Lock returns once etcd has confirmed that. When Lock
// returns an error, for example since ctx has ended, its entry in the queue is removed in the background. In a session with
// WithLease, Lock takes up the entry that hangs on the lease, at three requests more if the lock is not free.
func (m *Mutex) Lock(ctx context.Context) error {
	if m.s == nil {
		return errNilSession
	}
	select {
	case m.st.turn <- struct{}{}:
		return m.acquire(ctx, m.lock)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// TryLock takes the lock if nobody has it or waits for it, and otherwise returns ErrLocked, also while another call of this
// Mutex waits for the lock. In a session with WithLease, TryLock takes up the entry that hangs on the lease if that entry has
// the lock.
func (m *Mutex) TryLock(ctx context.Context) error {
	if m.s == nil {
		return errNilSession
	}
	select {
	case m.st.turn <- struct{}{}:
		return m.acquire(ctx, m.try)
	default:
	}
	switch has, err := stillHas(ctx, m.st.held()); {
	case has:
		return nil
	case err != nil:
		return plain(ctx, err)
	case ctx.Err() != nil:
		return ctx.Err()
	}
	return ErrLocked
}

func (m *Mutex) lock(ctx context.Context) (*etcdlock.Held, error) {
	if !m.s.adopted {
		return m.inner.Lock(ctx)
	}
	h, err := m.inner.TryLock(ctx)
	if errors.Is(err, etcdlock.ErrLocked) {
		h, err = m.s.adopt(ctx, m.name)
	}
	if errors.Is(err, etcdlock.ErrNotFound) {
		h, err = m.inner.Lock(ctx)
	}
	return h, err
}

func (m *Mutex) try(ctx context.Context) (*etcdlock.Held, error) {
	h, err := m.inner.TryLock(ctx)
	if !m.s.adopted || !errors.Is(err, etcdlock.ErrLocked) {
		return h, err
	}
	var q etcdlock.Queue
	for now, look := range m.s.looks.Watch(ctx, m.name) { // Inspect would ask for the TTL of each entry
		if look != nil {
			return nil, look
		}
		q = now
		break
	}
	// Adopt waits for an entry that waits. It takes the oldest one, so if there is one, and it has the lock, it waits for none.
	mine := slices.DeleteFunc(q.Entries, func(e etcdlock.Entry) bool { return e.Lease != m.s.Lease() })
	if len(mine) != 1 || !mine[0].Holds {
		return nil, err
	}
	if h, found := m.s.adopt(ctx, m.name); !errors.Is(found, etcdlock.ErrNotFound) {
		return h, found
	}
	return nil, err
}

// acquire takes the lock by the given way. The caller has the turn, which acquire passes on.
func (m *Mutex) acquire(ctx context.Context, way func(context.Context) (*etcdlock.Held, error)) error {
	defer runtime.KeepAlive(m)
	st := m.st
	defer func() { <-st.turn }()
	if has, err := stillHas(ctx, st.held()); has || err != nil {
		return plain(ctx, err)
	}
	h, err := m.s.acquire(ctx, m.name, way)
	if err != nil {
		return plain(ctx, err)
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	st.hold, st.key, st.token, st.leaving = h, h.Key(), h.Token(), false
	return nil
}

// left notes what has become of the entry of that token: etcd has confirmed its release, or that goes on. A later entry of the Mutex
// counts for itself.
func (st *mutexState) left(token int64, confirmed bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	switch {
	case st.token != token:
	case confirmed:
		st.key = noKey
	default:
		st.leaving = true
	}
}

// held is the hold, nil if there is none.
func (st *mutexState) held() *etcdlock.Held {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.hold
}

// stillHas reports whether a hold, if there is one, has the lock, by etcd's word. Its entry may have been removed without the
// session's knowledge, and then another session may have the lock. An error is that of ctx or of etcd.
func stillHas(ctx context.Context, h *etcdlock.Held) (bool, error) {
	if h == nil {
		return false, nil
	}
	err := h.Check(ctx)
	if h.Err() != nil {
		return false, nil
	}
	return err == nil, err
}

// Unlock releases the lock. It returns ErrLockReleased if the Mutex has no lock, or if somebody else has removed the
// entry, and ErrSessionExpired if the lock was lost with its session. If ctx ends first the release goes on in the
// background, and another Unlock waits for etcd's word on it.
func (m *Mutex) Unlock(ctx context.Context) error {
	st := m.state()
	st.mu.Lock()
	h, leaving, entry := st.hold, st.leaving, etcdlock.Entry{Name: m.name, Key: st.key, Token: st.token}
	st.hold, st.leaving = nil, false
	st.mu.Unlock()
	var err error
	switch {
	case h != nil:
		err = h.Unlock(ctx)
	case !leaving:
		return ErrLockReleased
	case m.s.inner.Err() != nil:
		return ErrSessionExpired
	default: // the release goes on, and nobody can be asked for its end: so this does the same, beside it
		if err = m.s.looks.Break(ctx, entry); errors.Is(err, etcdlock.ErrNotFound) {
			err = nil
		}
	}
	switch {
	case err == nil:
		st.left(entry.Token, true)
		return nil
	case errors.Is(err, etcdlock.ErrLost) && m.s.inner.Err() == nil:
		return ErrLockReleased
	}
	err = plain(ctx, err)
	if !errors.Is(err, ErrSessionExpired) {
		st.left(entry.Token, false)
	}
	return err
}

// IsOwner is a comparison that is true in a transaction exactly while this Mutex has the lock.
func (m *Mutex) IsOwner() clientv3.Cmp {
	if h := m.state().held(); h != nil {
		return h.IsOwner()
	}
	// No key has the create revision -1, so this is false. The key is one of the name, so etcd asks for the same rights.
	return clientv3.Compare(clientv3.CreateRevision(m.name+"/0"), "=", -1)
}

// Key is the key of the last entry: "" before the first Lock, and "\x00" after an Unlock that etcd has confirmed, as in
// etcd's package. A call that fails leaves it as it was.
func (m *Mutex) Key() string {
	st := m.state()
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.key
}

// Header has the revision at which the entry entered the queue, and nothing else. The revision grows with each acquisition of
// the name, so it fences. Header is nil before the first Lock, and stays after Unlock, as in etcd's package.
func (m *Mutex) Header() *pb.ResponseHeader {
	st := m.state()
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.token == 0 {
		return nil
	}
	return &pb.ResponseHeader{Revision: st.token}
}

// A locker is a Mutex whose goroutines exclude each other.
type locker struct {
	turn sync.Mutex
	m    *Mutex
}

// NewLocker makes a sync.Locker. Goroutines that share it exclude each other, and all other holders of the name. A
// sync.Locker can't return an error: Lock panics if the lock can't be had, for example since the session has ended.
// Unlock of a lock that was lost does nothing.
func NewLocker(s *Session, pfx string) sync.Locker { return &locker{m: NewMutex(s, pfx)} }

// ctx is that of the session's client. Without a session, Lock and Unlock say so.
func (l *locker) ctx() context.Context {
	if l.m.s == nil {
		return context.Background()
	}
	return l.m.s.Client().Ctx()
}

func (l *locker) Lock() {
	l.turn.Lock()
	if err := l.m.Lock(l.ctx()); err != nil {
		l.turn.Unlock()
		panic(err)
	}
}

func (l *locker) Unlock() {
	held := l.m.state().held() != nil
	if err := l.m.Unlock(l.ctx()); err != nil && (!held || !errors.Is(err, ErrLockReleased) && !errors.Is(err, ErrSessionExpired)) {
		panic(err)
	}
	l.turn.Unlock()
}

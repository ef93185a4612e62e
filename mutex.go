package etcdlock

import (
	"context"
	"errors"
)

// A Mutex is a mutual exclusion lock among all sessions that use its name on
// one etcd, like [sync.Mutex] among goroutines, but: it queues in the order in
// which etcd got the requests and nobody passes anybody; every acquisition is
// a value of its own, a *Held, and only that can be unlocked; it may be lost,
// and its holder is told; waiting ends with ctx. A Mutex has no state: it may
// be copied, and two of one session exclude each other like any other two. It is
// safe for concurrent use.
//
// It excludes the [RWMutex] of the same name, and etcd's own concurrency.Mutex,
// `etcdctl lock` and v3lock too, which write the same keys.
type Mutex struct{ l lock }

// NewMutex makes a Mutex of a *Session or a *Pool; it makes no request. A name
// that is not valid, or a nil session or pool, is an error of every call.
func NewMutex(s SessionSource, name string) *Mutex { return &Mutex{newLock(s, name)} }

// Lock takes the lock and waits for it. It blocks while an earlier entry is in
// the queue, and until etcd has answered, through leader changes and lost
// replies. It ends early when ctx ends, within milliseconds whether etcd
// answers or not, when the session ends, or when somebody removes its entry
// (ErrLost). After an error the caller holds nothing and owes nothing: its entry
// is removed in the background.
//
// With nobody before it Lock costs one request, which is one commit. A Lock that
// waits costs one watch and at most one read more behind one or two others; deeper
// in the queue two watches, and two reads or, behind more than 16 keys, three.
// Several who wait on one client share a watch if they are at least a quarter of the
// queue, and behind up to 16 keys one read; fewer ask etcd as they come near its front.
func (m *Mutex) Lock(ctx context.Context) (*Held, error) { return m.l.lock(ctx, "lock", mutexMode) }

// TryLock takes the lock if nobody holds it or waits for it, and otherwise
// returns ErrLocked. It never waits for others, costs one request, and writes
// nothing when it fails. It blocks until etcd has answered or ctx or the session
// ends; nothing of it stays in the queue then.
func (m *Mutex) TryLock(ctx context.Context) (*Held, error) {
	return m.l.try(ctx, "try to lock", mutexMode)
}

// Enqueue takes a place in the queue, to wait for later or to select on. ctx
// bounds the call only; the place stays until Cancel or the session's end. It
// costs what Lock does.
func (m *Mutex) Enqueue(ctx context.Context) (*Ticket, error) {
	return m.l.enqueue(ctx, "enqueue for", mutexMode)
}

// Do takes the lock, runs fn and gives the lock back, also when fn panics. fn's
// ctx ends when the hold does, with its cause. Do returns fn's error, joined with
// ErrLost if the hold was lost before fn was done: somebody else may
// have been in the section.
//
// It is the one way to take a lock that one has already: under the ctx that fn
// got, Do on the same session (or pool) and name runs its fn at once, inside the
// hold; Lock and Enqueue return ErrWouldDeadlock there, TryLock ErrLocked. Once
// the hold is lost such a Do returns ErrLost without calling fn, also where a
// pool has another session by then.
func (m *Mutex) Do(ctx context.Context, fn func(ctx context.Context, h *Held) error) error {
	return m.l.do(ctx, "do under", mutexMode, fn)
}

// lock is a name in the sessions of a source: what a Mutex and an RWMutex are
// made of.
type lock struct {
	from SessionSource
	name string
	err  error // of every call
}

func newLock(from SessionSource, name string) lock {
	l := lock{from: from, name: name, err: checkName(name)}
	if from == nil {
		l.err = errNilSession
	}
	return l
}

// obtain takes the lock by the given way in a session of its source, and again
// in the next one where the source says that only the session failed. Under a ctx of
// Do that holds the lock already, it returns the error inside.
func acquire[T any](ctx context.Context, l *lock, op string, w mode, inside error, in func(context.Context, *Held) (T, error)) (got T, err error) {
	for {
		h, err := l.start(ctx, w, inside)
		if err == nil {
			got, err = in(ctx, h)
		}
		if err == nil || h == nil || !l.from.retryable(ctx, h.s, err) {
			return got, wrap(op, l.name, err)
		}
	}
}

// begin makes an entry, unless there is a reason not to begin an acquisition.
func (l *lock) start(ctx context.Context, w mode, inside error) (*Held, error) {
	if l.holdIn(ctx) != nil {
		return nil, inside
	}
	s, err := l.session(ctx)
	if err != nil {
		return nil, err
	}
	return l.entry(ctx, s, w), nil
}

func (l *lock) entry(ctx context.Context, s *Session, w mode) *Held {
	return &Held{entry{s: s, name: l.name, mode: w, acquiring: &acquiring{trace: s.newTrace(ctx, w)}}}
}

// session is the one to begin an acquisition in, unless there is a reason not to.
func (l *lock) session(ctx context.Context) (*Session, error) {
	switch {
	case l.err != nil:
		return nil, l.err
	case l.from == nil:
		return nil, errors.New("it was not made with NewMutex or NewRWMutex")
	}
	s, err := l.from.session(ctx)
	if err == nil && ctx.Err() != nil {
		err = ctxError(ctx, nil)
	}
	return s, err
}

func (l *lock) lock(ctx context.Context, op string, w mode) (*Held, error) {
	return acquire(ctx, l, op, w, ErrWouldDeadlock, lockIn)
}

func lockIn(ctx context.Context, h *Held) (*Held, error) {
	w, err := h.join(ctx)
	if err == nil {
		err = w.wait(ctx)
	}
	return h.result(err)
}

// taken is what becomes of an entry: the hold, or nothing if err is why there is none.
func (h *Held) result(err error) (*Held, error) {
	if err != nil {
		h.abandon(err)
		return nil, err
	}
	h.notifyGranted()
	return h, nil
}

func (l *lock) enqueue(ctx context.Context, op string, w mode) (*Ticket, error) {
	return acquire(ctx, l, op, w, ErrWouldDeadlock, enqueueIn)
}

func enqueueIn(ctx context.Context, h *Held) (*Ticket, error) {
	w, err := h.join(ctx)
	if err != nil {
		h.abandon(err)
		return nil, err
	}
	return newTicket(h, w)
}

// queueUp puts the entry into the queue, to be waited for.
func (h *Held) join(ctx context.Context) (*waiter, error) {
	v, looked, err := h.enqueue(ctx)
	if err != nil {
		return nil, err
	}
	h.notifyEnqueued()
	return newWaiter(&h.entry, v, looked), nil
}

func (l *lock) try(ctx context.Context, op string, w mode) (*Held, error) {
	return acquire(ctx, l, op, w, ErrLocked, tryIn)
}

func tryIn(ctx context.Context, h *Held) (*Held, error) {
	err := h.tryEnqueue(ctx)
	if err == nil {
		h.notifyEnqueued()
		err = h.grant(ctx)
	}
	return h.result(err)
}

// doKey is the key of the hold of a name in the ctx that Do gives: by the source
// of the session, since a pool's hold is its caller's own whatever session the
// next acquisition would be in.
type doKey struct {
	from SessionSource
	name string
}

// doOf is the key of a hold in the ctx of its own Do.
type doOf struct{ *Held }

// holdIn is the hold of this name that ctx runs under, unless it was unlocked.
func (l *lock) holdIn(ctx context.Context) *Held {
	h, _ := ctx.Value(doKey{l.from, l.name}).(*Held)
	if h == nil || errors.Is(h.Err(), ErrNotHeld) {
		return nil
	}
	return h
}

func (l *lock) do(ctx context.Context, op string, w mode, fn func(context.Context, *Held) error) error {
	if h := l.holdIn(ctx); h != nil {
		switch err := h.Err(); {
		case err != nil:
			return wrap(op, l.name, err)
		case w != readMode && h.readOnly():
			return wrap(op, l.name, ErrWouldDeadlock)
		}
		return l.run(ctx, op, h, fn)
	}
	h, err := l.lock(ctx, op, w)
	if err != nil {
		return err
	}
	defer func() { _ = h.Unlock(ctx) }() // when fn panics; else it is done
	err = l.run(ctx, op, h, fn)
	if uerr := h.unlock(ctx); uerr != nil && !errors.Is(uerr, ErrNotHeld) && ctx.Err() == nil {
		// Not ErrNotHeld: fn has unlocked. Not ctx's: the release goes on.
		if !errors.Is(err, ErrLost) || !errors.Is(uerr, ErrLost) {
			err = errors.Join(err, wrap(op, l.name, uerr))
		}
	}
	return err
}

// run runs fn under h, with a ctx that ends with h.
func (l *lock) run(ctx context.Context, op string, h *Held, fn func(context.Context, *Held) error) error {
	ctx = context.WithValue(context.WithValue(ctx, doKey{l.from, l.name}, h), doOf{h}, true)
	inner, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	hold := h.Context()
	defer context.AfterFunc(hold, func() { cancel(context.Cause(hold)) })()
	err := fn(inner, h)
	if lost := h.Err(); errors.Is(lost, ErrLost) {
		err = errors.Join(err, wrap(op, l.name, lost))
	}
	return err
}

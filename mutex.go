// The mutual exclusion lock.

package etcdlock

import "context"

// A Mutex is a mutual exclusion lock among all sessions that use its name on one etcd. It is like [sync.Mutex] among goroutines, but:
// it queues in the order in which etcd got the requests, and nobody passes anybody; every acquisition is a value of its own, a
// [Held], and only a Held can be unlocked; a hold may be lost, and its holder is told; waiting ends with ctx. A Mutex has no state:
// it may be copied, and two of one session exclude each other like any other two. It is safe for concurrent use.
//
// It excludes the [RWMutex] of the same name, and also etcd's own concurrency.Mutex, `etcdctl lock` and v3lock, which
// write the same keys.
type Mutex struct{ l *lock }

// NewMutex makes a Mutex that ends with its session; [Client.Mutex] makes one that does not. It makes no request. A
// name that is not valid, or a nil session, is an error of every call.
func NewMutex(s *Session, name string) *Mutex { return &Mutex{newLock(s, name, writing)} }

// Raw is the same Mutex, but the value of its entries in etcd is that text and nothing else, as etcd's own
// concurrency.Election has it, instead of an object of JSON with owner and time. Raw is for an election that programs with
// etcd's package observe. Two sessions of one lease that both go on must not use the same value for the same name.
// In a session with [WithLease] an acquisition costs one read more.
func (m *Mutex) Raw(value string) *Mutex {
	l := *m.l.made()
	l.published = published{value, true}
	return &Mutex{&l}
}

// Lock takes the lock and waits for it. It blocks while an earlier entry is in the queue, and until etcd has
// answered, through leader changes and lost replies. It ends early when ctx ends, within milliseconds whether etcd
// answers or not, when the session ends, or when somebody removes its entry (ErrLost). After an error the caller
// holds nothing and owes nothing: its entry is removed in the background.
//
// If nobody is before it, Lock costs one request, which is one commit. A Lock that waits costs one watch and at most
// one read more behind one or two sessions; deeper in the queue two watches, and two reads or, behind more than 16
// keys, three. Of the waiters of one session only the front-most asks etcd. If the holder before is of the same session too,
// Lock returns when that holder calls Unlock, and needs no word of etcd (see "Hand-over inside a process").
func (m *Mutex) Lock(ctx context.Context) (*Held, error) { return m.l.lock(ctx, "lock") }

// TryLock takes the lock if nobody holds it or waits for it, and otherwise returns ErrLocked. It never waits for
// others, costs one request, and writes nothing when it fails. It blocks until etcd has answered or ctx or the session
// ends; nothing of it stays in the queue then. It costs one request more if the session's last TryLock was refused within 10 s
// and the lock is free now. Beside keys of locks below its name ("a/b" of "a") it costs one or two more, and if another entry
// comes in between, TryLock removes its own entry again.
func (m *Mutex) TryLock(ctx context.Context) (*Held, error) { return m.l.try(ctx, "try to lock") }

// Enqueue takes a place in the queue, to wait for later or to select on. ctx bounds the call only; the place stays
// until Cancel or the session's end. It costs what Lock does.
func (m *Mutex) Enqueue(ctx context.Context) (*Ticket, error) { return m.l.enqueue(ctx, "enqueue for") }

// Do takes the lock, runs fn and releases the lock, also when fn panics. fn's ctx ends when the hold does, with its
// cause. Do returns fn's error, joined with ErrLost if the hold was lost before fn was done: somebody else may have
// been in the section. If ctx ends, Do waits 250 ms at most for etcd's word on the loss.
//
// Do is the one way to take a lock that the caller has already. Under the ctx that fn got, Do on the same name and session, or
// Client, or session of that Client, runs its fn at once, inside the hold; Lock and Enqueue return ErrWouldDeadlock
// there, TryLock ErrLocked. So goroutines that call Do with that ctx do not exclude each other: they are in the section
// together. Such a Do returns ErrNotHeld, joined with its fn's error, if the hold was released before its fn was done,
// for example since the outer Do has returned. Once the hold is lost all these calls return ErrLost, and Do does not call fn,
// even if a Client has another session by then. When the outer Do has returned, its ctx is a ctx like any other.
func (m *Mutex) Do(ctx context.Context, fn func(ctx context.Context, h *Held) error) error {
	return m.l.do(ctx, "do", fn)
}

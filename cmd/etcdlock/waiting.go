package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/cmd/etcdlock/internal/connect"
)

const (
	// tellAfter is how long a command waits before it says for what. Nobody needs to
	// know of a shorter wait.
	tellAfter = time.Second
	// tellAgain is how often it asks whether etcd is back.
	tellAgain = 5 * time.Second
)

// A waitNotice says on standard error what `run` and `elect` wait for: once for
// whom, and once for each outage of etcd.
//
// It does not poll while all is well. It serves as the library's logger, and looks at
// the queue when the library logs something.
type waitNotice struct {
	client     *clientv3.Client
	etcd       *connect.Config
	name, self string        // of the lock; the owner that this command's entries name, and perhaps others' too
	logged     chan struct{} // has room for one

	mu      sync.Mutex
	refusal error  // the error that was logged last, nil if the last record had none
	own     leases // of this command's sessions

	stop func() // nil while the command does not wait
}

// obstacle is what the command was last said to wait for.
type obstacle int

const (
	waitsUnsaid obstacle = iota
	waitsForHolder
	waitsForPlace // etcd answers, but the command is not in the queue
	waitsForEtcd
	waitsForSpace
)

func newWaitNotice(client *clientv3.Client, etcd *connect.Config, name, self string) *waitNotice {
	return &waitNotice{client: client, etcd: etcd, name: name, self: self, logged: make(chan struct{}, 1)}
}

// begin starts the notice when the command begins to wait. One goroutine calls begin
// and end.
func (n *waitNotice) begin(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { // ends with ctx, or with end
		defer close(done)
		notify(ctx, n.logged, n.look, func(what string) { say(n.name, "%s", what) })
	}()
	n.stop = func() { cancel(); <-done }
}

// end stops the notice. Nothing is said after it returns.
func (n *waitNotice) end() {
	if n.stop != nil {
		n.stop()
		n.stop = nil
	}
}

// notify says what look finds when the wait has lasted for a while, and then each
// change that a look finds. It looks after something was logged, and repeatedly while
// etcd is away.
func notify(ctx context.Context, logged <-chan struct{}, look func(context.Context) (obstacle, string), say func(string)) {
	timer := time.NewTimer(tellAfter)
	defer timer.Stop()
	for said, last := waitsUnsaid, waitsUnsaid; ; {
		select {
		case <-timer.C:
		case <-logged:
			if said == waitsUnsaid {
				continue // the timer comes later
			}
		case <-ctx.Done():
			return
		}
		now, what := look(ctx)
		if ctx.Err() != nil {
			return
		}
		// Between two sessions the command is out of the queue for a moment. It has
		// trouble to get into it only if it is still out of it at the next look.
		confirmed := now != waitsForPlace || last == waitsForPlace
		if last = now; now != said && now != waitsUnsaid && confirmed {
			if said == waitsForEtcd {
				what = "etcd answers again; " + what
			}
			say(what)
			said = now
		}
		switch now {
		case waitsUnsaid:
			timer.Reset(tellAfter)
		case waitsForEtcd, waitsForPlace:
			timer.Reset(tellAgain)
		case waitsForHolder, waitsForSpace:
			timer.Stop() // the library logs the next change
		}
	}
}

// look finds out what the command waits for.
func (n *waitNotice) look(ctx context.Context) (obstacle, string) {
	refusal := n.why()
	if errors.Is(refusal, rpctypes.ErrNoSpace) {
		return waitsForSpace, "waiting for etcd, which is out of space and refuses the lock: " + doctorHint(n.name)
	}
	if errors.Is(refusal, rpctypes.ErrCorrupt) {
		return waitsForSpace, "waiting for etcd, whose members have different data and refuse the lock: " + doctorHint(n.name)
	}
	q, err := readQueue(ctx, n.client, n.name, n.etcd.DialTimeout)
	switch {
	case ctx.Err() != nil:
		return waitsUnsaid, ""
	case errors.Is(err, context.DeadlineExceeded):
		return waitsForEtcd, "waiting for etcd: " + n.etcd.Why(err)
	case err != nil:
		return waitsForEtcd, "waiting for etcd: " + line(err)
	case len(q.Entries) == 0:
		return waitsForPlace, "waiting for etcd to take this command into the queue: " + doctorHint(n.name)
	}
	switch own, first := n.ownLeases(), q.Entries[0]; {
	case own.of(first):
		return waitsUnsaid, "" // it is about to be granted
	case first.Owner == n.self && own.last(q) < 0: // it may be: the lease of a new session is not known yet
		return waitsUnsaid, ""
	default:
		return waitsForHolder, "waiting: " + heldBy(q, own)
	}
}

// why is why etcd can't be asked, as the library has logged it, or nil.
func (n *waitNotice) why() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.refusal
}

// observe makes the notice the logger of the command's sessions, and tells it their leases.
func (n *waitNotice) observe() []etcdlock.Option {
	up := func(up etcdlock.SessionUpInfo) {
		n.mu.Lock()
		n.own = n.own.with(up.Session.Lease())
		n.mu.Unlock() // a line of the log has come with it, and two looks in a row would take a moment for trouble
	}
	return []etcdlock.Option{etcdlock.WithLogger(slog.New(logHandler{n})), etcdlock.WithHooks(&etcdlock.Hooks{SessionUp: up})}
}

func (n *waitNotice) ownLeases() leases {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.own
}

// leases are those of a command's present session, and of the one before, whose entries may be left. Entries are told by
// them, since commands on several machines may have one --owner.
type leases [2]clientv3.LeaseID

func (l leases) with(lease clientv3.LeaseID) leases { return leases{l[1], lease} }

// of reports whether an entry is the command's own.
func (l leases) of(e etcdlock.Entry) bool { return hasLease(e) && slices.Contains(l[:], e.Lease) }

// last is where the command's last entry is in a queue, -1 if it has none there.
func (l leases) last(q etcdlock.Queue) int {
	for i, e := range slices.Backward(q.Entries) {
		if l.of(e) {
			return i
		}
	}
	return -1
}

// logHandler takes a record as a sign that something has changed. It does not print
// the record, which is worded for the log of a service.
type logHandler struct{ *waitNotice }

func (h logHandler) Enabled(context.Context, slog.Level) bool { return true }

func (h logHandler) Handle(_ context.Context, r slog.Record) error {
	var refusal error
	r.Attrs(func(a slog.Attr) bool {
		err, ok := a.Value.Any().(error)
		if ok {
			refusal = err
		}
		return !ok
	})
	h.mu.Lock()
	h.refusal = refusal
	h.mu.Unlock()
	select {
	case h.logged <- struct{}{}:
	default: // one is enough: look reads the newest state
	}
	return nil
}

func (h logHandler) WithAttrs([]slog.Attr) slog.Handler { return h }

func (h logHandler) WithGroup(string) slog.Handler { return h }

// readQueue reads the queue of a lock once. Inspect would also make a request for each
// lease. If each of a thousand waiters reads the queue, that is a million.
func readQueue(ctx context.Context, client *clientv3.Client, name string, timeout time.Duration) (etcdlock.Queue, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return glance(ctx, client, name)
}

// glance is readQueue without a timeout of its own.
func glance(ctx context.Context, client *clientv3.Client, name string) (q etcdlock.Queue, err error) {
	for q, err = range looks(client).Watch(ctx, name) {
		break
	}
	return q, err
}

// holder says who holds a lock, and how many wait for it; "" if nobody does but the command itself.
func holder(ctx context.Context, client *clientv3.Client, name string, own leases, timeout time.Duration) (string, error) {
	q, err := readQueue(ctx, client, name, timeout)
	if err != nil || len(q.Entries) == 0 || own.of(q.Entries[0]) {
		return "", err
	}
	return heldBy(q, own), nil
}

// heldBy says who holds a lock, and how many are ahead of the command, or wait if it is not in the queue.
func heldBy(q etcdlock.Queue, own leases) string {
	who := "held by " + describe(q.Entries[0], time.Now())
	if n := len(q.Holders()); n > 1 {
		who += fmt.Sprintf(" and %d more", n-1)
	}
	i := own.last(q)
	switch waiting := len(q.Waiters()); {
	case i >= 0:
		ahead := slices.DeleteFunc(slices.Clone(q.Entries[:i]), func(e etcdlock.Entry) bool { return e.Read && q.Entries[i].Read })
		who = fmt.Sprintf("%d ahead, %s", len(ahead), who)
	case waiting > 0:
		who += fmt.Sprintf(", %d waiting", waiting)
	}
	return who + strings.TrimSuffix(strings.ReplaceAll("\n"+dataIn(q), "\n", "; "), "; ")
}

func doctorHint(name string) string { return "etcdlock doctor " + argument(name) + " says what to do" }

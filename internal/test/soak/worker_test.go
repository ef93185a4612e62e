package soak

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/test/history"
	"github.com/etcdlock/etcdlock/internal/test/history/hooks"
)

// A worker uses the locks in every way that the package has, one after the other.
type worker struct {
	*run
	id   int
	slot *slot
	rng  *rand.Rand
	s    *etcdlock.Session
	name string // of the lock that it uses now
}

// work starts the workers. They leave when ctx has ended and what they do is done,
// but not before each has had a lock.
func (r *run) work(ctx context.Context) {
	for i, s := range r.slots {
		for j := range workersPerSession {
			id := i*workersPerSession + j
			w := &worker{run: r, id: id, slot: s, rng: r.random(fmt.Sprint("worker ", id))}
			r.workers.Go(func() {
				for had := false; ctx.Err() == nil || !had; {
					if w.s = s.session(); w.s != nil {
						w.name = names[w.rng.IntN(len(names))]
						had = w.turn() || had
					}
				}
			})
		}
	}
}

// patience is the time within which everything gets its turn: what is broken is
// mended after some seconds, and leases expire after less.
const patience = time.Minute

type patient struct{} // the key of a ctx that is not cut short

// limit makes a ctx for a call: often one that ends very soon.
func (w *worker) limit() (context.Context, context.CancelFunc) {
	switch n := w.rng.IntN(10); {
	case n < 2:
		return context.WithTimeout(context.Background(), time.Duration(w.rng.IntN(20_000))*time.Microsecond)
	case n < 4:
		return context.WithTimeout(context.Background(), time.Duration(w.rng.IntN(1000))*time.Millisecond)
	}
	return context.WithTimeout(context.WithValue(context.Background(), patient{}, true), patience)
}

// late is by how much a call may overrun its ctx: the package says milliseconds,
// but the machine may be busy.
const late = 5 * time.Second

// returned judges how a call ended.
func (w *worker) returned(ctx context.Context, what string, err error) {
	if end, _ := ctx.Deadline(); time.Since(end) > late {
		w.problem("%s returned %v after its ctx had ended: %v", what, time.Since(end), err)
	}
	w.excuse(ctx, what, err)
}

// excuse looks for a reason for an error; there must be one.
func (w *worker) excuse(ctx context.Context, what string, err error) {
	switch {
	case err == nil:
		w.counted(what)
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		w.counted("ended by ctx")
		if ctx.Value(patient{}) != nil {
			w.problem("%s took more than %v: %v", what, patience, err)
		}
	case w.s.Err() != nil && errors.Is(err, w.s.Err()):
		w.counted("ended by the session")
	case errors.Is(err, etcdlock.ErrLost) && (w.s.Err() != nil || w.log.Interfered(int64(w.s.Lease()))):
		w.counted("lost")
	default:
		w.problem("%s: %v (session: %v)", what, err, w.s.Err())
	}
}

func (w *worker) problem(format string, args ...any) {
	w.record.Problem("worker %d, %s, %s: %s", w.id, w.name, time.Now().Format("15:04:05.000"), fmt.Sprintf(format, args...))
}

// A kind of hold, and the ways to get it.
type kind struct {
	name             string
	lock, try        func(context.Context) (*etcdlock.Held, error)
	enqueue          func(context.Context) (*etcdlock.Ticket, error)
	do               func(context.Context, func(context.Context, *etcdlock.Held) error) error
	write, downgrade bool // what can be done under it
}

func (w *worker) kinds() []kind {
	m, rw := etcdlock.NewMutex(w.s, w.name), etcdlock.NewRWMutex(w.s, w.name)
	return []kind{
		{"Mutex", m.Lock, m.TryLock, m.Enqueue, m.Do, true, false},
		{"writer", rw.Lock, rw.TryLock, rw.Enqueue, rw.Do, true, true},
		{"reader", rw.RLock, rw.TryRLock, rw.REnqueue, rw.RDo, false, false},
	}
}

// turn takes a lock in some way, acts under it, and gives it back. It returns false
// if it did not get it.
func (w *worker) turn() bool {
	kinds := w.kinds()
	k := kinds[w.rng.IntN(len(kinds))]
	if w.rng.IntN(5) == 0 {
		return w.do(k)
	}
	ways := []func(kind) (*etcdlock.Held, error){w.lock, w.lock, w.try, w.wait}
	h, err := ways[w.rng.IntN(len(ways))](k)
	if err != nil {
		return false
	}
	for w.use(h, k); w.rng.IntN(2) == 0; w.use(h, k) {
		h.Release() // its removal goes with the next Lock, for the most part
		w.counted("Release")
		if h.Valid() {
			w.problem("%s is valid after Release", h.Key())
		}
		if h, err = w.lock(k); err != nil {
			return true
		}
	}
	if w.rng.IntN(500) == 0 {
		w.leave(w.s, time.Duration(w.rng.IntN(2000))*time.Millisecond)
		return true
	}
	ctx, cancel := w.limit()
	defer cancel()
	err = h.Unlock(ctx)
	w.returned(ctx, "Unlock", err)
	if h.Valid() {
		w.problem("%s is valid after Unlock: %v", h.Key(), err)
	}
	return true
}

// use acts under a hold.
func (w *worker) use(h *etcdlock.Held, k kind) {
	w.sample(h)
	if w.slot.proxied {
		w.counted("by grpc-proxy")
	}
	if w.rng.IntN(2) == 0 {
		_ = h.Done() // from now on it is watched
	}
	w.section(h, k)
}

// leave leaves a hold to its session, and that closes after a while.
func (w *worker) leave(s *etcdlock.Session, after time.Duration) {
	w.closing.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), after+time.Second)
		defer cancel()
		wait(ctx, after)
		hooks.Ended(w.record, s, time.Now())
		_ = s.Close() // where it can't be revoked in time, the lease expires
	})
}

func (w *worker) lock(k kind) (*etcdlock.Held, error) {
	ctx, cancel := w.limit()
	defer cancel()
	h, err := k.lock(ctx)
	w.returned(ctx, k.name+".Lock", err)
	return h, err
}

func (w *worker) try(k kind) (*etcdlock.Held, error) {
	ctx, cancel := w.limit()
	defer cancel()
	h, err := k.try(ctx)
	if errors.Is(err, etcdlock.ErrLocked) {
		w.counted("locked")
		wait(ctx, time.Duration(w.rng.IntN(5000))*time.Microsecond)
		return nil, err
	}
	w.returned(ctx, k.name+".Try", err)
	return h, err
}

// wait takes a place in the queue; then it waits for its turn, or gives it back.
func (w *worker) wait(k kind) (*etcdlock.Held, error) {
	ctx, cancel := w.limit()
	defer cancel()
	ticket, err := k.enqueue(ctx)
	w.returned(ctx, k.name+".Enqueue", err)
	if err != nil {
		return nil, err
	}
	if w.rng.IntN(3) > 0 {
		ctx, cancel := w.limit()
		defer cancel()
		h, err := ticket.Wait(ctx)
		w.returned(ctx, "Wait", err)
		if err == nil {
			return h, nil
		}
	}
	ctx, cancel = w.limit()
	defer cancel()
	w.returned(ctx, "Cancel", ticket.Cancel(ctx))
	h, err := ticket.Wait(context.Background())
	if err == nil {
		w.problem("a cancelled ticket was granted, by %s", h.Key())
	}
	return nil, err
}

// do acts under the lock inside of Do, and tries what can be tried there.
func (w *worker) do(k kind) bool {
	ctx, cancel := w.limit()
	defer cancel()
	ran := 0
	err := k.do(ctx, func(inner context.Context, h *etcdlock.Held) error {
		ran++
		w.sample(h)
		w.section(h, k)
		if _, err := k.lock(inner); !errors.Is(err, etcdlock.ErrWouldDeadlock) && (!errors.Is(err, etcdlock.ErrLost) || !errors.Is(h.Err(), etcdlock.ErrLost)) {
			w.problem("Lock inside of Do: %v", err)
		}
		err := k.do(inner, func(_ context.Context, again *etcdlock.Held) error {
			ran++
			if again != h {
				w.problem("Do inside of Do has another hold")
			}
			return nil
		})
		if err == nil && ran != 2 {
			w.problem("Do inside of Do did not run its function")
		}
		return nil
	})
	switch {
	case ran > 0: // it may have taken longer than ctx allows
		w.excuse(ctx, k.name+".Do", err)
	case err == nil:
		w.problem("Do did not run its function")
	default:
		w.returned(ctx, k.name+".Do", err)
	}
	return ran > 0
}

// section acts as a holder.
func (w *worker) section(h *etcdlock.Held, k kind) {
	for range 1 + w.rng.IntN(3) {
		known := true
		if k.write && w.rng.IntN(3) > 0 {
			known = w.add(h)
		} else {
			w.read(h)
		}
		// A write that is still on its way may come after the next one of the same
		// hold, and undo it: no lock can help that. So the holder leaves.
		if !known || h.Err() != nil {
			return
		}
		w.stay(h)
	}
	ctx, cancel := w.limit()
	defer cancel()
	switch w.rng.IntN(8) {
	case 0, 1:
		if k.downgrade {
			w.returned(ctx, "Downgrade", h.Downgrade(ctx))
			w.read(h)
			w.stay(h)
		}
	case 2:
		w.returned(ctx, "Check", h.Check(ctx))
	case 3:
		w.returned(ctx, "Refresh", w.s.Refresh(ctx))
	case 4:
		if w.slot.limited {
			w.tooLarge(ctx, h)
		}
	case 5:
		w.returned(ctx, "SetValue", h.SetValue(ctx, fmt.Sprintf("worker %d", w.id)))
	}
}

// tooLarge sends more than the client allows: it is refused, and certainly not carried out.
func (w *worker) tooLarge(ctx context.Context, h *etcdlock.Held) {
	_, err := h.Txn(ctx).Then(clientv3.OpPut("large", strings.Repeat("x", sendLimit))).Commit()
	switch {
	case err == nil:
		w.problem("a request was sent that is too large")
	case errors.Is(err, etcdlock.ErrOutcomeUnknown) && !strings.Contains(err.Error(), "larger than max"):
		w.counted("failed before it was too large") // a fault of the network came first
	case errors.Is(err, etcdlock.ErrOutcomeUnknown):
		w.problem("the outcome of a request is not known that is too large to be sent: %v", err)
	case errors.Is(err, etcdlock.ErrLost), ctx.Err() != nil && errors.Is(err, ctx.Err()):
		w.excuse(ctx, "Txn", err)
	default:
		w.counted("too large")
	}
}

// stay lets some time pass under a hold, now and then more than its lease lasts.
func (w *worker) stay(h *etcdlock.Held) {
	var d time.Duration
	switch n := w.rng.IntN(1000); {
	case n < 700:
		return
	case n < 980:
		d = time.Duration(w.rng.IntN(2000)) * time.Microsecond
	case n < 997:
		d = time.Duration(w.rng.IntN(200)) * time.Millisecond
	default:
		d = time.Duration(w.rng.IntN(4000)) * time.Millisecond
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(d); time.Now().Before(end) && h.Valid(); {
		<-tick.C
	}
}

// sample asks the hold again and again whether it is valid, until it is not.
func (w *worker) sample(h *etcdlock.Held) {
	w.behind.Go(func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		last := history.Sample{Worker: w.id, Token: h.Token()}
		for ; ; <-tick.C {
			asked := time.Now()
			valid, key := h.Valid(), h.Key()
			if last.Key != "" && (!valid || key != last.Key) { // downgraded
				w.record.Sample(last)
			}
			if !valid {
				return
			}
			last.Key, last.Asked = key, asked
		}
	})
}

// element takes an element of its own for a lock's sets.
func (w *worker) element() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.elements[w.name]++
	return w.elements[w.name] - 1
}

// add adds an element to the current set, by reading the set and writing it back.
// It returns false if it is not known whether that was done.
func (w *worker) add(h *etcdlock.Held) (known bool) {
	ctx, cancel := w.limit()
	defer cancel()
	n := w.element()
	op := history.SetOp{Worker: w.id, Set: setKey(w.name, n), Add: true, Element: n % history.SetSize, Call: time.Now()}
	resp, err := w.s.Client().Get(ctx, op.Set)
	if err != nil {
		return true
	}
	value, err := json.Marshal(history.SetValue{
		Elements: elementsOf(w.t, resp.Kvs).Elements.With(op.Element), Worker: w.id, Key: h.Key(), Token: h.Token(),
	})
	if err != nil {
		panic(err)
	}
	_, err = h.Txn(ctx).Then(clientv3.OpPut(op.Set, string(value))).Commit()
	op.Return = time.Now()
	switch {
	case err == nil:
		w.counted("add")
	case errors.Is(err, etcdlock.ErrOutcomeUnknown):
		w.counted("add?")
		op.Unknown = true
	case errors.Is(err, etcdlock.ErrLost):
		w.excuse(ctx, "Txn", err)
		return true // certainly not
	default:
		w.counted("not added")
		return true
	}
	w.record.Op(op)
	return err == nil
}

// read reads the current set, or the one before.
func (w *worker) read(h *etcdlock.Held) {
	ctx, cancel := w.limit()
	defer cancel()
	w.mu.Lock()
	n := max(0, w.elements[w.name]-1-w.rng.IntN(8))
	w.mu.Unlock()
	op := history.SetOp{Worker: w.id, Set: setKey(w.name, n), Call: time.Now()}
	claim := history.Claim{Worker: w.id, Key: h.Key(), Token: h.Token()}
	resp, err := h.Txn(ctx).Then(clientv3.OpGet(op.Set)).Commit()
	op.Return = time.Now()
	if err != nil {
		if errors.Is(err, etcdlock.ErrLost) {
			w.excuse(ctx, "Txn", err)
		}
		return
	}
	op.Elements = elementsOf(w.t, resp.Responses[0].GetResponseRange().Kvs).Elements
	claim.Revision = resp.Header.Revision
	w.counted("read")
	w.record.Op(op)
	w.record.Claim(claim)
}

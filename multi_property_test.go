package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/test/harness"
)

const (
	multiSessions = 8
	multiWorkers  = 2 // of each session
	multiLocks    = 12
)

// A multiWorld checks what its workers do with some names.
type multiWorld struct {
	*testing.T
	c     *clientv3.Client
	names []string

	mu      sync.Mutex
	writers map[string]*Held          // who is in, by name
	readers map[string]map[*Held]bool // likewise
	written map[string]int64          // the highest token that was granted, to write
	granted map[string]int64          // and at all
	dead    map[*Session]bool
	grants  atomic.Int64
	errs    []string
}

func (w *multiWorld) problem(format string, args ...any) {
	w.errs = append(w.errs, fmt.Sprintf(format, args...))
}

// enter notes a grant. Nobody may be in whom it excludes, and nobody with a higher token may have been.
func (w *multiWorld) enter(h *Held, parts []Part) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.grants.Add(1)
	if w.dead[h.Session()] {
		return
	}
	for _, p := range parts {
		other, token := w.writers[p.name], h.Token()
		switch {
		case other != nil && other.Valid(): // else its process has stalled for longer than the TTL
			w.problem("%d is in %s while %d writes", token, p.name, other.Token())
		case p.kind != reading && w.readsLocked(p.name):
			w.problem("%d writes in %s while others read", token, p.name)
		case p.kind != reading && token < w.granted[p.name], token < w.written[p.name]:
			w.problem("%d is in %s after %d and %d", token, p.name, w.written[p.name], w.granted[p.name])
		}
		w.granted[p.name] = max(w.granted[p.name], token)
		if p.kind == reading {
			w.readers[p.name][h] = true
		} else {
			w.writers[p.name], w.written[p.name] = h, token
		}
	}
}

// readsLocked reports whether somebody reads in that name whose session lives.
func (w *multiWorld) readsLocked(name string) bool {
	for h := range w.readers[name] {
		if h.Valid() {
			return true
		}
	}
	return false
}

// leave notes that these holds are over, before they are.
func (w *multiWorld) leaveLocked(over func(*Held) bool) {
	for _, name := range w.names {
		if h := w.writers[name]; h != nil && over(h) {
			delete(w.writers, name)
		}
		for h := range w.readers[name] {
			if over(h) {
				delete(w.readers[name], h)
			}
		}
	}
}

// kill ends a session from outside: by revoking its lease, or now and then by letting it expire.
func (w *multiWorld) kill(s *Session) {
	w.mu.Lock()
	w.dead[s] = true
	w.leaveLocked(func(h *Held) bool { return h.Session() == s })
	w.mu.Unlock()
	if rand.N(20) == 0 {
		s.Orphan()
		return
	}
	_, err := w.c.Revoke(harness.Ctx(w), s.Lease())
	if err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) { // another worker has killed it too
		w.mu.Lock()
		w.problem("revoke: %v", err)
		w.mu.Unlock()
	}
}

// parts are 2 to 8 of the names, in any order, some of them to read.
func (w *multiWorld) parts() (parts []Part) {
	for _, i := range permutation(len(w.names))[:2+rand.N(7)] {
		if rand.N(3) == 0 {
			parts = append(parts, Read(w.names[i]))
		} else {
			parts = append(parts, Write(w.names[i]))
		}
	}
	return parts
}

// acquire does one acquisition, in any of the ways, and reports whether the session is at its end.
func (w *multiWorld) acquire(ctx context.Context, s *Session) (over bool) {
	parts := w.parts()
	m := NewMulti(s, parts...)
	var h *Held
	var err error
	switch rand.N(10) {
	case 0:
		h, err = m.TryLock(ctx)
	case 1: // it is given up, and may have been granted by then
		var tk *Ticket
		if tk, err = m.Enqueue(ctx); err == nil {
			err = tk.Cancel(ctx)
		}
		if err == nil {
			return false
		}
	case 2:
		short, cancel := context.WithTimeout(ctx, time.Duration(rand.N(20))*time.Millisecond)
		h, err = m.Lock(short)
		cancel()
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			return false
		}
	default:
		h, err = m.Lock(ctx)
	}
	switch {
	case err == nil:
		w.enter(h, parts)
		if rand.N(200) == 0 {
			w.kill(s)
		}
		w.mu.Lock()
		w.leaveLocked(func(o *Held) bool { return o == h })
		w.mu.Unlock()
		err = h.Unlock(ctx)
	case rand.N(200) == 0 && ctx.Err() == nil:
		w.kill(s)
	}
	switch {
	case err == nil, errors.Is(err, ErrLocked):
	case ctx.Err() != nil:
		return true
	case errors.Is(err, ErrSessionExpired), errors.Is(err, ErrSessionClosed):
		return true
	case errors.Is(err, ErrLost): // the lease is gone, which the session is about to hear
		select {
		case <-s.Done():
		case <-ctx.Done():
		}
		return true
	default:
		w.mu.Lock()
		defer w.mu.Unlock()
		w.problem("%v", err)
		return true
	}
	return false
}

// TestMulti_Property: whatever sets overlap, and whoever dies meanwhile, nobody is in with whom it excludes,
// each queue keeps its order, and nobody waits in a circle.
func TestMulti_Property(t *testing.T) {
	t.Parallel()
	w := &multiWorld{
		T: t, c: cluster.Client(t), names: multiNamesOf(t, multiLocks), dead: map[*Session]bool{},
		writers: map[string]*Held{}, readers: map[string]map[*Held]bool{}, written: map[string]int64{}, granted: map[string]int64{},
	}
	for _, name := range w.names {
		w.readers[name] = map[*Held]bool{}
	}
	grants := int64(40 * harness.Runs(t)) // ETCDLOCK_RUNS=250 for 10,000
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var workers sync.WaitGroup
	kills := atomic.Int64{}
	for range multiSessions {
		c := cluster.Client(t)
		workers.Go(func() {
			for ctx.Err() == nil { // a session after the other
				s, err := NewSession(ctx, c, WithTTL(2*time.Second))
				if err != nil {
					if ctx.Err() == nil {
						t.Error(err)
					}
					return
				}
				var own sync.WaitGroup
				for range multiWorkers {
					own.Go(func() {
						for ctx.Err() == nil && !w.acquire(ctx, s) {
						}
					})
				}
				own.Wait()
				kills.Add(1)
				_ = s.Close()
			}
		})
	}
	last, since := int64(0), time.Now()
	ticks := time.NewTicker(tick)
	defer ticks.Stop()
	for n := int64(0); (n < grants || kills.Load() == 0) && time.Since(since) < hang; n = w.grants.Load() {
		<-ticks.C
		if n > last {
			last, since = n, time.Now()
		}
	}
	died := kills.Load()
	cancel()
	workers.Wait()
	require.Empty(t, w.errs)
	require.GreaterOrEqual(t, w.grants.Load(), grants, "nobody has got in for %v", hang)
	require.Positive(t, died, "sessions were killed")
	t.Logf("%d acquisitions, %d sessions, %d deaths", w.grants.Load(), kills.Load(), died)
}

// The control: the same sets, locked by a Mutex each, one after the other in any order, end in a circle.
func TestMulti_PropertyControl(t *testing.T) {
	t.Parallel()
	w := &multiWorld{T: t, names: multiNamesOf(t, multiLocks)}
	ctx, cancel := context.WithCancel(context.Background())
	var workers sync.WaitGroup
	holder, waits := map[string]int{}, map[int]string{} // by name; by worker
	for i := range multiSessions {
		s := newTestSession(t, cluster.Client(t))
		workers.Go(func() {
			for ctx.Err() == nil {
				var held []*Held
				for _, p := range w.parts() {
					w.mu.Lock()
					waits[i] = p.name
					w.mu.Unlock()
					h, err := NewMutex(s, p.name).Lock(ctx)
					if err != nil {
						break // the circle was found
					}
					held = append(held, h)
					w.mu.Lock()
					holder[p.name] = i
					delete(waits, i)
					w.mu.Unlock()
				}
				for _, h := range held {
					w.mu.Lock()
					delete(holder, h.label())
					w.mu.Unlock()
					if err := h.Unlock(context.Background()); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	circle := func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		for first := range waits {
			at, n := first, 0
			for ; n <= multiSessions; n++ { // each holds what the one before it waits for, until it has its own
				next, held := holder[waits[at]]
				if _, waiting := waits[next]; !held || !waiting {
					break
				}
				at = next
			}
			if n > multiSessions {
				return true
			}
		}
		return false
	}
	require.Eventually(t, circle, hang, tick, "locks that are taken one after the other wait in a circle")
	cancel()
	workers.Wait()
}

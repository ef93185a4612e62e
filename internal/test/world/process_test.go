package world

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
)

// A process has a session, which may have adopted the lease of the process before, or a Client.
type process struct {
	*world
	id     string
	s      *etcdlock.Session
	locks  *etcdlock.Client // without s
	sole   bool             // it adopts, and no other process has its lease
	client *clientv3.Client
	wire   *wire
	kill   func()
	turns  context.Context // of its locks
	work   sync.WaitGroup
	adopts sync.WaitGroup
	writes sync.WaitGroup // of the work and the adopted holds
	done   atomic.Bool    // the work
	dead   bool           // world.mu guards it
}

// start starts a process, which takes over the lease if that is there still.
func (w *world) start(id string, lease clientv3.LeaseID) *process {
	p := &process{world: w, id: id, turns: context.Background()}
	for p.client, p.wire, p.kill = w.connect(); ; lease = clientv3.NoLease {
		var err error
		p.s, err = etcdlock.NewSession(context.Background(), p.client, etcdlock.WithLease(lease), etcdlock.WithTTL(w.ttl), etcdlock.WithOwner(id))
		if err == nil {
			return p
		}
	}
}

// successors are processes one after the other, and each adopts the lease of the process before. Now and then two live on one
// lease, and do not adopt.
func (w *world) successors(line int) {
	var lease clientv3.LeaseID
	for generation := 1; !w.resting(); generation++ {
		p := w.start(fmt.Sprintf("p%d.%d", line, generation), lease)
		lease, p.sole = p.s.Lease(), true
		all := []*process{p}
		if w.dice.oneIn(6) {
			p.sole = false
			all = append(all, w.start(fmt.Sprintf("q%d.%d", line, generation), lease))
		}
		w.run(all...)
	}
}

// clients are processes one after the other which have a Client.
func (w *world) clients() {
	for generation := 1; !w.resting(); generation++ {
		p := &process{world: w, id: fmt.Sprintf("c%d", generation), turns: context.Background()}
		p.client, p.wire, p.kill = w.connect()
		p.locks = etcdlock.New(p.client, etcdlock.WithTTL(w.ttl), etcdlock.WithOwner(p.id))
		w.run(p)
	}
}

// run has processes take locks until they end.
func (w *world) run(all ...*process) {
	turns, stop := context.WithCancel(context.Background())
	defer stop()
	for _, p := range all {
		p.turns = turns
		for range 3 {
			p.work.Go(func() {
				for !w.resting() && !p.ended() {
					p.turn()
					_ = elapse(context.Background(), w.dice.upTo(50*time.Millisecond))
				}
			})
		}
		for range 2 {
			if p.sole {
				p.adopts.Go(p.adopt)
			}
		}
	}
	for end := time.Now().Add(w.dice.upTo(w.span)); !w.resting() && time.Now().Before(end) && !all[0].ended(); {
		_ = elapse(context.Background(), 100*time.Millisecond)
		if w.dice.oneIn(50) {
			w.f.BreakWatches()
		}
		if w.dice.oneIn(20) {
			w.f.Lag(int64(w.dice.n(6)))
		}
		if w.dice.oneIn(100) {
			all[0].wire.blocked.Store(time.Now().Add(w.dice.upTo(15 * time.Second)).UnixNano())
		}
		if w.breaks && w.dice.oneIn(8) {
			w.breakOne()
		}
		if w.breaks && w.dice.oneIn(200) {
			w.breakLease()
		}
	}
	rests := w.resting()
	for _, p := range all {
		if !rests {
			p.crash()
		}
	}
	if len(all) > 1 { // nobody adopts what is left on their lease, and what waits for that waits until they close
		stop()
	}
	for _, p := range all {
		p.work.Wait()
		p.done.Store(true)
		p.adopts.Wait()
		p.writes.Wait()
	}
	for _, p := range all {
		if rests && p.s != nil {
			_ = p.s.Close()
		}
		if p.locks != nil {
			_ = p.locks.Close()
		}
		p.kill()
	}
}

// crash kills the process, or has its session orphan the lease.
func (p *process) crash() {
	p.mu.Lock()
	p.noteLocked("%s ends", p.id)
	p.dead = true
	for h := range p.holds {
		if h.p == p {
			delete(p.holds, h)
		}
	}
	p.mu.Unlock()
	killed := p.s == nil || !p.dice.oneIn(3)
	if killed {
		p.kill()
	} else {
		began := time.Now()
		p.s.Orphan()
		killed = time.Since(began) >= 5*time.Second || errors.Is(p.s.Err(), etcdlock.ErrSessionExpired)
	}
	if p.mu.Lock(); killed && p.s != nil {
		p.killed[p.s.Lease()] = true
	}
	p.mu.Unlock()
}

// ended reports whether the process takes no locks any more. It does not call Err, which would end a session whose deadline has passed.
func (p *process) ended() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dead || p.s != nil && p.s.Context().Err() != nil
}

// ctx is that of a call.
func (p *process) ctx() (context.Context, context.CancelFunc) {
	patience := time.Hour
	if p.dice.oneIn(3) {
		patience = p.dice.upTo(2 * time.Second)
	}
	return context.WithTimeout(p.turns, patience)
}

// use does what holders do, and releases the hold.
func (p *process) use(h *etcdlock.Held, names map[string]bool, downgrades bool) {
	own, d := p.granted(h, names), p.dice
	if d.oneIn(4) {
		own.looksAt(h.Context())
	}
	for range d.n(3) {
		_ = elapse(context.Background(), d.upTo(50*time.Millisecond)*time.Duration(d.n(2)))
		for name, writes := range names {
			if writes {
				p.write(h, name)
			}
		}
	}
	if downgrades && d.oneIn(2) {
		p.mu.Lock()
		own.names = make(map[string]bool)
		for name := range names {
			own.names[name] = false
		}
		p.noteLocked("%v is downgraded", own)
		p.mu.Unlock()
		ctx, cancel := p.ctx()
		_ = h.Downgrade(ctx)
		cancel()
		_ = elapse(context.Background(), d.upTo(100*time.Millisecond))
	}
	p.dwell()
	own.leaves()
	if d.oneIn(2) {
		h.Release()
		return
	}
	ctx, cancel := p.ctx()
	defer cancel()
	err := h.Unlock(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	if errors.Is(err, etcdlock.ErrLost) && h.Session().Err() == nil && !p.brokenLocked(h) {
		p.failLocked("%v was lost, and nobody has removed it: %v", own, err)
	}
}

// dwell has a holder keep its lock, most often while the process does not reach etcd: its lease may expire.
func (p *process) dwell() {
	most := 3 * time.Second
	if p.wire.unblocked() > 0 && p.dice.oneIn(2) {
		most = 20 * time.Second
	} else if !p.dice.oneIn(25) {
		return
	}
	_ = elapse(context.Background(), p.dice.upTo(most))
}

// write writes the token, guarded by the hold: by Txn, or by a request that may be sent after the release.
func (p *process) write(h *etcdlock.Held, name string) {
	key := data + name
	get, put := clientv3.OpGet(key), clientv3.OpPut(key, strconv.FormatInt(h.Token(), 10))
	ctx, cancel := p.ctx()
	if len(h.Keys()) > 1 || p.dice.oneIn(2) { // the comparison of IsOwner is about one key only
		p.mu.Lock()
		p.txns++
		mark := fmt.Sprint(marks, p.txns)
		p.mu.Unlock()
		resp, err := h.Txn(ctx).Then(get, put, clientv3.OpPut(mark, "")).Commit()
		cancel()
		p.mu.Lock()
		defer p.mu.Unlock()
		if _, done := p.marked[mark]; err == nil && resp.Succeeded != done {
			p.failLocked("Txn of %v says %v, and etcd has carried it out: %v", h.Token(), resp.Succeeded, done)
		} else if err != nil && !errors.Is(err, etcdlock.ErrOutcomeUnknown) {
			if p.marked[mark] = false; done {
				p.failLocked("Txn of %v says %v, and etcd has carried it out", h.Token(), err)
			}
		}
		return
	}
	owner := h.IsOwner()
	p.writes.Go(func() {
		defer cancel()
		_ = elapse(ctx, p.dice.upTo(100*time.Millisecond))
		_, _ = p.client.Txn(ctx).If(owner).Then(get, put).Commit()
	})
}

// made are the locks of a name, and of all names together.
func (p *process) made(name string, parts []etcdlock.Part) (*etcdlock.Mutex, *etcdlock.RWMutex, *etcdlock.Multi) {
	if p.locks != nil {
		return p.locks.Mutex(name), p.locks.RWMutex(name), p.locks.Multi(parts...)
	}
	return etcdlock.NewMutex(p.s, name), etcdlock.NewRWMutex(p.s, name), etcdlock.NewMulti(p.s, parts...)
}

// turn is one acquisition.
func (p *process) turn() {
	ctx, cancel := p.ctx()
	defer cancel()
	all := make(map[string]bool)
	var parts []etcdlock.Part
	for _, name := range p.names {
		if all[name] = p.dice.oneIn(2); all[name] {
			parts = append(parts, etcdlock.Write(name))
		} else {
			parts = append(parts, etcdlock.Read(name))
		}
	}
	name := p.names[p.dice.n(len(p.names))]
	names, two, ticket := map[string]bool{name: true}, false, false
	m, rw, multi := p.made(name, parts)
	var h *etcdlock.Held
	var err error
	switch way := p.dice.n(11); way {
	case 0, 1:
		h, err = m.Lock(ctx)
	case 2, 3:
		h, err = rw.Lock(ctx)
		two = true
	case 4, 5:
		h, err = rw.RLock(ctx)
		names[name] = false
	case 6:
		h, err = multi.Lock(ctx)
		names = all
	case 7:
		h, err = m.TryLock(ctx)
	case 8:
		h, err = rw.TryRLock(ctx)
		names[name] = false
	case 9:
		var tk *etcdlock.Ticket
		if tk, err = rw.Enqueue(ctx); err == nil {
			if h, err = tk.Wait(ctx); err != nil {
				_ = tk.Cancel(ctx)
			}
		}
		two, ticket = true, true
	default: // two sessions of one lease must not use the same raw value
		h, err = m.Raw(p.id[:1]).Lock(ctx)
	}
	p.returned(ctx, "lock "+name)
	if err == nil {
		p.use(h, names, two)
	} else if ctx.Err() == nil && !errors.Is(err, etcdlock.ErrLocked) && (!p.breaks || !errors.Is(err, etcdlock.ErrLost)) && (!ticket || p.locks == nil) {
		p.refused(err)
	}
}

// returned is called when a call has returned.
func (p *process) returned(ctx context.Context, call string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if deadline, _ := ctx.Deadline(); time.Since(deadline) > 10*time.Millisecond {
		p.failLocked("%s of %s has returned %v after the end of its ctx", call, p.id, time.Since(deadline))
	}
}

// refused is called for an error that a process must not get while its session lives.
func (p *process) refused(err error) {
	if p.ended() {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failLocked("%s is told: %v", p.id, err)
}

// adopt adopts what the process before has left, and what of that comes late.
func (p *process) adopt() {
	for !p.done.Load() && !p.ended() {
		// Not for long: an entry may wait for an entry of another lease, which waits for an entry of this lease to be adopted.
		ctx, cancel := context.WithTimeout(context.Background(), p.dice.upTo(3*time.Second))
		name := p.names[p.dice.n(len(p.names))]
		h, err := p.s.Adopt(ctx, name)
		p.returned(ctx, "adopt "+name)
		switch {
		case err == nil:
			p.mu.Lock()
			p.adopted[h.Token()] = p.killed[p.s.Lease()]
			p.mu.Unlock()
			names := make(map[string]bool)
			for _, key := range h.Keys() {
				names[nameOf(key)] = writes(key)
			}
			p.use(h, names, len(names) == 1)
		case ctx.Err() == nil && !errors.Is(err, etcdlock.ErrNotFound) && (!p.breaks || !errors.Is(err, etcdlock.ErrLost)):
			p.refused(err)
		}
		cancel()
		_ = elapse(context.Background(), p.dice.upTo(500*time.Millisecond))
	}
}

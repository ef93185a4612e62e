package world

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
)

// A user is a process whose goroutines make every call that there is, also on the holds of each other, with ctxs that end at any
// moment. Its sessions have leases that nobody else has.
type user struct {
	*process
	quits  atomic.Bool // it takes no locks any more
	closed atomic.Bool // somebody has called, or calls, Close or Orphan
	orphan atomic.Bool

	// world.mu guards these.
	recent       []*hold // of its holds the last ones; some have ended
	leases       []clientv3.LeaseID
	grants, ends int // as the hooks tell
}

// users are processes one after the other.
func (w *world) users(line int) {
	for generation := 1; !w.resting(); generation++ {
		u := &user{process: &process{world: w, id: fmt.Sprintf("u%d.%d", line, generation), turns: context.Background()}}
		u.client, u.wire, u.kill = w.connect()
		opts := []etcdlock.Option{etcdlock.WithTTL(ttl * time.Second), etcdlock.WithOwner(u.id), etcdlock.WithHooks(u.hooks())}
		if w.dice.oneIn(2) {
			u.locks = etcdlock.New(u.client, opts...)
		} else {
			for u.s == nil {
				u.s, _ = etcdlock.NewSession(context.Background(), u.client, opts...)
			}
		}
		u.live()
	}
}

func (u *user) hooks() *etcdlock.Hooks {
	count := func(n *int) {
		u.mu.Lock()
		defer u.mu.Unlock()
		*n++
	}
	return &etcdlock.Hooks{
		SessionUp: func(i etcdlock.SessionUpInfo) {
			u.mu.Lock()
			defer u.mu.Unlock()
			u.leases = append(u.leases, i.Session.Lease())
		},
		Granted:  func(context.Context, etcdlock.GrantedInfo) { count(&u.grants) },
		Released: func(context.Context, etcdlock.ReleasedInfo) { count(&u.ends) },
		Lost:     func(context.Context, etcdlock.LostInfo) { count(&u.ends) },
	}
}

// stops reports whether the process takes no locks any more.
func (u *user) stops() bool { return u.resting() || u.quits.Load() || u.process.ended() }

// live has the goroutines of the process take locks, until it ends in one way or another.
func (u *user) live() {
	for range 4 {
		u.work.Go(func() {
			for !u.stops() {
				u.act()
				_ = elapse(context.Background(), u.dice.upTo(50*time.Millisecond))
			}
		})
	}
	u.work.Go(u.leads)
	for end := time.Now().Add(u.dice.upTo(u.span)); time.Now().Before(end) && !u.stops(); {
		_ = elapse(context.Background(), 100*time.Millisecond)
		u.suffer()
	}
	way := u.dice.n(4)
	switch {
	case u.resting():
		u.work.Wait()
		u.leavesNothing()
		u.close()
	case way == 0:
		u.crash()
	case way == 1:
		u.close()
		u.allEnd()
	case way == 2:
		u.orphans()
		u.allEnd()
	default:
		u.quits.Store(true)
	}
	u.work.Wait()
	u.writes.Wait()
	u.close()
	u.countHooks()
	u.kill()
}

// suffer has something go wrong, now and then.
func (u *user) suffer() {
	d := u.dice
	if d.oneIn(100) {
		u.wire.blocked.Store(time.Now().Add(d.upTo(15 * time.Second)).UnixNano())
	}
	if u.refuses && d.oneIn(20) {
		u.wire.trouble.Store([]*trouble{nil, {full: true}, {few: true}, {denied: u.names[d.n(len(u.names))]}}[d.n(4)])
	}
}

// close closes what the process has, and looks whether all of that has ended.
func (u *user) close() {
	u.quits.Store(true)
	u.closed.Store(true)
	u.mu.Lock()
	u.noteLocked("%s closes", u.id)
	u.mu.Unlock()
	end := u.locks.Close
	if u.s != nil {
		end = u.s.Close
	}
	began := time.Now()
	err := end()
	u.mu.Lock()
	defer u.mu.Unlock()
	if took := time.Since(began); took > 5*time.Second+10*time.Millisecond {
		u.failLocked("Close of %s took %v", u.id, took)
	}
	if err != nil || u.dead || u.orphan.Load() {
		return
	}
	for _, id := range u.leases {
		if _, lives := u.world.leases[id]; lives {
			u.failLocked("%s is closed, and its lease %x lives", u.id, int64(id))
		}
	}
}

// orphans calls Orphan, beside all other calls.
func (u *user) orphans() {
	u.quits.Store(true)
	u.closed.Store(true)
	u.orphan.Store(true)
	s := u.s
	if u.locks != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if s, _ = u.locks.Session(ctx); s == nil {
			u.close()
			return
		}
	}
	began := time.Now()
	s.Orphan()
	if took := time.Since(began); took > 5*time.Second+10*time.Millisecond {
		u.mu.Lock()
		defer u.mu.Unlock()
		u.failLocked("Orphan of %s took %v", u.id, took)
	}
	if u.locks != nil {
		u.close()
	}
}

// allEnd fails the world if calls go on that must have ended with the session.
func (u *user) allEnd() {
	_ = elapse(context.Background(), time.Second)
	u.mu.Lock()
	defer u.mu.Unlock()
	for c := range u.pending {
		if c.user == u && c.ends && time.Since(c.began) > 900*time.Millisecond {
			u.failLocked("%s, which began at %v, goes on, and the session has ended", c.what, c.began.Sub(u.world.begun))
		}
	}
}

// leavesNothing fails the world if something of the process stays in the queues when all of its calls have ended, nothing goes wrong
// and no late copy of a request is on its way.
func (u *user) leavesNothing() {
	_ = elapse(context.Background(), 31*time.Second)
	var left []string
	for range 40 {
		left = nil
		u.mu.Lock()
		for _, kv := range u.f.Keys("") {
			// A raw value that comes late stays: see "A lease that another process takes over" in docs/protocol.md.
			if raw := string(kv.Value) == u.id; !raw && slices.Contains(u.leases, clientv3.LeaseID(kv.Lease)) {
				left = append(left, fmt.Sprintf("%s (%s)", entryOf(string(kv.Key), kv.CreateRevision), kv.Value))
			}
		}
		u.mu.Unlock()
		if left == nil {
			return
		}
		_ = elapse(context.Background(), time.Second)
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.failLocked("%s has ended all calls, and left %v", u.id, left)
}

// countHooks fails the world if the hooks were not told how each hold has ended.
func (u *user) countHooks() {
	_ = elapse(context.Background(), time.Second)
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.grants != u.ends {
		u.failLocked("the hooks of %s were told of %d grants, and of %d ends", u.id, u.grants, u.ends)
	}
}

// A way is a lock that a user may take.
type way struct {
	what      string
	lock, try func(context.Context) (*etcdlock.Held, error)
	enqueue   func(context.Context) (*etcdlock.Ticket, error)
	do        func(context.Context, func(context.Context, *etcdlock.Held) error) error
	names     map[string]bool // true: it excludes everybody
	second    bool            // its holds can be downgraded
}

// way draws one.
func (u *user) way() *way {
	all := make(map[string]bool)
	var parts []etcdlock.Part
	for _, name := range u.names {
		switch u.dice.n(3) {
		case 0:
			all[name], parts = true, append(parts, etcdlock.Write(name))
		case 1:
			all[name], parts = false, append(parts, etcdlock.Read(name))
		}
	}
	name := u.names[u.dice.n(len(u.names))]
	m, rw, multi := u.made(name, parts)
	switch u.dice.n(8) {
	case 0:
		if len(parts) > 0 {
			return &way{fmt.Sprint("Multi ", all), multi.Lock, multi.TryLock, multi.Enqueue, multi.Do, all, false}
		}
		fallthrough
	case 1, 2:
		return &way{"Mutex " + name, m.Lock, m.TryLock, m.Enqueue, m.Do, map[string]bool{name: true}, false}
	case 3:
		m = m.Raw(u.id)
		return &way{"raw Mutex " + name, m.Lock, m.TryLock, m.Enqueue, m.Do, map[string]bool{name: true}, false}
	case 4, 5:
		return &way{"RWMutex " + name, rw.Lock, rw.TryLock, rw.Enqueue, rw.Do, map[string]bool{name: true}, true}
	default:
		return &way{"RWMutex read " + name, rw.RLock, rw.TryRLock, rw.REnqueue, rw.RDo, map[string]bool{name: false}, true}
	}
}

// has takes note of a hold.
func (u *user) has(h *etcdlock.Held, w *way) *hold {
	held := u.granted(h, maps.Clone(w.names))
	u.mu.Lock()
	defer u.mu.Unlock()
	held.downgrades = w.second
	u.recent = append(u.recent[max(0, len(u.recent)-7):], held)
	return held
}

// any is one of the recent holds.
func (u *user) any(or *hold) *hold {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.recent) == 0 {
		return or
	}
	return u.recent[u.dice.n(len(u.recent))]
}

// act makes a call, and what follows from it.
func (u *user) act() {
	w := u.way()
	switch u.dice.n(12) {
	case 0, 1, 2, 3:
		what, take := "lock ", w.lock
		if u.dice.oneIn(3) {
			what, take = "try ", w.try
		}
		c := u.begin(context.Background(), what+w.what, true)
		h, err := take(c)
		c.returned(0, time.Time{})
		may := u.wordsOfTaking(false)
		if what == "try " {
			may = append(may, etcdlock.ErrLocked)
		}
		c.judge(err, may...)
		if err == nil {
			own := u.has(h, w)
			u.uses(own)
			u.releases(own)
		}
	case 4, 5:
		u.ticket(w)
	case 6, 7, 8:
		u.do(w)
	case 9:
		if h := u.any(nil); h != nil {
			u.poke(h)
		}
	case 10:
		u.look()
	default:
		u.manage()
	}
}

// ticket takes a place in the queue, and waits for it, or gives it up.
func (u *user) ticket(w *way) {
	c := u.begin(context.Background(), "enqueue "+w.what, true)
	t, err := w.enqueue(c)
	c.returned(0, time.Time{})
	c.judge(err, u.wordsOfTaking(false)...)
	if err != nil {
		return
	}
	var cancelled atomic.Bool
	cancel := func() error {
		cancelled.Store(true)
		c := u.begin(context.Background(), "cancel "+w.what, false) // it waits until the lease is gone
		err := t.Cancel(c)
		c.returned(0, time.Time{})
		c.judge(err)
		return err
	}
	var beside sync.WaitGroup
	if u.dice.oneIn(3) {
		beside.Go(func() {
			_ = elapse(context.Background(), u.dice.upTo(time.Second))
			_ = cancel()
		})
	}
	may := func() (may []error) {
		if may = u.wordsOfTaking(true); cancelled.Load() {
			may = append(may, etcdlock.ErrNotHeld)
		}
		return may
	}
	var h *etcdlock.Held
	for gives := false; !gives && h == nil; gives = u.dice.oneIn(8) {
		switch u.dice.n(4) {
		case 0:
			_ = elapse(context.Background(), u.dice.upTo(100*time.Millisecond))
		case 1:
			c := u.begin(context.Background(), "ahead "+w.what, true)
			_, err := t.Ahead(c)
			c.returned(0, time.Time{})
			c.judge(err, may()...)
		default:
			c := u.begin(context.Background(), "wait "+w.what, true)
			h, err = t.Wait(c)
			c.returned(0, time.Time{})
			c.judge(err, may()...)
		}
	}
	if h == nil {
		_ = cancel()
		beside.Wait()
		late, err := t.Wait(context.Background())
		_, aerr := t.Ahead(context.Background())
		u.mu.Lock()
		defer u.mu.Unlock()
		if late != nil || err == nil || aerr == nil {
			u.failLocked("%s: a ticket for %s was cancelled, and Wait returns %v, and Ahead %v", u.id, w.what, err, aerr)
		}
		return
	}
	own := u.has(h, w)
	again, err := t.Wait(context.Background())
	if again != h || err != nil {
		u.mu.Lock()
		u.failLocked("%s: Wait returned a hold of %s, and returns another one: %v", u.id, w.what, err)
		u.mu.Unlock()
	}
	u.uses(own)
	u.releases(own)
	beside.Wait()
}

// do runs a function under a lock.
func (u *user) do(w *way) {
	var busy time.Time
	runs, fails, panics := 0, u.dice.oneIn(2), u.dice.oneIn(10)
	c := u.begin(context.Background(), "do "+w.what, false)
	err := func() (err error) {
		defer func() {
			if r := recover(); r != nil {
				if err, _ = r.(error); !errors.Is(err, errOwn) {
					panic(r)
				}
			}
		}()
		return w.do(c, func(ctx context.Context, h *etcdlock.Held) error {
			own := u.has(h, w)
			runs++
			defer func() {
				own.leaves()
				busy = time.Now()
			}()
			if u.dice.oneIn(2) {
				u.nested(ctx, w, own)
			}
			u.uses(own)
			if u.dice.oneIn(4) {
				_ = elapse(ctx, u.dice.upTo(time.Second))
			}
			if u.dice.oneIn(8) {
				u.releases(own)
			}
			switch {
			case panics:
				panic(errOwn)
			case fails:
				return errOwn
			}
			return nil
		})
	}()
	c.returned(250*time.Millisecond, busy)
	c.judge(err, append(u.wordsOfTaking(runs > 0), errOwn)...)
	if own := runs == 1 && (fails || panics); errors.Is(err, errOwn) != own || runs > 1 || runs == 0 && err == nil {
		u.mu.Lock()
		defer u.mu.Unlock()
		u.failLocked("%s has run its function %d times, which failed (%v), and returned %v", c.what, runs, own, err)
	}
}

// nested takes the lock that the caller has.
func (u *user) nested(ctx context.Context, w *way, own *hold) {
	took := func(h *etcdlock.Held, err error, want error, c *call) {
		if h != nil { // the own hold was released meanwhile
			again := u.has(h, w)
			u.releases(again)
		}
		c.judge(err, append(u.lossesOf(own), append(u.wordsOfTaking(false), want, etcdlock.ErrLocked)...)...)
		u.mu.Lock()
		defer u.mu.Unlock()
		if own.Err() == nil && own.left == 0 && !u.dead && !errors.Is(err, want) {
			u.failLocked("%s inside Do must return %v, and returns %v", c.what, want, err)
		}
	}
	switch u.dice.n(4) {
	case 0:
		c := u.begin(ctx, "nested lock "+w.what, true)
		h, err := w.lock(c)
		c.returned(0, time.Time{})
		took(h, err, etcdlock.ErrWouldDeadlock, c)
	case 1:
		c := u.begin(ctx, "nested try "+w.what, true)
		h, err := w.try(c)
		c.returned(0, time.Time{})
		took(h, err, etcdlock.ErrLocked, c)
	case 2:
		c := u.begin(ctx, "nested enqueue "+w.what, true)
		t, err := w.enqueue(c)
		c.returned(0, time.Time{})
		if err == nil {
			_ = t.Cancel(context.Background())
		}
		took(nil, err, etcdlock.ErrWouldDeadlock, c)
	default:
		var inner *etcdlock.Held
		var busy time.Time
		c := u.begin(ctx, "nested do "+w.what, false)
		err := w.do(c, func(_ context.Context, h *etcdlock.Held) error {
			if inner = h; h != own.Held { // that was released meanwhile
				u.has(h, w).leaves()
			} else {
				u.uses(own)
			}
			busy = time.Now()
			return nil
		})
		c.returned(250*time.Millisecond, busy)
		may := append(u.lossesOf(own), u.wordsOfTaking(false)...)
		if w.second { // somebody may have downgraded the hold
			may = append(may, etcdlock.ErrWouldDeadlock)
		}
		c.judge(err, may...)
		u.mu.Lock()
		defer u.mu.Unlock()
		if own.Err() == nil && own.left == 0 && !u.dead && !errors.Is(err, etcdlock.ErrWouldDeadlock) && (inner != own.Held || err != nil) {
			u.failLocked("%s inside Do has not run in the same hold: %v", c.what, err)
		}
	}
}

// leads runs an Elector.
func (u *user) leads() {
	name := u.names[u.dice.n(len(u.names))]
	overrun := etcdlock.WithOverrun(100*time.Millisecond, func(*etcdlock.Held) {})
	var e *etcdlock.Elector
	if u.locks != nil {
		e = u.locks.Elector(name, etcdlock.WithValue(u.id), overrun)
	} else {
		e = etcdlock.NewElector(u.s, name, etcdlock.WithValue(u.id), overrun)
	}
	for !u.stops() {
		var busy time.Time
		var last *hold
		c := u.begin(context.Background(), "run elector "+name, false)
		err := e.Run(c, func(ctx context.Context, term *etcdlock.Held) error {
			own := u.has(term, &way{names: map[string]bool{name: true}})
			defer func() {
				own.leaves()
				busy = time.Now()
			}()
			last = own
			u.uses(own)
			_ = elapse(ctx, u.dice.upTo(time.Second))
			if u.dice.oneIn(4) {
				_ = elapse(context.Background(), u.dice.upTo(500*time.Millisecond))
			}
			if u.dice.oneIn(8) {
				u.releases(own)
			}
			return errOwn
		})
		c.returned(ttl*time.Second+time.Second, busy)
		may := []error{errOwn}
		if u.s != nil && u.s.Err() != nil {
			may = append(may, u.s.Err())
		}
		c.judge(err, may...)
		u.mu.Lock()
		if err == nil || e.IsLeader() || last == nil && errors.Is(err, errOwn) {
			u.failLocked("%s has returned %v, and IsLeader is %v", c.what, err, e.IsLeader())
		}
		u.mu.Unlock()
		_ = elapse(context.Background(), u.dice.upTo(time.Second))
	}
}

// look looks at a queue from outside.
func (u *user) look() {
	locks, name, d := u.locks, u.names[u.dice.n(len(u.names))], u.dice
	if locks == nil {
		locks = etcdlock.New(u.client)
	}
	e := locks.Elector(name)
	var err error
	var may []error
	ctx, cancel := context.WithTimeout(context.Background(), d.upTo(5*time.Second))
	defer cancel()
	c := u.begin(ctx, "look at "+name, false)
	switch d.n(6) {
	case 0:
		_, err = locks.Inspect(c, name)
	case 1:
		for _, err = range locks.ListNames(c, "") {
			if err != nil {
				break
			}
		}
	case 2:
		if _, err = e.Leader(c); err != nil {
			may = append(may, etcdlock.ErrElectionNoLeader)
		}
	case 3, 4:
		last := int64(0)
		for q, werr := range locks.Watch(c, name) {
			if err = werr; err != nil || d.oneIn(10) || u.stops() {
				break
			}
			if q.Revision <= last {
				u.mu.Lock()
				u.failLocked("Watch of %s yields revision %d after %d", name, q.Revision, last)
				u.mu.Unlock()
			}
			last = q.Revision
		}
	default:
		for _, err = range e.Observe(c) {
			if err != nil || d.oneIn(4) || u.stops() {
				break
			}
		}
	}
	c.returned(0, time.Time{})
	c.judge(err, may...)
}

// manage does what is about the session, or removes an entry.
func (u *user) manage() {
	d := u.dice
	c := u.begin(context.Background(), "manage", false)
	switch {
	case u.breaks && d.oneIn(4):
		locks := etcdlock.New(u.client)
		q, err := locks.Inspect(c, u.names[d.n(len(u.names))])
		if err == nil && len(q.Entries) > 0 {
			e := q.Entries[d.n(len(q.Entries))]
			u.mu.Lock()
			u.removed[entryOf(e.Key, e.Token)] = true
			u.removed[entryOf(e.SharedKey, e.Token)] = true
			u.noteLocked("%s is broken", entryOf(e.Key, e.Token))
			u.mu.Unlock()
			err = locks.Break(c, e)
		}
		c.returned(0, time.Time{})
		c.judge(err, etcdlock.ErrNotFound)
	case u.locks != nil && d.oneIn(2):
		err := u.locks.Ready(c)
		c.returned(0, time.Time{})
		c.judge(err, etcdlock.ErrSessionExpired)
	default:
		s := u.s
		var err error
		if s == nil {
			s, err = u.locks.Session(c)
		}
		if err == nil {
			err = s.Refresh(c)
		}
		c.returned(0, time.Time{})
		c.judge(err, etcdlock.ErrSessionExpired)
		if err == nil && u.locks != nil && d.oneIn(10) { // the Client goes on in another session
			u.closed.Store(true)
			_ = s.Close()
		}
	}
}

package world

import (
	"context"
	"fmt"
	"slices"
	"strings"
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
		opts := []etcdlock.Option{etcdlock.WithTTL(w.ttl), etcdlock.WithOwner(u.id), etcdlock.WithHooks(u.hooks())}
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
	if u.dice.oneIn(6) {
		u.work.Go(u.crowds)
	}
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
	u.writesLate()
	began, late := time.Now(), make(map[string]int)
	for {
		_ = elapse(context.Background(), time.Second)
		u.mu.Lock()
		var left []string
		for _, kv := range u.f.Keys("") {
			entry := entryOf(string(kv.Key), kv.CreateRevision)
			if !slices.Contains(u.leases, clientv3.LeaseID(kv.Lease)) {
				continue
			}
			left = append(left, fmt.Sprintf("%s (%s)", entry, kv.Value))
			// The session looks for it every 4 s. After a refusal it waits longer.
			if late[entry]++; late[entry] > 12 && u.lates[entry] && !u.refuses {
				u.failLocked("%s does not remove %s, which was written late", u.id, entry)
			}
		}
		// What comes after the session has looked for it is removed when the session lists the keys of its lease.
		copies := time.Since(began) < 31*time.Second
		if left != nil && time.Since(began) > 41*time.Second+u.ttl {
			u.failLocked("%s has ended all calls, and left %v", u.id, left)
		}
		u.mu.Unlock()
		if left == nil && !copies || u.over.Load() {
			break
		}
	}
	u.freesKeys()
}

// writesLate has calls that get no answer, and whose entries are written late.
func (u *user) writesLate() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	u.wire.hangs.Store(true)
	defer u.wire.hangs.Store(false)
	var calls sync.WaitGroup
	for _, name := range slices.Concat(u.names, u.names) {
		m, _, _ := u.made(name, nil)
		calls.Go(func() {
			if h, err := m.Lock(ctx); err == nil {
				h.Release()
			}
		})
	}
	calls.Wait()
}

// freesKeys fails the world if a session does not use its keys again, although nothing of its entries is left or to come.
func (u *user) freesKeys() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for _, name := range u.names {
		m, _, _ := u.made(name, nil)
		h, err := m.Lock(ctx)
		if err != nil { // somebody else has it
			continue
		}
		if _, n, _ := strings.Cut(h.Key(), "-"); n > "4" || len(n) > 1 {
			u.mu.Lock()
			u.failLocked("nobody uses a lower key than %s", h.Key())
			u.mu.Unlock()
		}
		h.Release()
	}
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

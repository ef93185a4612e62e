// What users do beside their locks.

package world

import (
	"context"
	"time"

	"github.com/etcdlock/etcdlock"
)

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

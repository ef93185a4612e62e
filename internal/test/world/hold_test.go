package world

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
)

// uses does what holders do, with the hold and beside that with recent ones.
func (u *user) uses(own *hold) {
	if u.dice.oneIn(4) {
		own.looksAt(own.Context())
	}
	for range u.dice.n(4) {
		_ = elapse(context.Background(), u.dice.upTo(50*time.Millisecond)*time.Duration(u.dice.n(2)))
		if u.dice.oneIn(2) {
			u.poke(own)
		} else {
			u.poke(u.any(own))
		}
		u.mu.Lock()
		var writes []string
		for name, excludes := range own.names {
			if excludes {
				writes = append(writes, name)
			}
		}
		u.mu.Unlock()
		for _, name := range writes {
			if u.dice.oneIn(2) {
				u.write(own.Held, name)
			}
		}
	}
	u.dwell()
}

// releases releases a hold. Somebody may have done that before.
func (u *user) releases(own *hold) {
	u.mu.Lock()
	before := own.left
	u.mu.Unlock()
	own.leaves()
	if u.dice.oneIn(3) {
		own.Release()
	} else {
		c := u.begin(context.Background(), "unlock "+own.String(), true)
		err := own.Unlock(c)
		c.returned(0, time.Time{})
		may := u.lossesOf(own)
		u.mu.Lock()
		if before == 0 && own.left == 1 && !u.dead && errors.Is(err, etcdlock.ErrNotHeld) {
			u.failLocked("nobody else has released %v, and Unlock returns %v", own, err)
		}
		u.mu.Unlock()
		c.judge(err, may...)
		c.tellsOfTheLoss(err)
		c.requires(err != nil || own.inEtcd() == nil)
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if own.Err() == nil || own.Valid() {
		u.failLocked("%v was released, and its Err is %v, and Valid %v", own, own.Err(), own.Valid())
	}
}

// poke calls a method of a hold, which may have ended.
func (u *user) poke(own *hold) {
	h, d := own.Held, u.dice
	before := h.Err()
	way := d.n(13)
	c := u.begin(context.Background(), fmt.Sprintf("method %d of %v", way, own), way != 5)
	var err error
	asks := true
	may := []error{}
	switch way {
	case 0:
		there := own.inEtcd()
		err = h.Check(c)
		c.requires(err != nil || there != nil)
	case 1:
		err = h.SetValue(c, u.id)
		may = append(may, etcdlock.ErrOutcomeUnknown)
	case 2, 3:
		_, err = h.Txn(c).Then(clientv3.OpGet("nothing")).Commit()
		may = append(may, etcdlock.ErrOutcomeUnknown)
	case 4:
		if own.downgrades {
			u.mu.Lock()
			for name := range own.names {
				own.names[name] = false
			}
			u.noteLocked("%v is downgraded", own)
			u.mu.Unlock()
			err = h.Downgrade(c)
			c.requires(err != nil || !slices.ContainsFunc(own.inEtcd(), writes))
		} else {
			asks = false
		}
	case 5:
		asks = false
		resp, terr := u.client.Txn(c).If(h.IsOwner()).Then(clientv3.OpGet("nothing")).Commit()
		u.mu.Lock()
		if terr == nil && resp.Succeeded && before != nil {
			u.failLocked("%v had ended with %v, and a transaction with IsOwner has succeeded", own, before)
		}
		u.mu.Unlock()
	case 6:
		asks = false
		select {
		case <-h.Contended():
		case <-h.Done():
		case <-time.After(d.upTo(200 * time.Millisecond)):
		case <-c.Done():
		}
	case 7, 8:
		asks = false
		u.consistent(own)
	case 9:
		if asks = d.oneIn(4); asks {
			own.leaves()
			err = h.Unlock(c)
			c.requires(err != nil || own.inEtcd() == nil)
		}
	case 10:
		if asks = false; d.oneIn(4) {
			own.leaves()
			h.Release()
		}
	case 11:
		asks = false
		err = h.Session().Refresh(c)
		may = append(may, etcdlock.ErrSessionExpired)
	default:
		asks = false
		select {
		case <-h.Done():
		case <-time.After(d.upTo(100 * time.Millisecond)):
		case <-c.Done():
		}
		u.consistent(own)
	}
	c.returned(0, time.Time{})
	c.judge(err, append(may, u.lossesOf(own)...)...)
	if way != 11 {
		c.tellsOfTheLoss(err)
	}
	if before == nil || !asks {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	word := etcdlock.ErrLost
	if errors.Is(before, etcdlock.ErrNotHeld) {
		word = etcdlock.ErrNotHeld
	}
	if !errors.Is(err, word) {
		u.failLocked("%v had ended with %v, and %s returns %v", own, before, c.what, err)
	}
}

// consistent fails the world if what the hold tells of itself does not agree.
func (u *user) consistent(own *hold) {
	h := own.Held
	select {
	case <-h.Done():
	default:
		return
	}
	cause, err := context.Cause(h.Context()), h.Err()
	u.mu.Lock()
	defer u.mu.Unlock()
	if err == nil || cause == nil || !errors.Is(err, cause) || !errors.Is(cause, err) || h.Valid() {
		u.failLocked("%v: its Context has ended with %v, Err is %v, and Valid %v", own, cause, err, h.Valid())
	}
}

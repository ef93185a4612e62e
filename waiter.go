// The wait of an acquisition, from its place in the queue to its grant:
//
//  1. enlist puts each part into the session's waitlist of its name, before the txn is sent: the list must tell the keys
//     of the part from other sessions' keys.
//  2. enter notes the revision of the keys, and what the txn showed of each queue before it wrote them. A part that
//     nothing blocks there has its lock.
//  3. wait blocks until the waitlist grants each part. Behind other sessions' entries, internal/wait reads what blocks,
//     watches that from now on, and reads again behind the watch (I3). Behind an entry of its own session it asks nothing:
//     the lock goes from one to the next in memory (I1).
//  4. grant makes the acquisition held, if its caller still wants it and the lease can be vouched for (I4).
//
// An error of any step leads to abandon, in release.go, which removes the keys.
//
// Mutexes are taken in the order acquisition, session, list.

package etcdlock

import (
	"cmp"
	"context"
	"errors"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/wait"
	"github.com/etcdlock/etcdlock/internal/waitlist"
)

// join puts the acquisition into the queue, to be waited for.
func (h *Held) join(ctx context.Context) error {
	err := h.prepare(ctx)
	if err == nil {
		err = h.enqueue(ctx)
	}
	if err == nil {
		h.notifyEnqueued()
	}
	return err
}

// prepare reserves the keys, and takes the acquisition's place in the lists. Before a raw value is written on an adopted
// lease, etcd has to show the present: the process before may have written the same, and a member that lags may not have
// shown that.
func (a *acquisition) prepare(ctx context.Context) error {
	a.reserveKeys()
	a.enlist()
	if !a.raw() || !a.s.lease.Adopted {
		return nil
	}
	if _, err := a.s.etcd.ReadValues(ctx, a.s.lease.Ctx, a.allKeys()...); err != nil {
		return a.s.lease.Translate(err)
	}
	a.s.keys.ProvenRaw(a.allKeys()...)
	return nil
}

// wait waits for what is before the acquisition, for one part after the other, and grants it.
func (h *Held) wait(ctx context.Context) error {
	p := h.waitsFor()
	if p == nil && !h.acquiring.behind {
		return h.grant(ctx)
	}
	for ; p != nil; p = h.waitsFor() {
		h.s.ahead.Enter(ctx, p.name, h.rev)
		err := p.waitError(ctx, h.s.waits.Wait(ctx, p.own))
		h.s.ahead.Leave(p.name)
		if err != nil {
			return err
		}
		h.s.waits.Survey(ctx, h.places()...)
	}
	if err := h.confirm(ctx); err != nil {
		return err
	}
	return h.grant(ctx)
}

// waitsFor is the first part that does not have its lock yet, nil if all have.
func (a *acquisition) waitsFor() *part {
	for p := range a.all() {
		if !p.own.Granted() {
			return p
		}
	}
	return nil
}

// waitError is the error of a wait that has ended with err, in the words of callers. Of an entry that is gone it says
// whether the lease has taken it, and of a wait that was given up whom it has waited for.
func (p *part) waitError(ctx context.Context, err error) error {
	s := p.of.s
	switch {
	case errors.Is(err, wait.ErrGone):
		bound, unbind := etcd.Bind(ctx, s.lease.Ctx)
		s.lease.Confirm(bound)
		unbind()
		if ctx.Err() != nil {
			return s.lease.WaitError(ctx)
		}
		return cmp.Or(s.Err(), ErrLost)
	case err != nil && errors.Is(err, ctx.Err()) && s.Err() == nil:
		if ahead, ok := s.ahead.Ahead(p.name, p.mode.kind(), p.of.rev); ok {
			return &WaitError{ahead.Count, ahead.Holder, ahead.Token, ahead.Text, err}
		}
		return err
	}
	return s.lease.Translate(err)
}

// confirm reads whether all parts are there, after a wait: those that had the lock before the last one did may have
// been removed by others. Without this there may be no revision at which the acquisition had them all.
func (a *acquisition) confirm(ctx context.Context) error {
	if len(a.parts) == 1 {
		return nil
	}
	_, err := a.exists(ctx, a.s.lease.Ctx, 0, a.allKeys()...)
	return a.parts[0].waitError(ctx, err)
}

// grant makes the acquisition held, unless its owner does not want it anymore, or it can't be vouched for.
func (a *acquisition) grant(ctx context.Context) error {
	for ctx.Err() != nil || !a.s.lease.Valid() {
		switch {
		case ctx.Err() != nil:
			return a.s.lease.WaitError(ctx)
		case a.s.Err() != nil:
			return a.s.Err()
		}
		// The wall clock was set forward, or a renewal is late: the place is kept until there is one.
		if err := a.s.lease.Refresh(ctx); err != nil {
			return err
		}
	}
	a.mu.Lock()
	lost := a.waitsFor() != nil // a part had its lock, and lost it
	if !lost && a.transition(held) && !a.ambiguous && a.acquiring.trace == nil {
		a.acquiring = nil
	}
	a.mu.Unlock()
	if lost {
		return a.parts[0].waitError(ctx, wait.ErrGone)
	}
	return nil
}

// result is what becomes of an acquisition: the hold, or nothing if err is why there is none.
func (h *Held) result(err error) (*Held, error) {
	if err != nil {
		h.abandon(err)
		return nil, err
	}
	h.notifyGranted()
	return h, nil
}

// enlist makes the acquisition known in its session, before the txn that writes its keys is sent. Each part has a place
// in the list of its own queue, is granted there by itself, and wakes the one waiter of the acquisition.
func (a *acquisition) enlist() {
	for p := range a.all() {
		p.own = a.s.register(p)
		if first := a.parts[0].own; p.own != first {
			p.own.WakeWith(first)
		}
	}
}

// register gives the part a place in the list of its name, which is made if there is none. A list that has an entry is not
// forgotten.
func (s *Session) register(p *part) *waitlist.Entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.lists[p.name]
	if l == nil {
		l = s.waits.NewList(p.name, s.forgetList)
		s.lists[p.name] = l
	}
	return l.Register(p, p.mode.kind(), p.keys...)
}

// forgetList forgets the list of a name, if nobody needs it any more.
func (s *Session) forgetList(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.lists[name]; l != nil && l.Empty() {
		delete(s.lists, name)
	}
}

// rekey gives the acquisition other keys, since somebody else has those that it had.
func (a *acquisition) rekey() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.reserveKeys()
	for p := range a.all() {
		p.own.Rekey(p.keys...)
	}
}

// enter takes note that the acquisition is in the queue, at revision rev. replies say, for each part, what its txn showed
// before it wrote the keys; there are none if nobody knows.
func (a *acquisition) enter(rev int64, replies ...*pb.ResponseOp) {
	a.mu.Lock()
	a.rev = rev
	var gone []*waitlist.Entry
	for i := range a.parts {
		p := &a.parts[i]
		var seen *waitlist.Listing
		if len(replies) > 0 {
			seen = waitlist.Shown(rev, replies[i].GetResponseRange(), p.mode != readMode)
		}
		a.acquiring.behind = a.acquiring.behind || !seen.Clear(p.name, p.mode.kind())
		gone = append(gone, p.own.Enqueued(rev, seen)...)
	}
	a.mu.Unlock()
	markAllLost(gone, rev)
}

// goneBeside reports whether a part of the acquisition is gone, while another one waits.
func (a *acquisition) goneBeside() bool {
	for p := range a.all() {
		if _, err := p.own.Outcome(); errors.Is(err, wait.ErrGone) {
			return true
		}
	}
	return false
}

// places are those of the parts in their lists.
func (a *acquisition) places() (places []*waitlist.Entry) {
	for p := range a.all() {
		places = append(places, p.own)
	}
	return places
}

// Election of a leader, on a Mutex.

package etcdlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/inspect"
	"github.com/etcdlock/etcdlock/internal/keyspace"
	"github.com/etcdlock/etcdlock/internal/lead"
	"github.com/etcdlock/etcdlock/internal/queue"
)

// An Elector makes one process of many the leader of a name: the process that holds the [Mutex] of that name, and so the one that
// has waited longest. A term is one hold of the Mutex. An Elector is safe for concurrent use, and must not be copied.
type Elector struct {
	client  *Client    // for looking
	lock    *lock      // of its terms
	running sync.Mutex // held by Run
	lead    lead.Lead[*Held]
}

// Elector makes an Elector. It makes no request. A name or an option that is not valid is an error of every call. Its
// terms are in the Client's sessions.
func (c *Client) Elector(name string, opts ...ElectorOption) *Elector {
	e := &Elector{client: c, lock: newLock(c, name, writing)}
	e.lock.elect = true
	e.lead.Lost, e.lead.Released = ErrLost, ErrNotHeld
	e.lead.Campaign, e.lead.Resign, e.lead.TTL = e.campaign, e.resign, func(term *Held) time.Duration { return term.s.TTL() }
	for _, o := range opts {
		if o == nil {
			o = electorOption(func(e *Elector) { e.lock.err = errNilOption })
		}
		o.applyElector(e)
	}
	e.lock.err = cmp.Or(c.checkLook(name), e.lock.err)
	return e
}

// NewElector makes an Elector whose terms are in that session. It makes no request. Its Run returns when the session
// has ended, with ErrSessionExpired or ErrSessionClosed. In a session with WithLease, Run begins with
// [Session.Adopt]: if the process before led, this one goes on with its term and Token. If that process had the lock for
// reading, or in a [Multi], Run releases it and returns an error.
func NewElector(s *Session, name string, opts ...ElectorOption) *Elector {
	if s == nil {
		return &Elector{lock: &lock{queues: []keyspace.Queue{{Name: name}}, err: errNilSession}}
	}
	c := New(s.Client())
	c.config = s.config
	e := c.Elector(name, opts...)
	e.lock.from = s
	return e
}

// An ElectorOption changes an Elector.
type ElectorOption interface{ applyElector(*Elector) }

type electorOption func(*Elector)

func (f electorOption) applyElector(e *Elector) { f(e) }

// WithOverrun has report called when lead has not returned within grace of the loss of its term: it may go on as if
// it led, while somebody else leads. report is called once for such a term, on a goroutine of its own, which Run
// waits for. report may well end the process. See also [Elector.Check].
func WithOverrun(grace time.Duration, report func(term *Held)) ElectorOption {
	return electorOption(func(e *Elector) {
		e.lead.Grace, e.lead.Overrun = grace, report
		if report == nil {
			e.lock.err = errors.New("WithOverrun has no function: leave it out")
		}
	})
}

// WithValue publishes a text with the candidacy, for example the address of this process: [Elector.Leader],
// [Elector.Observe], [Client.Inspect] and `etcdlock show` show it from the start, and [Held.SetValue] changes it during a
// term. WithOwner is of the Client and for people, WithValue of the Elector and for programs.
func WithValue(value string) ElectorOption {
	return electorOption(func(e *Elector) {
		e.lock.published = published{value: value}
		if !utf8.ValidString(value) {
			e.lock.err = errNotText
		}
	})
}

// Run waits until this process leads, runs lead on the caller's goroutine, and resigns when lead has returned. lead's ctx ends when
// ctx does, and when the term is lost, with the cause ErrLost: before anybody else can lead if the lease was not renewed, and within
// 500 ms if somebody removed the entry or the lease. lead protects what it writes by the [Held.Token] or [Held.Txn] of term.
//
// What Run does next depends on whether the term lasted until lead returned:
//
//   - It did: Run returns what lead returned, an error or nil, also if etcd can't confirm the resignation.
//   - It was lost: Run campaigns again, whatever lead returned, since most functions answer the end of their ctx with nil
//     or its error; another error is only logged (see WithLogger). Run campaigns at the end of the queue, in a new session if
//     the old one was lost, and after a pause that grows while terms are short (50 ms to 5 s, jittered).
//   - lead panics: Run resigns, and the panic goes on.
//
// If ctx ends while this process does not lead, Run returns ctx's error. Otherwise Run returns for lead's own reasons only, or
// with etcd's error if etcd refuses for good, for example for rights, but not while etcd is away, or has no space, or with
// ErrSessionClosed once the Client is closed.
//
// Run never calls lead again before the last call has returned, in this process. A lead that ignores the end of its
// ctx keeps Run from campaigning; if its term was lost, somebody else leads beside it. WithOverrun and Check report
// that. If ctx ended and the term was not lost, the process leads until lead returns.
//
// To resign is to unlock, so that the next candidate leads at once. Run blocks until etcd has confirmed the resignation, or
// that the place in the queue is gone, for a TTL at the most. Run does not block if lead has unlocked term itself, or if ctx ends
// before etcd has answered that there is a place: what is left of it is removed in the background, or by Close. So a process that ends
// should wait for Run, and then close the Client. An Elector has one Run at a time: another Run is an error.
//
// A campaign costs what [Mutex.Lock] does.
func (e *Elector) Run(ctx context.Context, lead func(ctx context.Context, term *Held) error) error {
	l := e.lock.made()
	err := l.err
	if n := l.loanIn(ctx); err == nil && n != nil {
		err = cmp.Or(n.Hold.Err(), ErrWouldDeadlock) // a campaign would begin anew if the hold was lost
	}
	switch {
	case err != nil:
	case lead == nil:
		err = errors.New("lead is nil")
	case !e.running.TryLock():
		err = errors.New("it runs already: make another Elector")
	default:
		defer e.running.Unlock()
		return e.lead.Run(ctx, e.client.config.log.With("elector", l.label()), func(inner context.Context, term *Held) error {
			inner, lent := term.lend(inner, ctx, true)
			defer lent.End()
			return lead(inner, term)
		})
	}
	return l.wrap("run elector", err)
}

// campaign waits for a term. If ctx ends first, campaign returns when etcd has confirmed that the place is gone, or after a TTL.
func (e *Elector) campaign(ctx context.Context) (*Held, error) {
	return acquire(ctx, e.lock, "campaign for", ErrWouldDeadlock, func(ctx context.Context, h *Held) (*Held, error) {
		if h.s.lease.Adopted {
			if term, err := e.adopt(ctx, h); !errors.Is(err, ErrNotFound) {
				return term, err
			}
		}
		return h.orLeave(ctx, h.take(ctx))
	})
}

// orLeave is conclude, and if ctx has ended, it returns when etcd has confirmed that the place in the queue is gone, or after a TTL.
func (h *Held) orLeave(ctx context.Context, err error) (*Held, error) {
	if err == nil {
		return h, nil
	}
	h.s.awaitAtEnd(ctx, h.abandon(err, ctx.Err() != nil))
	return nil, err
}

func (s *Session) awaitAtEnd(ctx context.Context, removed <-chan struct{}) {
	if ctx.Err() != nil {
		bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.TTL())
		defer cancel()
		s.awaitRemoved(bound, removed)
	}
}

// adopt takes up the term, or the place in the queue, that the process before has left on the lease.
func (e *Elector) adopt(ctx context.Context, h *Held) (*Held, error) {
	term, err := takeOver(ctx, h)
	switch {
	case term == nil:
		return nil, err
	case err != nil:
		return term.orLeave(ctx, err)
	case term.multi, term.parts()[0].Kind == reading:
		err = errors.New("the process before had the lock for reading, or in a Multi")
	case e.lock.published.value != "":
		err = term.setValue(ctx, e.lock.published.value)
	}
	if err != nil {
		h.s.awaitAtEnd(ctx, term.release())
	}
	return term, err
}

// resign releases the lock, and reports whether the term was lost before that.
func (e *Elector) resign(ctx context.Context, term *Held) (lost bool) {
	lasted := term.Err() == nil
	err := term.unlock(ctx)
	if lasted && (errors.Is(err, ErrSessionExpired) || errors.Is(err, ErrSessionClosed)) {
		return false // the session has lasted until now, and ended without etcd's answer
	}
	if lasted && err != nil && !errors.Is(err, ErrNotHeld) {
		e.client.config.log.Warn("resigned without etcd's confirmation", "elector", e.lock.label(), "error", err)
	}
	return errors.Is(err, ErrLost)
}

// IsLeader reports whether lead runs and its term can be vouched for at this moment, by [Held.Valid]. It makes no request.
func (e *Elector) IsLeader() bool {
	term, ok := e.lead.Term()
	return ok && term.Valid()
}

// Check returns an error if lead still runs although its term was lost more than grace ago, and so may act beside
// another leader: for a health check that has such a process restarted. It makes no request, and is nil in any other
// state, also if this process does not lead at all.
func (e *Elector) Check(grace time.Duration) error {
	term, over := e.lead.Over()
	if over <= max(grace, 0) {
		return nil
	}
	err := fmt.Errorf("lead has not returned, %v after its term was lost", over.Round(time.Millisecond))
	return e.lock.wrap("check elector", fmt.Errorf("%w: %w", err, lossOf(term.s.Err())))
}

// Leader is the entry of whoever leads at the moment: its Owner is what WithOwner says, and its Value what WithValue or SetValue do.
// It costs a linearizable read for each thousand keys in the queue, and has no TTLs; see [Client.Inspect]. Leader returns
// ErrElectionNoLeader if nobody leads, and blocks until etcd has answered, or ctx ends.
func (e *Elector) Leader(ctx context.Context) (Entry, error) {
	l := e.lock.made()
	name, err := l.label(), l.err
	var leader Entry
	if err == nil {
		var s *queue.Snapshot
		if s, err = inspect.Read(ctx, etcd.NewClient(e.client.etcd), name); err == nil {
			leader = leaderOf(s)
		}
	}
	if err == nil && leader == (Entry{}) {
		err = ErrElectionNoLeader
	}
	return leader, wrapNeeding("read", name+"/", "look for the leader of", name, err)
}

// leaderOf is the entry that leads, the zero Entry if none does: readers of the name, which an RWMutex makes, lead nobody.
func leaderOf(s *queue.Snapshot) (leader Entry) {
	if q := newQueue(s.First()); len(q.Entries) > 0 && !q.Entries[0].Read { // of all entries it would cost a hundred times as much
		leader = q.Entries[0]
	}
	return leader
}

// Observe yields the leader as it is, then again each time another one leads, or another term begins, or the leader
// publishes another value, or nobody leads any more, which is the zero Entry. What [Client.Watch] says of a slow loop,
// of outages, of the error that comes last, and of the cost goes for Observe too.
func (e *Elector) Observe(ctx context.Context) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		l := e.lock.made()
		if l.err != nil {
			yield(Entry{}, l.wrap("observe", l.err))
			return
		}
		first, last, name := true, Entry{}, l.label()
		for leader, err := range inspect.Follow(ctx, inspect.NewFollower(e.client.etcd, name), leaderOf) {
			if err == nil && !first && leader.Key == last.Key && leader.Token == last.Token && leader.ModRevision == last.ModRevision {
				continue // something changed behind it
			}
			if !yield(leader, wrapNeeding("read", name+"/", "watch", name, err)) {
				return
			}
			first, last = false, leader
		}
	}
}

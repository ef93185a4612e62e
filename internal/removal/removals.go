// Package removal removes entries from their queues. It repeats each removal until etcd has confirmed it; the sender decides
// which requests the removals share. It knows nothing of sessions and holds, nor of the use of a key after its removal.
package removal

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/queue"
	"github.com/etcdlock/etcdlock/internal/sender"
)

// Removals removes entries of one session from their queues, each until etcd has confirmed it or the lease is gone. The
// sender decides which requests the removals share; what etcd refuses is repeated here. It is safe for concurrent use.
type Removals struct {
	sender     *sender.Sender
	life       context.Context // of Remove
	background func(f func(ctx context.Context)) bool
	// Drains: Drain is about to be called, so the user of an entry that leaves hands nothing over before the removal is confirmed.
	Drains atomic.Bool

	mu      sync.Mutex
	pending int // removals that etcd has not confirmed
	// open are the removals that etcd has neither confirmed nor refused yet, but for those that came after Drain. drained is closed when
	// there are none, nil before Drain.
	open    int
	drained chan struct{}
}

// A Leaving is an entry on its way out of the queue.
type Leaving struct {
	Keys []string
	// Kept is another key of the entry, which stays, or empty. If it is not there, the request removes nothing, and the Result has no
	// Removed.
	Kept string
	Rev  int64
	Next []queue.Entry // those that the request is to look for
	// Now: another session may have the lock as soon as the entry is removed, or somebody waits for the removal.
	Now   bool
	Crowd bool  // many are removed at once, and share requests: see sender.Command
	Owner Owner // may be nil

	name      string
	by        *Removals
	first     sender.Command // that of Add; a request may have it for longer than the Leaving is used
	offered   *sender.Command
	ambiguous bool          // an earlier request may have removed it
	late      bool          // it came after Drain
	answered  bool          // etcd has confirmed or refused it
	result    Result        // once etcd has confirmed it
	over      bool          // Removed was called
	done      chan struct{} // closed then; nil if nobody waits
}

// An Owner is told what becomes of the removal of its entry.
type Owner interface {
	// Removed is called once, when etcd has confirmed the removal.
	Removed(r Result)
	// Refused is called when etcd refuses the removal, which goes on even so.
	Refused(err error)
}

// New makes the Removals of a session. life ends what waits in Remove. background runs a function in
// the background until the lease is gone, or returns false.
func New(life context.Context, s *sender.Sender, background func(f func(ctx context.Context)) bool) *Removals {
	return &Removals{sender: s, life: life, background: background}
}

// Add has an entry of the name wait for its removal. Remove or RemoveLater follows; the next request of the name may take
// the removal along before that.
func (r *Removals) Add(name string, l *Leaving) *Leaving {
	r.mu.Lock()
	r.pending++
	if l.late = r.drained != nil; !l.late {
		r.open++
	}
	r.mu.Unlock()
	l.name, l.by = name, r
	l.offer(&l.first)
	return l
}

// offer has the removal wait for company, as the command c, which is empty.
func (l *Leaving) offer(c *sender.Command) {
	l.command(c).To(l.name)
	c.Patient, c.Crowd, c.Through, c.Owner = !l.Now, l.Crowd, !l.late, l
	l.by.sender.Offer(c)
	l.offered = c
}

// command makes c, which is empty, the command that deletes the keys of the entry as far as they are at Rev, and looks for the
// entries Next.
func (l *Leaving) command(c *sender.Command) *sender.Command {
	next := find(l.Next)
	switch c.Did = removed; {
	case l.single(): // not nested, the most frequent case: etcd takes 3 % less for a cycle of Lock and Unlock
		c.Else = next
		c.If(CreatedAt(l.Keys[0], l.Rev))
		c.Add(next...)
		c.Add(deleteOp(l.Keys[0]))
		return c
	case l.Kept != "":
		c.If(CreatedAt(l.Kept, l.Rev))
	}
	c.Add(append(next, DeleteOps(l.Keys, l.Rev)...)...)
	return c
}

func (l *Leaving) single() bool { return len(l.Keys) == 1 && l.Kept == "" }

// resultOf is what etcd has answered to the command.
func (l *Leaving) resultOf(reply sender.Reply, ambiguous bool) Result {
	r := Result{At: reply.At, Ambiguous: ambiguous, Sought: l.Next}
	for i, reply := range reply.Responses {
		switch deleted := reply.GetResponseTxn(); {
		case i < len(l.Next):
			r.There = append(r.There, queue.Entries(reply.GetResponseRange().Kvs)...)
		case deleted != nil:
			r.Removed = append(r.Removed, deleted.Succeeded)
		}
	}
	switch {
	case !l.single():
	case reply.Succeeded:
		r.Removed = wasThere[:]
	default:
		r.Removed = wasNot[:]
	}
	return r
}

// Removed of a single key, which nobody changes.
var wasThere, wasNot = [1]bool{true}, [1]bool{}

// removed reports whether a command has removed a key, by itself or by a txn in it.
func removed(reply sender.Reply) bool {
	return slices.ContainsFunc(reply.Responses, func(r *pb.ResponseOp) bool {
		return r.GetResponseDeleteRange().GetDeleted() > 0 || r.GetResponseTxn().GetSucceeded()
	})
}

// Answered is told of the reply to the command: see sender.Owner.
func (l *Leaving) Answered(reply sender.Reply, ambiguous bool) {
	l.by.finish(l, l.resultOf(reply, ambiguous || l.ambiguous))
}

// Remove removes an entry that was added, and returns what etcd has answered. It blocks until etcd has confirmed
// the removal or refused, or ctx, life or the client ends. After an error the removal goes on in the background.
func (r *Removals) Remove(ctx context.Context, l *Leaving) (Result, error) {
	err := r.remove(ctx, r.life, l)
	if err != nil {
		r.background(func(ctx context.Context) { r.insist(ctx, l, err) })
		return Result{}, err
	}
	return l.result, nil
}

// RemoveLater removes an entry that was added in the background. done is closed when etcd has confirmed that. What the
// caller does next may still take the removal along.
func (r *Removals) RemoveLater(l *Leaving) (done <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if l.done = make(chan struct{}); l.over {
		close(l.done)
		return l.done
	}
	r.background(func(ctx context.Context) { r.insist(ctx, l, r.remove(ctx, ctx, l)) })
	return l.done
}

// remove sends a removal, unless another request has taken the removal along. Etcd may refuse a removal because it looks for
// many entries: then it is sent anew, without them. Whoever waits behind reads what is there.
func (r *Removals) remove(ctx, life context.Context, l *Leaving) error {
	_, ambiguous, err := r.sender.Await(ctx, life, l.offered)
	if err == nil {
		return nil
	}
	if l.ambiguous = l.ambiguous || ambiguous; len(l.Next) > 0 && etcd.Refused(err) {
		l.Next = nil
		return r.again(ctx, life, l)
	}
	return err
}

// refusedMax is the longest pause between two attempts of a removal that etcd refuses.
const refusedMax = 10 * time.Second

// insist removes what a request that ended with err has not removed: at once if its caller has left. If etcd refuses, insist
// tries again after a pause, which grows: the refusal may pass.
func (r *Removals) insist(ctx context.Context, l *Leaving, err error) {
	if err != nil && !etcd.Refused(err) {
		err = r.again(ctx, ctx, l)
	}
	for pause := etcd.RetryMax; err != nil && ctx.Err() == nil; err = r.again(ctx, ctx, l) {
		if etcd.Refused(err) {
			r.answer(l)
			if l.Owner != nil {
				l.Owner.Refused(err)
			}
		}
		_ = etcd.Sleep(ctx, pause) // ctx is looked at by the request
		pause = min(2*pause, refusedMax)
	}
}

// again sends a removal anew.
func (r *Removals) again(ctx, life context.Context, l *Leaving) error {
	l.offer(&sender.Command{})
	return r.remove(ctx, life, l)
}

func (r *Removals) finish(l *Leaving, got Result) {
	if l.result = got; l.Owner != nil {
		l.Owner.Removed(got)
	}
	r.answer(l)
	r.mu.Lock()
	defer r.mu.Unlock()
	l.over = true
	if l.done != nil {
		close(l.done)
	}
	r.pending--
}

// answer takes note that etcd has confirmed a removal, or refused it.
func (r *Removals) answer(l *Leaving) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if l.late || l.answered {
		return
	}
	l.answered = true
	if r.open--; r.open == 0 && r.drained != nil {
		close(r.drained)
	}
}

// Drain returns what is closed when etcd has confirmed or refused each removal that was added before. Their requests go through an
// etcd.Client that drains; those of later removals do not.
func (r *Removals) Drain() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.drained == nil {
		if r.drained = make(chan struct{}); r.open == 0 {
			close(r.drained)
		}
	}
	return r.drained
}

// Any reports whether a removal waits or is on its way. It is for tests.
func (r *Removals) Any() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pending > 0
}

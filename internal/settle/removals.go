// Which removals go in one request: those of one session from one queue.

package settle

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/sender"
)

// Removals removes entries of one session from their queues, each until etcd has confirmed it or the lease
// is gone. What is wanted of one name at the same time goes in one request:
//
//   - An entry is removed at once if somebody may get the lock by that (Now), or if no other request of the name
//     that writes is on its way.
//   - Else the removal waits for the reply to that request, one commit. While the lock goes from one entry of
//     the session to the next in memory, nobody else gets it any sooner by a removal in between.
//   - Each request takes along what waits, up to etcd.Batch operations, and so does the txn that writes the next
//     entry of the name: see Take. What etcd refuses together, it may allow less, is removed one by one.
//
// It is safe for concurrent use.
type Removals struct {
	etcd       *etcd.Client
	sender     *sender.Sender
	life       context.Context // of Remove
	background func(f func(ctx context.Context)) bool
	ended      func(ctx context.Context) error // is the error of a wait whose ctx has ended

	mu    sync.Mutex
	names map[string]*removals
}

// removals are those of one name. A name without removals has none.
type removals struct {
	waiting []*Leaving // by revision: the lower ones are in the way of more
	sent    int        // requests that are on their way
}

// NewRemovals makes the Removals of a session. life ends what waits in Remove. background runs a function in
// the background until the lease is gone, or returns false. ended is the error of a wait whose ctx has ended.
func NewRemovals(life context.Context, client *etcd.Client, s *sender.Sender, background func(f func(ctx context.Context)) bool, ended func(ctx context.Context) error) *Removals {
	return &Removals{etcd: client, sender: s, life: life, background: background, ended: ended, names: make(map[string]*removals)}
}

// Add has an entry of the name wait for its removal. Remove or RemoveLater follows; others may take the entry
// along before that.
func (r *Removals) Add(name string, l *Leaving) *Leaving {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.addLocked(name, l)
	return l
}

func (r *Removals) addLocked(name string, l *Leaving) {
	n := r.names[name]
	if n == nil {
		n = &removals{}
		r.names[name] = n
	}
	i, _ := slices.BinarySearchFunc(n.waiting, l.Rev, func(o *Leaving, rev int64) int { return cmp.Compare(o.Rev, rev) })
	n.waiting = slices.Insert(n.waiting, i, l)
}

// Remove removes an entry that was added, and returns what etcd has answered. It blocks until etcd has confirmed
// the removal or refused, or ctx, life or the client ends. After an error the removal goes on in the background.
func (r *Removals) Remove(ctx context.Context, name string, l *Leaving) (Removal, error) {
	switch b := r.takeFor(name, l); len(b) {
	case 0:
	case 1: // by itself, with ctx: an Unlock takes less time
		defer r.Replied(name)
		if ambiguous, err := r.request(ctx, r.life, name, b); err != nil {
			r.Return(name, b, ambiguous)
			return Removal{}, err
		}
		return l.removal, nil
	default:
		r.background(func(ctx context.Context) { r.send(ctx, name, b) })
	}
	select {
	case <-l.done:
		return l.removal, nil
	case err := <-l.failed:
		return Removal{}, err
	case <-ctx.Done():
		return Removal{}, r.ended(ctx)
	case <-r.life.Done():
		return Removal{}, context.Cause(r.life)
	case <-r.etcd.Ctx().Done():
		return Removal{}, etcd.ErrClientClosed
	}
}

// RemoveLater removes an entry that was added in the background. done is closed when etcd has confirmed that.
func (r *Removals) RemoveLater(name string, l *Leaving) (done <-chan struct{}) {
	r.mu.Lock()
	l.share()
	r.mu.Unlock()
	r.background(func(ctx context.Context) { r.send(ctx, name, r.takeFor(name, l)) })
	return l.done
}

// Replied takes note that a request of the name has come to its end, and has those sent that waited for it.
func (r *Removals) Replied(name string) {
	if b := r.next(name); len(b) > 0 {
		r.background(func(ctx context.Context) { r.send(ctx, name, b) })
	}
}

// send removes a batch, and after it what waits then.
func (r *Removals) send(ctx context.Context, name string, b Batch) {
	for ; len(b) > 0; b = r.next(name) {
		r.remove(ctx, name, b)
	}
}

// next is what must be sent when a request of the name has come to its end: nothing while another one is on its way.
func (r *Removals) next(name string) (b Batch) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.names[name]
	n.sent--
	if len(n.waiting) > 0 && n.sent == 0 {
		n.waiting[0].share()
		b = n.take(n.waiting[0])
	}
	r.forget(name)
	return b
}

// takeFor is what to send for l, an entry that waits: nothing if somebody has taken it along, or if there is
// a reply to wait for.
func (r *Removals) takeFor(name string, l *Leaving) Batch {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.names[name]
	now := func(l *Leaving) bool { return l.Now }
	if n == nil || !slices.Contains(n.waiting, l) {
		return nil
	}
	if n.sent > 0 && !l.returned && l.ops() <= etcd.Batch && !slices.ContainsFunc(n.waiting, now) {
		l.share()
		return nil
	}
	b := n.take(l)
	if len(b) > 1 {
		l.share()
	}
	return b
}

// take takes l for a request, and what else there is room for.
func (n *removals) take(l *Leaving) Batch {
	n.sent++
	n.waiting = slices.DeleteFunc(n.waiting, func(o *Leaving) bool { return o == l })
	return n.takeMore(Batch{l})
}

// Take takes what waits of the name for a txn that does more, as far as there is room. The caller sends Ops of
// it, and then calls Replied, and Done, or Return with what was not removed. Others are removed only when it has called
// Replied.
func (r *Removals) Take(name string) (b Batch) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.names[name]
	if n == nil {
		n = &removals{}
		r.names[name] = n
	}
	n.sent++
	return n.takeMore(nil)
}

// forget forgets the name if nothing of it is left.
func (r *Removals) forget(name string) {
	if n := r.names[name]; n.sent == 0 && len(n.waiting) == 0 {
		delete(r.names, name)
	}
}

// Return has a batch removed in the background. ambiguous says that it may have been.
func (r *Removals) Return(name string, b Batch, ambiguous bool) {
	r.mu.Lock()
	for _, l := range b {
		l.ambiguous, l.returned = l.ambiguous || ambiguous, true
		r.addLocked(name, l)
	}
	r.mu.Unlock()
	for _, l := range b {
		r.RemoveLater(name, l)
	}
}

// refusedMax is the longest pause between two attempts of a removal that etcd refuses.
const refusedMax = 10 * time.Second

// remove removes a batch. What etcd refuses is tried again after a pause, which grows, and for which nobody else waits: the
// refusal may pass.
func (r *Removals) remove(ctx context.Context, name string, b Batch) {
	ambiguous, err := r.request(ctx, nil, name, b)
	if err == nil {
		return
	}
	if r.etcd.Ctx().Err() != nil {
		err = etcd.ErrClientClosed
	}
	for _, l := range b {
		l.ambiguous = l.ambiguous || ambiguous
	}
	if len(b) > 1 && etcd.Refused(err) { // of one of them, or because they are many
		for i := range b {
			r.remove(ctx, name, b[i:i+1])
		}
		return
	}
	for _, l := range b {
		if l.Refused != nil && etcd.Refused(err) {
			l.Refused()
		}
		select {
		case l.failed <- err:
		default: // it was told of another one
		}
	}
	pause := etcd.RetryMax
	if etcd.Refused(err) { // it is alone
		pause = min(max(pause, 2*b[0].pause), refusedMax)
		b[0].pause = pause
	}
	r.background(func(ctx context.Context) {
		if etcd.Sleep(ctx, pause) == nil {
			r.Return(name, b, false)
		}
	})
}

// request sends one command for the batch. ctx and life, if there is one, end it.
func (r *Removals) request(ctx, life context.Context, name string, b Batch) (ambiguous bool, err error) {
	w := r.way(life, name)
	if len(b) == 1 {
		l := b[0]
		removal, err := remove(ctx, w, l.Keys, l.Rev, l.Next)
		if err != nil {
			return removal.Ambiguous, err
		}
		l.finish(removal)
		return false, nil
	}
	reply, ambiguous, err := w.send(ctx, &sender.Command{Then: b.Ops()})
	if err == nil {
		b.Done(reply.At, reply.Responses, ambiguous)
	}
	return ambiguous, err
}

func (r *Removals) way(life context.Context, name string) way {
	return way{r.etcd, etcd.Policy{Life: life, Hedge: true}, r.sender, []string{name}}
}

// Any reports whether a removal waits or is on its way. It is for tests.
func (r *Removals) Any() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.names) > 0
}

// One request, with one command or many.

package sender

import (
	"context"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
)

// alone sends a command by itself, un-nested, on the goroutine and with the ctx of its caller, which has taken a seat. aboard
// is how many commands are on their way, with this one.
func (s *Sender) alone(ctx, life context.Context, c *Command, aboard int) (r Reply, ambiguous bool, err error) {
	start := time.Now()
	r, ambiguous, err = Send(ctx, s.etcd, etcd.Policy{Life: life, Hedge: true, Through: c.Through}, c)
	s.mu.Lock()
	if err == nil && !ambiguous {
		s.pace.took(start, time.Now(), aboard)
	}
	s.limits.answeredAlone(c, err)
	s.arriveLocked(c)
	s.landLocked()
	s.mu.Unlock()
	if err == nil && c.Owner != nil {
		c.Owner.Answered(r, ambiguous)
	}
	return r, ambiguous, err
}

// Send sends a command by itself, and without a Sender.
func Send(ctx context.Context, client *etcd.Client, p etcd.Policy, c *Command) (r Reply, ambiguous bool, err error) {
	r, ambiguous, err = etcd.DoFirst(ctx, client, p, c, c.Did)
	// The first attempt that etcd carries out changes all that there is to change. So a reply that says that something was
	// changed is the reply to that attempt.
	return r, ambiguous && (err != nil || c.Did == nil || !c.Did(r)), err
}

// Call sends the command, un-nested: it is an etcd.Request.
func (c *Command) Call(ctx context.Context, client *etcd.Client) (Reply, error) {
	resp, err := client.Txn(ctx, func(t clientv3.Txn) clientv3.Txn {
		if len(c.Cmps) > 0 { // each of these allocates
			t = t.If(c.Cmps...)
		}
		if t = t.Then(c.Then...); len(c.Else) > 0 {
			t = t.Else(c.Else...)
		}
		return t
	})
	if err != nil {
		return Reply{}, err
	}
	return Reply{resp.Header.Revision, resp.Succeeded, resp.Responses}, nil
}

// A flight is a request on its way that many wait for.
type flight struct {
	*Sender
	commands []*Command
	cancel   context.CancelFunc
	wanted   int // commands whose callers wait
	calls    int // made
}

// fly sends commands that go together, and tells those that wait for them. leader, if any, is the command whose caller sends
// them: if that caller leaves, the other commands are sent anew.
func (s *Sender) fly(ctx, life context.Context, b []*Command, leader *Command) {
	cancel := func() {} // the leader's ctx ends it
	if leader == nil {
		ctx, cancel = context.WithCancel(ctx)
	}
	defer cancel()
	f := &flight{Sender: s, commands: b, cancel: cancel}
	s.mu.Lock()
	aboard := s.aboard
	for _, c := range b {
		if c.state == sent {
			c.flight = f
			f.wanted++
		}
	}
	s.mu.Unlock()
	start, through := time.Now(), slices.ContainsFunc(b, func(c *Command) bool { return c.Through })
	_, ambiguous, err := etcd.DoFirst(ctx, s.etcd, etcd.Policy{Life: life, Hedge: true, Through: through}, f, s.allDid)
	s.mu.Lock()
	for _, c := range b {
		s.arriveLocked(c)
	}
	if err == nil && f.calls == 1 {
		s.pace.took(start, time.Now(), aboard)
	}
	s.endLocked(b, leader, ambiguous, err)
	ended := slices.DeleteFunc(b, func(c *Command) bool { return c.state != over })
	s.mu.Unlock()
	for _, c := range ended {
		s.tell(c)
	}
}

// endLocked decides what becomes of the commands of a request. What etcd has refused together waits again, to go by itself: etcd may
// have refused one of the commands, or their number, and that must not harm the others. If the leader has left, the others wait again.
func (s *Sender) endLocked(b []*Command, leader *Command, ambiguous bool, err error) {
	apart := len(b) > 1 && etcd.Refused(err)
	switch {
	case len(b) == 1:
		s.limits.answeredAlone(b[0], err)
	case etcd.TooLarge(err):
		s.limits.tooMany(b, err)
	}
	for _, c := range b {
		switch {
		case c.state != sent:
		case c.reply.At != 0 && c.Did != nil && err == nil:
			c.overLocked(ambiguous, nil)
		case c.reply.At != 0: // an attempt may have been carried out after somebody has removed what an earlier attempt wrote
			c.overLocked(c.calls > 1, nil)
		case apart, leader != nil && c != leader:
			c.apart, c.ambiguous = apart, c.ambiguous || ambiguous || !etcd.NotCarriedOut(err)
			c.calls, c.flight, s.freed = 0, nil, s.freed || !apart
			s.queueLocked(c)
		default:
			c.overLocked(ambiguous || !etcd.Refused(err), err)
		}
	}
}

// Call makes an attempt to send the commands whose callers have not left, and no others. So what a caller gives up is
// written by no attempt that begins later, which is what the settling of late writes relies on.
func (f *flight) Call(ctx context.Context, _ *etcd.Client) (wanted []*Command, err error) {
	f.mu.Lock()
	f.calls++
	for _, c := range f.commands {
		if c.state == sent {
			c.calls++
			wanted = append(wanted, c)
		}
	}
	f.mu.Unlock()
	if len(wanted) == 0 {
		f.cancel()
		return nil, context.Canceled
	}
	return wanted, f.together(ctx, wanted)
}

// together is one attempt to send commands. It takes note of the reply to each. If a command has several replies, the reply
// counts that says that the command has changed something: it is that to the attempt that etcd has carried out first.
func (s *Sender) together(ctx context.Context, b []*Command) error {
	replies := make([]Reply, len(b))
	if len(b) == 1 {
		r, err := b[0].Call(ctx, s.etcd)
		if err != nil {
			return err
		}
		replies[0] = r
	} else {
		ops := make([]clientv3.Op, len(b))
		for i, c := range b {
			ops[i] = clientv3.OpTxn(c.Cmps, c.Then, c.Else)
		}
		resp, err := s.etcd.Txn(ctx, func(t clientv3.Txn) clientv3.Txn { return t.Then(ops...) })
		if err != nil {
			return err
		}
		for i := range b {
			t := resp.Responses[i].GetResponseTxn()
			replies[i] = Reply{resp.Header.Revision, t.Succeeded, t.Responses}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, c := range b {
		did := c.Did != nil && c.Did(replies[i])
		if c.reply.At == 0 || did && !c.changed {
			c.reply, c.changed = replies[i], did
		}
	}
	return nil
}

// allDid reports whether no reply of another attempt is needed for any command: see etcd.DoFirst.
func (s *Sender) allDid(b []*Command) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range b {
		if c.Did != nil && !c.changed {
			return false
		}
	}
	return true
}

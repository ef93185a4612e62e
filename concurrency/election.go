// An Election: the candidacy of a session.

package concurrency

import (
	"context"
	"errors"
	"strings"
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
)

// An Election is a name that sessions lead one at a time. All Elections of a session and a name share one candidacy. It
// is safe for concurrent use, and must not be copied.
type Election struct {
	s    *Session
	name string

	mu     sync.Mutex
	leads  bool           // since Campaign or ResumeElection
	hold   *etcdlock.Held // nil if the leader is another session's: see ResumeElection
	key    string
	rev    int64
	header *pb.ResponseHeader
}

// candidacy is that of a session for a name.
type candidacy struct {
	turn chan struct{} // held by whoever uses what follows
	hold *etcdlock.Held
	mod  int64 // the revision at which the value was last written, as far as is known
}

// NewElection makes an Election. It makes no request. The name may end in "/".
func NewElection(s *Session, pfx string) *Election { return &Election{s: s, name: pfx} }

// ResumeElection makes an Election whose leader is known: Proclaim and Resign go to that key. The name is that of
// leaderKey, "a" of "a/694d"; of another key it is pfx, without the "/" that etcd's package needs there.
func ResumeElection(s *Session, pfx string, leaderKey string, leaderRev int64) *Election {
	e := &Election{s: s, name: strings.TrimSuffix(pfx, "/"), leads: true, key: leaderKey, rev: leaderRev}
	if i := strings.LastIndexByte(leaderKey, '/'); i > 0 && strings.HasPrefix(leaderKey, e.name) {
		e.name = leaderKey[:i]
	}
	return e
}

// candidacy is that of the session for this name. done ends the turn of the caller.
func (s *Session) candidacy(ctx context.Context, name string) (c *candidacy, done func(), err error) {
	s.mu.Lock()
	c = s.candidacies[name]
	if c == nil {
		c = &candidacy{turn: make(chan struct{}, 1)}
		s.candidacies[name] = c
	}
	s.mu.Unlock()
	select {
	case c.turn <- struct{}{}:
		return c, func() { <-c.turn }, nil
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	}
}

// Campaign stands for election with that value, and waits until this session leads. If it leads already, through any
// Election of the session, it proclaims the value. In a session with WithLease it takes up the candidacy that hangs on
// the lease. When it returns an error, the candidacy is withdrawn in the background.
func (e *Election) Campaign(ctx context.Context, val string) error {
	c, done, err := e.s.candidacy(ctx, e.name)
	if err != nil {
		return err
	}
	defer done()
	header, err := c.campaign(ctx, e.s, e.name, val)
	if err != nil {
		return plain(ctx, err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.leads, e.hold, e.key, e.rev, e.header = true, c.hold, c.hold.Key(), c.hold.Token(), header
	return nil
}

func (c *candidacy) campaign(ctx context.Context, s *Session, name, val string) (*pb.ResponseHeader, error) {
	known := c.hold != nil && c.hold.Err() == nil
	if !known && s.adopted {
		h, err := s.inner.Adopt(ctx, name)
		if err != nil && !errors.Is(err, etcdlock.ErrNotFound) {
			return nil, err
		}
		if known = err == nil; known {
			c.hold, c.mod = h, h.Token()
		}
	}
	if known {
		return c.proclaim(ctx, val)
	}
	h, err := etcdlock.NewMutex(s.inner, name).Raw(val).Lock(ctx)
	if err != nil {
		return nil, err
	}
	c.hold, c.mod = h, h.Token()
	return &pb.ResponseHeader{Revision: h.Token()}, nil
}

// proclaim writes the value, unless somebody has written another one since the last that is known. So an attempt that
// comes late overwrites nothing.
func (c *candidacy) proclaim(ctx context.Context, val string) (*pb.ResponseHeader, error) {
	for sent := false; ; {
		key := c.hold.Key()
		resp, err := c.hold.Txn(ctx).
			If(clientv3.Compare(clientv3.ModRevision(key), "=", c.mod)).
			Then(clientv3.OpPut(key, val, clientv3.WithLease(c.hold.Session().Lease()))).
			Else(clientv3.OpGet(key)).Commit()
		switch {
		case errors.Is(err, etcdlock.ErrOutcomeUnknown) && ctx.Err() == nil && c.hold.Err() == nil:
			sent = true
		case err != nil:
			return nil, err
		case resp.Succeeded:
			c.mod = resp.Header.Revision
			return resp.Header, nil
		default:
			kv := resp.Responses[0].GetResponseRange().Kvs[0] // it is there: the transaction compares that
			if c.mod = kv.ModRevision; sent && string(kv.Value) == val {
				return resp.Header, nil
			}
		}
	}
}

// Proclaim publishes another value without another election. It returns ErrElectionNotLeader if this Election does not
// lead.
func (e *Election) Proclaim(ctx context.Context, val string) error {
	c, done, err := e.s.candidacy(ctx, e.name)
	if err != nil {
		return err
	}
	defer done()
	e.mu.Lock()
	leads, hold, key, rev := e.leads, e.hold, e.key, e.rev
	e.mu.Unlock()
	if hold == nil && c.leads(key, rev) {
		hold = c.hold
	}
	var header *pb.ResponseHeader
	switch {
	case !leads:
		return ErrElectionNotLeader
	case hold == nil:
		header, err = e.s.ifLeader(ctx, key, rev, clientv3.OpPut(key, val, clientv3.WithLease(e.s.Lease())))
	case hold != c.hold:
		err = ErrElectionNotLeader
	default:
		if header, err = c.proclaim(ctx, val); errors.Is(err, etcdlock.ErrLost) || errors.Is(err, etcdlock.ErrNotHeld) {
			err = ErrElectionNotLeader
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case err == nil:
		e.header = header
	case errors.Is(err, ErrElectionNotLeader) && e.key == key:
		e.key = ""
	}
	return plain(ctx, err)
}

// leads reports whether the session leads with that entry.
func (c *candidacy) leads(key string, rev int64) bool {
	return c.hold != nil && c.hold.Err() == nil && c.hold.Key() == key && c.hold.Token() == rev
}

// ifLeader does something if the entry of another session is there.
func (s *Session) ifLeader(ctx context.Context, key string, rev int64, op clientv3.Op) (*pb.ResponseHeader, error) {
	if key == "" {
		return nil, ErrElectionNotLeader
	}
	resp, err := s.Client().Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(key), "=", rev)).Then(op).Commit()
	switch {
	case err != nil:
		return nil, err
	case !resp.Succeeded:
		return nil, ErrElectionNotLeader
	}
	return resp.Header, nil
}

// Resign ends the leadership, so that the next candidate leads. It returns nil if this Election does not lead. If ctx
// ends first the release goes on in the background.
func (e *Election) Resign(ctx context.Context) error {
	e.mu.Lock()
	leads, hold, key, rev := e.leads, e.hold, e.key, e.rev
	e.leads, e.hold, e.key = false, nil, ""
	e.mu.Unlock()
	if !leads {
		return nil
	}
	var err error
	if hold == nil {
		c, done, cerr := e.s.candidacy(ctx, e.name)
		if cerr != nil {
			return cerr
		}
		if c.leads(key, rev) {
			hold = c.hold
		}
		done()
	}
	if hold != nil {
		err = hold.Unlock(ctx)
	} else {
		_, err = e.s.ifLeader(ctx, key, rev, clientv3.OpDelete(key))
	}
	if errors.Is(err, etcdlock.ErrLost) || errors.Is(err, etcdlock.ErrNotHeld) || errors.Is(err, ErrElectionNotLeader) {
		return nil // it did not lead any more
	}
	return plain(ctx, err)
}

// Key is the key of the leadership, "" if this Election does not lead.
func (e *Election) Key() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.key
}

// Rev is the create revision of Key, which fences.
func (e *Election) Rev() int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.rev
}

// Header is that of the last proposal that succeeded: all of it after Proclaim, and the revision alone after a Campaign
// that was the first.
func (e *Election) Header() *pb.ResponseHeader {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.header
}

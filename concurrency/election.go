// An Election: the candidacy of a session.

package concurrency

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
)

// An Election is a name that sessions lead one at a time. All Elections of a session and a name share one candidacy. It
// is safe for concurrent use, and must not be copied.
type Election struct {
	s    *Session
	name string

	mu     sync.Mutex
	leads  bool  // since Campaign or ResumeElection
	term   *term // nil after ResumeElection
	key    string
	rev    int64
	header *pb.ResponseHeader
}

// A term is a leadership of this session, which may have ended.
type term struct {
	hold *etcdlock.Held
	mod  atomic.Int64 // the revision at which the value was last written, as far as is known
}

func newTerm(h *etcdlock.Held) *term {
	t := &term{hold: h}
	t.mod.Store(h.Token())
	return t
}

// NewElection makes an Election. It makes no request. The name may end in "/". A nil session is an error of every call.
func NewElection(s *Session, pfx string) *Election { return &Election{s: s, name: pfx} }

// ResumeElection makes an Election whose leader is known: Proclaim and Resign go to that key. The name is leaderKey's, "a" of
// "a/694d"; if leaderKey has another form, the name is pfx, without the "/" that etcd's package needs there.
func ResumeElection(s *Session, pfx string, leaderKey string, leaderRev int64) *Election {
	e := &Election{s: s, name: strings.TrimSuffix(pfx, "/"), leads: true, key: leaderKey, rev: leaderRev}
	if i := strings.LastIndexByte(leaderKey, '/'); i > 0 && strings.HasPrefix(leaderKey, e.name) {
		e.name = leaderKey[:i]
	}
	return e
}

// Campaign stands for election with that value, and waits until this session leads. If the session leads already, through any
// Election, Campaign proclaims the value, unless that is published already. In a session with WithLease it takes up the candidacy
// that hangs on the lease. When Campaign returns an error, the candidacy is withdrawn in the background, also one that it took up.
// But a session that led before the call goes on leading, with the old value or the new, until Resign.
func (e *Election) Campaign(ctx context.Context, val string) error {
	if e.s == nil {
		return errNilSession
	}
	c, done := e.s.candidacy(e.name)
	defer done()
	select {
	case c.turn <- struct{}{}:
		defer func() { <-c.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	defer e.s.inQueue(ctx)()
	t, header, err := c.campaign(ctx, e.s, e.name, val)
	if err != nil {
		return plain(ctx, err)
	}
	c.term.Store(t)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.leads, e.term, e.key, e.rev, e.header = true, t, t.hold.Key(), t.hold.Token(), header
	return nil
}

func (c *candidacy) campaign(ctx context.Context, s *Session, name, val string) (*term, *pb.ResponseHeader, error) {
	t, adopted := c.term.Load(), false
	if t != nil && t.hold.Err() != nil {
		t = nil
	}
	if t == nil && s.adopted {
		h, err := s.adopt(ctx, name)
		switch {
		case err == nil:
			t, adopted = newTerm(h), true
		case !errors.Is(err, etcdlock.ErrNotFound):
			return nil, nil, err
		}
	}
	if t != nil {
		header, err := t.proclaim(ctx, val, clientv3.Compare(clientv3.Value(t.hold.Key()), "!=", val))
		if !ended(err) {
			if err != nil && adopted {
				t.hold.Release() // no Election could resign
			}
			return t, header, err
		}
	}
	h, err := etcdlock.NewMutex(s.inner, name).Raw(val).Lock(ctx)
	if err != nil {
		return nil, nil, err
	}
	return newTerm(h), &pb.ResponseHeader{Revision: h.Token()}, nil
}

// ended reports whether an error says that the term has ended.
func ended(err error) bool {
	return errors.Is(err, etcdlock.ErrLost) || errors.Is(err, etcdlock.ErrNotHeld)
}

// proclaim writes the value, unless somebody has written another one since the last that is known. So an attempt that
// comes late overwrites nothing. A Campaign passes a comparison which says that the value is not there yet.
func (t *term) proclaim(ctx context.Context, val string, differs ...clientv3.Cmp) (*pb.ResponseHeader, error) {
	key := t.hold.Key()
	pause := 10 * time.Millisecond
	for sent := false; ; {
		resp, err := t.hold.Txn(ctx).
			If(append(differs, clientv3.Compare(clientv3.ModRevision(key), "=", t.mod.Load()))...).
			Then(clientv3.OpPut(key, val, clientv3.WithLease(t.hold.Session().Lease()))).
			Else(clientv3.OpGet(key)).Commit()
		switch {
		case errors.Is(err, etcdlock.ErrOutcomeUnknown) && !lasts(err):
			sent = true
			select { // the next transaction tells what has ended
			case <-time.After(pause):
			case <-ctx.Done():
			case <-t.hold.Session().Done():
			}
			pause = min(2*pause, 500*time.Millisecond)
		case err != nil:
			return nil, err
		case resp.Succeeded:
			t.mod.Store(resp.Header.Revision)
			return resp.Header, nil
		default:
			kv := resp.Responses[0].GetResponseRange().Kvs[0] // it is there: the transaction compares that
			if t.mod.Store(kv.ModRevision); (sent || differs != nil) && string(kv.Value) == val {
				return resp.Header, nil
			}
		}
	}
}

// lasts reports whether a repetition would have the same error: of a full etcd, or since the value is larger than etcd takes. The
// error of that is gRPC's, and has no type here.
func lasts(err error) bool {
	return errors.Is(err, rpctypes.ErrNoSpace) || strings.Contains(err.Error(), "larger than max")
}

// Proclaim publishes another value without another election. It returns ErrElectionNotLeader if this Election does not
// lead. If the session has ended, perhaps unknown to etcd, Proclaim asks etcd whether this Election leads, waits for the
// answer, and returns the error of ctx if there is none.
func (e *Election) Proclaim(ctx context.Context, val string) error {
	e.mu.Lock()
	leads, t, key, rev := e.leads, e.term, e.key, e.rev
	e.mu.Unlock()
	switch {
	case !leads:
		return ErrElectionNotLeader
	case e.s == nil:
		return errNilSession
	}
	if t == nil {
		t = e.resumed(rev)
	}
	var header *pb.ResponseHeader
	var err error
	if t != nil {
		header, err = t.proclaim(ctx, val)
	}
	switch {
	// The session may have ended since etcd did not answer. Then etcd alone can tell who leads.
	case t == nil || errors.Is(err, etcdlock.ErrLost) && e.s.inner.Err() != nil:
		header, err = e.s.ifLeader(ctx, key, rev, clientv3.OpPut(key, val, clientv3.WithLease(e.s.Lease())))
	case ended(err):
		err = ErrElectionNotLeader
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

// resumed is the term of this session that ResumeElection was given, nil if it is not this session's.
func (e *Election) resumed(rev int64) *term {
	c, done := e.s.candidacy(e.name)
	defer done()
	t := c.term.Load()
	if t == nil || t.hold.Token() != rev {
		return nil
	}
	return t
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
	leads, t, key, rev := e.leads, e.term, e.key, e.rev
	e.leads, e.term, e.key = false, nil, ""
	e.mu.Unlock()
	switch {
	case !leads:
		return nil
	case e.s == nil:
		return errNilSession
	}
	if t == nil {
		t = e.resumed(rev)
	}
	var err error
	if t != nil {
		_, done := e.s.candidacy(e.name)
		err = t.hold.Unlock(ctx)
		done()
	} else {
		_, err = e.s.ifLeader(ctx, key, rev, clientv3.OpDelete(key))
	}
	if ended(err) || errors.Is(err, ErrElectionNotLeader) {
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

// Header is the header of the last proposal that succeeded: all of it after Proclaim, and the revision alone after the first
// Campaign.
func (e *Election) Header() *pb.ResponseHeader {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.header
}

// The stream on which leases are renewed.

package etcd

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// ErrOpening says that a renewal was not sent because it would need another password check, and a stream for which there
// was one has yet to answer.
var ErrOpening = errors.New("the password is being checked, or a renewal has no answer")

// A KeepAlive renews leases for one user, on one stream that stays open: each new stream of a client with a password
// costs etcd a password check (55 ms of a core), a raft entry and a token. Only a renewal that is sent while another
// one has no answer gets a stream of its own, which the client's balancer gives to the next member. Of the streams that
// answer, one stays. It is safe for concurrent use.
//
// A stream has one renewal at a time. So its replies, which name no request, are those to that renewal.
//
// Not so behind `etcd grpc-proxy`. The proxy renews a lease by itself for as long as it has a stream for that lease, and
// passes etcd's reply to all who wait for one: see Shared. There each renewal has a stream of its own, which is closed
// after the answer. A stream that stays would be answered by renewals that the proxy has sent by itself.
//
// A KeepAlive knows a proxy by its answer to the renewal of NoLease: etcd answers with a TTL of 0, the proxy with one of
// -1. It asks once on each stream, after the first answer, until one leads to a proxy.
type KeepAlive struct {
	client *Client
	life   context.Context // of all streams
	// Broken tells that the stream that Stream named has ended.
	Broken chan struct{}

	mu      sync.Mutex
	kept    *keepAliveStream // for the next renewal, nil: open one
	opened  bool             // at least one stream
	direct  bool             // a stream leads to etcd itself
	relayed bool             // a stream leads to a proxy
	opening int              // streams that are being opened
	asking  int              // streams on which a renewal has no answer
	streams int              // that were opened
	answers int              // which of them has answered last, counted from 1; 0 when it has ended
	again   time.Time        // until then no other stream is opened beside those if that costs a password check
	closed  bool
	readers sync.WaitGroup
}

// NewKeepAlive makes a KeepAlive without a stream, which is used until life ends.
func NewKeepAlive(life context.Context, client *Client) *KeepAlive {
	return &KeepAlive{client: client, life: life, Broken: make(chan struct{}, 1)}
}

// Close waits for the goroutines, once life has ended.
func (k *KeepAlive) Close() {
	k.mu.Lock()
	k.closed = true
	k.mu.Unlock()
	k.readers.Wait()
}

// Shared reports whether etcd's answer to a renewal may be the answer to an earlier one: the streams lead to a proxy, or
// it is not known yet that they do not. All endpoints of a client are taken to be of one kind.
func (k *KeepAlive) Shared() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.relayed || k.opened && !k.direct
}

// Relayed reports whether the streams are known to lead to a proxy.
func (k *KeepAlive) Relayed() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.relayed
}

// Stream tells which stream has answered the last renewal: 0 if that has ended, or if none is known to lead to etcd. While it
// stays the same, the same process of etcd answers: nobody has restored a snapshot, for which all members are stopped.
func (k *KeepAlive) Stream() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.direct {
		return 0
	}
	return k.answers
}

// Renew asks once to renew a lease, and returns the TTL, which is not positive if the lease is gone. The client's own
// KeepAliveOnce repeats a failed request without a pause for as long as ctx lives.
func (k *KeepAlive) Renew(ctx context.Context, id clientv3.LeaseID) (ttl int64, err error) {
	if !k.client.hasConnection() {
		return k.client.renewInProcess(ctx, id)
	}
	k.mu.Lock()
	s := k.kept
	if s != nil && s.asked && !k.direct {
		s = nil // a proxy may have renewed on it by itself
	} else {
		k.kept = nil
	}
	k.mu.Unlock()
	var before error // of the renewal on s
	if s != nil {
		ttl, err = k.renewOn(ctx, s, id)
		if err == nil || ctx.Err() != nil || errors.Is(err, rpctypes.ErrPermissionDenied) {
			return ttl, err
		}
		before = err // the stream broke while nobody used it, or its token has expired: neither says anything of etcd
	}
	if s, err = k.open(ctx); err == nil {
		ttl, err = k.renewOn(ctx, s, id)
	}
	if sent := before != nil && !errors.Is(before, ErrNotSent); sent && (errors.Is(err, ErrNotSent) || errors.Is(err, ErrOpening)) {
		// Invariant (I4): the lease may not forget this renewal, since a proxy may have asked etcd because of it.
		err = fmt.Errorf("%s, after a renewal that was sent: %s", err.Error(), before.Error())
	}
	return ttl, err
}

// renewOn renews the lease on s, and keeps or closes s.
func (k *KeepAlive) renewOn(ctx context.Context, s *keepAliveStream, id clientv3.LeaseID) (ttl int64, err error) {
	defer context.AfterFunc(ctx, s.cancel)() // its reply might be taken for that to the next renewal
	before := k.client.shown.revision.Load()
	k.mu.Lock()
	k.again = time.Now().Add(k.patience())
	k.asking++
	k.mu.Unlock()
	resp, err := s.renew(id)
	k.mu.Lock()
	k.asking--
	k.mu.Unlock()
	if err != nil {
		s.cancel()
		return 0, RequestError(ctx, err)
	}
	k.client.hintsOfLease(ctx, resp.GetHeader(), before, resp.TTL <= 0)
	k.answered(s)
	if !s.asked && !k.Relayed() {
		s.asked = true
		_ = s.Send(&pb.LeaseKeepAliveRequest{ID: int64(clientv3.NoLease)}) // an error is the stream's end
	}
	k.keep(s)
	return resp.TTL, nil
}

// Prepare opens the stream for the first renewal if that costs a password check. Where many sessions begin together,
// those take their time, and there is more of it before the first renewal is due.
func (k *KeepAlive) Prepare(ctx context.Context) {
	if k.client.Username == "" || !k.client.hasConnection() {
		return
	}
	if s, err := k.open(ctx); err == nil {
		k.keep(s)
	}
}

// keep keeps s for the next renewal, or closes it.
func (k *KeepAlive) keep(s *keepAliveStream) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.relayed || k.kept != nil {
		s.cancel()
	} else {
		k.kept = s
	}
}

// open opens a stream. It may take as long as ctx: a member that hangs answers no password check. If an answer is late,
// that may be because etcd is busy with password checks, and more of them would make it slower. So another stream
// follows only after half of the time that was left until the deadline, and if there is only one member, never beside a
// password check.
func (k *KeepAlive) open(ctx context.Context) (*keepAliveStream, error) {
	k.mu.Lock()
	if k.closed {
		k.mu.Unlock()
		return nil, context.Cause(k.life)
	}
	if k.client.Username != "" && (k.opening > 0 && len(k.client.Endpoints()) == 1 || k.opening+k.asking > 0 && time.Now().Before(k.again)) {
		k.mu.Unlock()
		return nil, ErrOpening
	}
	k.again = time.Now().Add(k.patience())
	k.opening++
	k.opened = true
	k.readers.Add(1)
	k.streams++
	s := &keepAliveStream{n: k.streams, replies: make(chan *pb.LeaseKeepAliveResponse), ended: make(chan struct{})}
	k.mu.Unlock()
	var life context.Context
	life, s.cancel = context.WithCancel(k.life)
	unbind := context.AfterFunc(ctx, s.cancel)
	stream, err := clientv3.RetryLeaseClient(k.client.Client).LeaseKeepAlive(life)
	unbind()
	k.mu.Lock()
	k.opening--
	k.mu.Unlock()
	if err != nil {
		s.cancel()
		k.readers.Done()
		return nil, RequestError(ctx, err)
	}
	s.Lease_LeaseKeepAliveClient = stream
	go func() { // ends with the stream, with k.life at the latest
		defer k.readers.Done()
		k.read(s)
	}()
	return s, nil
}

// patience is how long a stream may take to open or to answer before another one is opened beside it.
func (k *KeepAlive) patience() time.Duration {
	if k.client.Deadline == nil || k.client.Deadline().IsZero() {
		return AttemptMin
	}
	return max(time.Until(k.client.Deadline())/2, RetryMax/2)
}

// read receives what comes on s until its end. An end that nobody waits for is noticed too.
func (k *KeepAlive) read(s *keepAliveStream) {
	defer s.cancel()
	for {
		resp, err := s.Recv()
		switch {
		case err != nil:
			s.err = err
			close(s.ended)
			k.mu.Lock()
			if k.kept == s {
				k.kept = nil
			}
			if k.answers == s.n {
				k.answers = 0
				select {
				case k.Broken <- struct{}{}:
				default: // it was told of another one
				}
			}
			k.mu.Unlock()
			return
		case resp.ID == int64(clientv3.NoLease):
			k.judge(s, resp.TTL == 0)
		default:
			select {
			case s.replies <- resp:
			case <-s.Context().Done():
			}
		}
	}
}

// answered notes that s has answered, if it has not ended.
func (k *KeepAlive) answered(s *keepAliveStream) {
	k.mu.Lock()
	defer k.mu.Unlock()
	select {
	case <-s.ended:
	default:
		k.answers = s.n
	}
}

// judge notes where s leads.
func (k *KeepAlive) judge(s *keepAliveStream, direct bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if direct {
		k.direct = true
		return
	}
	k.relayed = true
	if k.kept == s {
		k.kept = nil
		s.cancel()
	}
}

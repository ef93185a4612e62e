// How a lease is granted, adopted, asked after and revoked.

package lease

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
)

var (
	// errTooLate says that when the reply came, the lease had expired, or might have.
	errTooLate = errors.New("etcd's reply came when the lease might have expired")
	// errTaken says that somebody else has the lease.
	errTaken = errors.New("somebody else has a lease with the ID that was drawn")
)

// newID draws an ID: if the reply to a grant is lost, the lease can be found by this ID, and revoked. With an ID of etcd's
// choice, every lost reply leaks a lease.
//
// The system draws the ID, not math/rand: two clones of a virtual machine have the same state of math/rand, and would draw
// the same ID.
func newID() clientv3.LeaseID {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return clientv3.LeaseID(max(1, binary.NativeEndian.Uint64(b[:])>>1))
}

// Grant asks for the lease until etcd has answered or ctx ends. After an error no lease is left behind: a lease that an
// unanswered request may have created is revoked in the background.
//
// Each request has an ID of its own, unless the request before it was certainly not carried out. So a lease that exists is
// never taken for the lease of an earlier request. Else, if this virtual machine was cloned after the ID was drawn, the
// existing lease could be the clone's, and both would hold the same locks with the same tokens.
func (l *Lease) Grant(ctx context.Context, ttl time.Duration) error {
	seconds := int64((ttl-1)/time.Second + 1) // rounded up
	outage, before := l.Outages.Outage(""), l.Outages.All.Alarm()
	_, _, err := etcd.Do(ctx, l.Client, etcd.Policy{}, func(attempt context.Context) (struct{}, error) {
		sent := time.Now()
		id, granted, err := l.Client.GrantOnce(attempt, l.ID, seconds)
		switch {
		case errors.Is(err, rpctypes.ErrLeaseExist):
			l.ID, err = newID(), errTaken
		case errors.Is(err, etcd.ErrNotSent), etcd.Refused(err), etcd.NotCarriedOut(err):
		case err == nil && time.Now().Before(trustedUntil(sent, granted)):
			l.ID = id
			l.Record(sent, granted)
		default:
			l.revokeLate(id)
			l.ID, err = newID(), cmp.Or(err, errTooLate)
		}
		// A caller with little patience is no outage.
		if err != nil && !etcd.Refused(err) && (ctx.Err() == nil || time.Since(sent) >= etcd.RetryMax/2) {
			outage.Start(l.Client.Ctx(), err)
		}
		return struct{}{}, err
	})
	outage.Stop(etcd.Refused(err)) // else the log's next line is that a session is up
	l.Outages.Answered(before, "", err)
	l.Outages.Refused("grant a lease", err, func(op string, err error) error { return fmt.Errorf("%s: %w", op, err) })
	if err != nil {
		l.End(l.Expired, "not granted")
	}
	return l.Translate(err)
}

// Adopt renews a lease that another process was granted. The reply also tells the TTL.
func (l *Lease) Adopt(ctx context.Context) error {
	err := l.renewUntil(ctx, func(ctx context.Context) error {
		_, _, err := l.sendRenewal(ctx)
		return err
	})
	if err == nil && l.Err() != nil {
		err = errTooLate
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, l.Expired) && !errors.Is(err, errRefused) && !errors.Is(err, etcd.ErrClientClosed):
		err = rpctypes.ErrLeaseNotFound
	default:
		l.End(l.Expired, "not adopted")
		l.gone()
	}
	return fmt.Errorf("adopt lease %s: %w", l.String(), err)
}

// confirmTimeout bounds by how much Confirm may delay the news that a key of the lease is gone.
const confirmTimeout = 250 * time.Millisecond

// Confirm is called when a key of the lease is gone. It asks etcd whether the lease still exists, and if not, ends the use
// of the lease. It gives up when ctx ends, and after a quarter of a second.
//
// A renewal would not tell. If the leader's followers have carried out the revocation first, the leader goes on renewing
// until it has carried out the revocation itself (FastLeaseKeepAlive in etcd 3.7). Before the leader tells a time to live,
// it catches up.
func (l *Lease) Confirm(ctx context.Context) {
	start := time.Now()
	ctx, cancel := context.WithDeadline(ctx, start.Add(confirmTimeout))
	defer cancel()
	_ = l.confirm(ctx, start) // after an error nothing is known. The next renewal tells; the deadline stays as it is.
}

// AwaitConfirmed is Confirm that goes on until etcd has answered or refused, or ctx or l.Ctx ends.
func (l *Lease) AwaitConfirmed(ctx context.Context) {
	start := time.Now()
	_ = l.renewUntil(ctx, func(ctx context.Context) error { return l.confirm(ctx, start) })
}

// confirm asks once whether the lease exists, unless etcd has said so since start.
func (l *Lease) confirm(ctx context.Context, start time.Time) error {
	select {
	case l.confirmTurn <- struct{}{}:
		defer func() { <-l.confirmTurn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if l.confirmedAt.After(start) || l.Ctx.Err() != nil {
		return nil
	}
	asked := time.Now()
	lease, err := l.Client.TimeToLive(ctx, l.ID, false)
	switch {
	case err != nil:
	case lease.GrantedTTL == 0:
		l.NotFound()
	default:
		l.confirmedAt = asked
	}
	return err
}

// How a lease is granted, adopted, asked after and revoked.

package lease

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
)

// errTooLate says that when the reply came, the lease had expired, or might have.
var errTooLate = errors.New("etcd's reply came when the lease might have expired")

// newID is an ID of our own choice. That makes the request for a lease safe to repeat, and lets a lease be found again
// whose reply was lost. With an ID of etcd's choice, every lost reply leaks a lease.
func newID() clientv3.LeaseID { return clientv3.LeaseID(rand.Int64N(1<<63-1) + 1) }

// Grant asks for the lease until etcd has answered or ctx ends. After an error no lease is left behind: if it is not
// known whether one was granted, it is revoked in the background.
func (l *Lease) Grant(ctx context.Context, ttl time.Duration) error {
	seconds := int64((ttl-1)/time.Second + 1) // rounded up
	outage := l.Outages.Outage("")
	requests := 0 // that may be carried out
	_, ambiguous, err := etcd.Do(ctx, l.Client, etcd.Policy{}, func(attempt context.Context) (struct{}, error) {
		sent := time.Now()
		granted, err := l.Client.GrantOnce(attempt, l.ID, seconds)
		if !errors.Is(err, etcd.ErrNotSent) {
			requests++
		}
		if errors.Is(err, rpctypes.ErrLeaseExist) {
			sent = time.Now() // an earlier attempt's, whose reply was lost
			granted, err = l.KeepAlive(attempt)
		}
		switch {
		case err != nil:
		case !time.Now().Before(trustedUntil(sent, granted)):
			err = errTooLate
		default:
			l.Record(sent, granted)
		}
		// A caller with little patience is no outage.
		if err != nil && !etcd.Refused(err) && (ctx.Err() == nil || time.Since(sent) >= etcd.RetryMax/2) {
			outage.Start(l.Client.Ctx(), err)
		}
		return struct{}{}, err
	})
	outage.Stop(etcd.Refused(err)) // else the log's next line is that a session is up
	if err != nil {
		l.End(l.Expired, "not granted")
		if ambiguous && requests > 0 {
			l.Go(func(context.Context) { l.revokeUngranted(requests) })
		}
		return l.Translate(err)
	}
	return nil
}

// Adopt renews a lease that was granted elsewhere, which tells its TTL too.
func (l *Lease) Adopt(ctx context.Context) error {
	err := l.renewUntil(ctx, func(ctx context.Context) error {
		_, err := l.sendRenewal(ctx)
		return err
	})
	if err == nil && l.Err() != nil {
		err = errTooLate
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, l.Expired):
		err = rpctypes.ErrLeaseNotFound
	default:
		l.End(l.Expired, "not adopted")
		l.gone()
	}
	return fmt.Errorf("adopt lease %s: %w", l.String(), err)
}

// confirmTimeout bounds what asking after the lease may add to the news that a key of it is gone.
const confirmTimeout = 250 * time.Millisecond

// Confirm asks etcd after the lease, since a key of it is gone, and ends the use of the lease if that is what took the
// key. It gives up when ctx ends, and after a quarter of a second.
//
// To renew the lease would not tell: if the revocation came to the leader's followers first, the
// leader goes on renewing until it has carried it out itself (FastLeaseKeepAlive in etcd 3.7). It
// catches up before it tells a time to live.
func (l *Lease) Confirm(ctx context.Context) {
	start := time.Now()
	ctx, cancel := context.WithDeadline(ctx, start.Add(confirmTimeout))
	defer cancel()
	select {
	case l.confirmTurn <- struct{}{}:
		defer func() { <-l.confirmTurn }()
	case <-ctx.Done():
		return
	}
	if l.confirmedAt.After(start) || l.Ctx.Err() != nil {
		return
	}
	asked := time.Now()
	lease, err := l.Client.TimeToLive(ctx, l.ID)
	switch {
	case err != nil:
		// Nothing is known. The next renewal tells, and the deadline stands.
	case lease.GrantedTTL == 0:
		l.NotFound()
	default:
		l.confirmedAt = asked
	}
}

// revoke revokes the lease, for a TTL at most: it can't live longer. found says whether it was there.
func (l *Lease) revoke() (found bool, err error) {
	ctx, cancel := context.WithTimeout(l.Client.Ctx(), l.TTL)
	defer cancel()
	found, _, err = etcd.Do(ctx, l.Client, etcd.Policy{}, func(ctx context.Context) (bool, error) {
		_, err := l.Client.Revoke(ctx, l.ID)
		if errors.Is(err, rpctypes.ErrLeaseNotFound) {
			return false, nil
		}
		return true, err
	})
	return found, err
}

// revokeUngranted revokes a lease of which it is not known whether one of that many requests has granted it,
// again and again for a few seconds, since they may still be on their way. Close of a Client waits for it.
func (l *Lease) revokeUngranted(requests int) {
	found, err := l.revoke()
	for delay := 50 * time.Millisecond; delay < 2*time.Second; delay *= 2 {
		if err != nil || found && requests == 1 || etcd.Sleep(l.Gone, delay) != nil {
			return
		}
		found, err = l.revoke()
	}
}

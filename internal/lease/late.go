// The leases that unanswered requests may have granted, or may yet grant.

package lease

import (
	"context"
	"errors"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
)

const (
	lateFirst = 50 * time.Millisecond
	lateMax   = 5 * time.Second
	// A request for a lease that was given up may still be carried out for lateFor: three times as long as etcd lets a
	// request live. Close waits only lateClosing for such a lease.
	lateFor     = 20 * time.Second
	lateClosing = time.Second
)

// late is a lease that an unanswered request may have granted, or may yet grant.
type late struct {
	id    clientv3.LeaseID
	began time.Time
	gone  time.Time // from when on there is nothing to revoke: the lease has expired by itself
}

// revoke revokes a lease. found says whether it was there.
func (l *Lease) revoke(ctx context.Context, id clientv3.LeaseID) (found bool, err error) {
	found, _, err = etcd.Do(ctx, l.Client, etcd.Policy{}, func(ctx context.Context) (bool, error) {
		err := l.Client.RevokeOnce(ctx, id)
		if errors.Is(err, rpctypes.ErrLeaseNotFound) {
			return false, nil
		}
		return true, err
	})
	return found, err
}

// revokeLate revokes, in the background, a lease that an unanswered request may have granted, or may yet grant. The request
// may still be on its way, so etcd is asked again and again until it has found the lease. One goroutine asks for all such
// leases, one after the other: while etcd does not answer, each attempt to get a lease leaves one.
func (l *Lease) revokeLate(id clientv3.LeaseID) {
	now := time.Now()
	l.mu.Lock()
	l.lates = append(l.lates, late{id, now, now.Add(lateFor + l.TTL)})
	begin := !l.revokesLate
	l.revokesLate = true
	l.mu.Unlock()
	if begin {
		l.Go(func(context.Context) { l.revokeLates() }) // or the session is at its end, and etcd lets the lease expire
		return
	}
	select {
	case l.lateCame <- struct{}{}:
	default:
	}
}

// revokeLates ends when no such lease is left.
func (l *Lease) revokeLates() {
	closing := l.closing
	for delay, most := lateFirst, lateFor; ; {
		for _, o := range l.leftLates() {
			ctx, cancel := context.WithDeadline(l.Client.Ctx(), o.gone)
			found, err := l.revoke(ctx, o.id)
			cancel()
			if found || err != nil || time.Since(o.began) >= most {
				l.forgetLate(o.id)
			}
		}
		left := l.leftLates()
		if len(left) == 0 {
			return
		}
		for _, o := range left {
			delay = min(delay, max(0, time.Until(o.began.Add(most))))
		}
		pause := time.NewTimer(delay)
		select {
		case <-pause.C:
			delay = min(4*max(delay, lateFirst), lateMax)
		case <-l.lateCame:
			delay = lateFirst
		case <-closing:
			closing, delay, most = nil, lateFirst, lateClosing
		case <-l.Client.Ctx().Done():
		}
		pause.Stop()
	}
}

// leftLates are those that are left. If there are none, revokeLates ends.
func (l *Lease) leftLates() []late {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.revokesLate = len(l.lates) > 0
	return slices.Clone(l.lates)
}

func (l *Lease) forgetLate(id clientv3.LeaseID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lates = slices.DeleteFunc(l.lates, func(o late) bool { return o.id == id })
}

package lease

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A relay renews a lease as `etcd grpc-proxy` does. A loop of half a second asks etcd, which answers at once, when a
// third of the TTL has passed since etcd's last answer. That answer goes to all streams that wait. The relay forgets
// when etcd answered when it has no stream.
type relay struct {
	ttl time.Duration

	mu      sync.Mutex
	waiting []chan struct{} // of each stream
	due     time.Time       // before then the relay does not ask
	renewed time.Time       // when etcd answered last
	streams int             // since the start
}

func (r *relay) renew(ctx context.Context) (int64, error) {
	answered := make(chan struct{})
	r.mu.Lock()
	r.streams++
	r.waiting = append(r.waiting, answered)
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		for i, w := range r.waiting {
			if w == answered {
				r.waiting = append(r.waiting[:i], r.waiting[i+1:]...)
				break
			}
		}
		if len(r.waiting) == 0 {
			r.due = time.Time{}
		}
	}()
	select {
	case <-answered:
		return int64(r.ttl / time.Second), nil
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// loop runs until stop is closed, phase after now.
func (r *relay) loop(phase time.Duration, stop <-chan struct{}) {
	for pause := phase; ; pause = 500 * time.Millisecond {
		select {
		case <-time.After(pause):
		case <-stop:
			return
		}
		r.mu.Lock()
		if now := time.Now(); len(r.waiting) > 0 && r.due.Before(now) {
			r.renewed, r.due = now, now.Add(r.ttl/3)
			for _, w := range r.waiting {
				select {
				case <-w: // it has its answer, and is about to close
				default:
					close(w)
				}
			}
		}
		r.mu.Unlock()
	}
}

// Behind a proxy an answer takes up to half a second however well etcd is. A session of a short TTL does not take that
// for a member that hangs: four renewals a TTL are all that it sends, and its deadline is never later than etcd's.
func TestFault_J1_FewRenewalsBehindAProxy(t *testing.T) {
	for _, ttl := range []time.Duration{2 * time.Second, 3 * time.Second, 4 * time.Second, 10 * time.Second} {
		for phase := time.Duration(0); phase < 500*time.Millisecond; phase += 83 * time.Millisecond {
			synctest.Test(t, func(t *testing.T) {
				l := newLease(t, ttl)
				r := &relay{ttl: ttl}
				stop := make(chan struct{})
				l.wg.Go(func() { r.loop(phase, stop) })
				l.KeepAlive = r.renew
				l.Shared = func() bool { return true }
				l.Relayed = l.Shared
				began := time.Now()
				l.Record(began, int64(ttl/time.Second))
				l.Run()
				for time.Since(began) < 20*ttl {
					<-time.After(20 * time.Millisecond)
					require.NoError(t, l.Err(), "TTL %v, phase %v", ttl, phase)
					r.mu.Lock()
					if !r.renewed.IsZero() {
						require.False(t, l.Deadline().After(r.renewed.Add(ttl-ttl/10)), "etcd renewed the lease before")
					}
					r.mu.Unlock()
				}
				close(stop)
				finish(l)
				require.LessOrEqual(t, r.streams, 4*20, "TTL %v, phase %v", ttl, phase)
			})
		}
	}
}

// A renewal that fails behind a proxy is repeated as soon as elsewhere: the proxy has said that it can't renew the lease.
func TestFault_J1_FailureBehindAProxy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ttl = 3 * time.Second
		l := newLease(t, ttl)
		l.Shared = func() bool { return true }
		l.Relayed = l.Shared
		began := time.Now()
		back := began.Add(ttl/2 + 10*time.Millisecond)
		var renewed time.Time
		l.KeepAlive = func(context.Context) (int64, error) {
			if time.Now().Before(back) {
				return 0, errors.New("unavailable")
			}
			if renewed.IsZero() {
				renewed = time.Now()
			}
			return int64(ttl / time.Second), nil
		}
		l.Record(began, int64(ttl/time.Second))
		l.Run()
		<-time.After(2 * ttl)
		require.NoError(t, l.Err())
		require.Less(t, renewed.Sub(back), ttl/12)
		finish(l)
	})
}

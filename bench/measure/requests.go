package measure

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/etcdlock/etcdlock/bench/peer"
	"github.com/etcdlock/etcdlock/etcdtest"
)

// A Counter counts the requests of the clients that were made with its tap.
// Reads are told apart: a serializable one is answered by the member that is
// asked, a linearizable one asks the quorum first.
type Counter struct {
	Tap                                  *etcdtest.Tap
	serializable, linearizable, unwatchd atomic.Int64
}

// NewCounter returns a Counter whose Tap is not in any client yet.
func NewCounter() *Counter {
	c := &Counter{Tap: etcdtest.NewTap()}
	c.Tap.Every("Range", func(ctx context.Context, call *etcdtest.Call) error {
		if r, ok := call.Request.(*pb.RangeRequest); ok && r.Serializable {
			c.serializable.Add(1)
		} else {
			c.linearizable.Add(1)
		}
		return call.Send(ctx)
	})
	c.Tap.OnWatchRequest(func(_ context.Context, m *pb.WatchRequest) error {
		if m.GetCancelRequest() != nil {
			c.unwatchd.Add(1)
		}
		return nil
	})
	return c
}

// count is how many requests there were so far, by kind.
func (c *Counter) count() Values {
	return Values{
		"txns":               float64(c.Tap.Calls("Txn")),
		"puts":               float64(c.Tap.Calls("Put")),
		"deletes":            float64(c.Tap.Calls("DeleteRange")),
		"serializable_reads": float64(c.serializable.Load()),
		"linearizable_reads": float64(c.linearizable.Load()),
		"watches":            float64(len(c.Tap.WatchCreates())),
		"unwatches":          float64(c.unwatchd.Load()),
	}
}

// per is what was added since before, for each of n.
func (v Values) per(before Values, n int) Values {
	out := Values{}
	for k := range v {
		out[k] = (v[k] - before[k]) / float64(n)
	}
	return out
}

// Requests is how many requests an acquisition and its release make where
// nobody else wants the lock, or, with more than one session, where that many
// want it all the time and each keeps it for hold.
func Requests(ctx context.Context, p peer.Peer, c *Counter, sessions int, hold, d time.Duration) (v Values, err error) {
	ss, closeAll, err := open(ctx, p, sessions)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, closeAll()) }()
	lockers := mutexes(ss, newName())
	if sessions == 1 {
		const cycles = 200
		before := c.count()
		for range cycles {
			if _, err := cycle(ctx, lockers[0]); err != nil {
				return nil, err
			}
		}
		return c.count().per(before, cycles), nil
	}
	var before Values
	grants := -1
	_, err = contend(ctx, lockers, warmupFor(d), d, func(_ int, warm bool) {
		if warm {
			if grants++; grants == 0 {
				before = c.count()
			} else {
				v = c.count()
			}
		}
		time.Sleep(hold)
	}, func(int, bool) {})
	if err != nil || grants < 1 {
		return nil, err
	}
	return v.per(before, grants), nil
}

// Requests is how many requests there were so far, without the watches.
func (c *Counter) Requests() int { return c.Tap.Calls() }

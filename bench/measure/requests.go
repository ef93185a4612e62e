package measure

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/etcdlock/etcdlock/bench/peer"
	"github.com/etcdlock/etcdlock/etcdtest"
)

// A Counter counts the requests of the clients that were made with its tap. It
// separates two kinds of reads: a serializable read is answered by the member that was
// asked, a linearizable read asks the quorum first. A transaction that only reads
// counts as a read.
type Counter struct {
	Tap                                        *etcdtest.Tap
	txns, serializable, linearizable, unwatchd atomic.Int64
}

// NewCounter returns a Counter whose Tap is not used by any client yet.
func NewCounter() *Counter {
	c := &Counter{Tap: etcdtest.NewTap()}
	for _, method := range []string{"Range", "Txn"} {
		c.Tap.Every(method, func(ctx context.Context, call *etcdtest.Call) error {
			if reads, serializable := readsOnly(call.Request); serializable {
				c.serializable.Add(1)
			} else if reads {
				c.linearizable.Add(1)
			} else {
				c.txns.Add(1)
			}
			return call.Send(ctx)
		})
	}
	c.Tap.OnWatchRequest(func(_ context.Context, m *pb.WatchRequest) error {
		if m.GetCancelRequest() != nil {
			c.unwatchd.Add(1)
		}
		return nil
	})
	return c
}

// readsOnly reports whether a request only reads, and whether any member may answer
// it from its own state.
func readsOnly(request any) (reads, serializable bool) {
	switch r := request.(type) {
	case *pb.RangeRequest:
		return true, r.Serializable
	case *pb.TxnRequest:
		serializable = true
		for _, op := range slices.Concat(r.Success, r.Failure) {
			if op.GetRequestRange() == nil {
				return false, false
			}
			serializable = serializable && op.GetRequestRange().Serializable
		}
		return true, serializable
	}
	return false, false
}

// count returns how many requests there were so far, by kind.
func (c *Counter) count() Values {
	return Values{
		"txns":               float64(c.txns.Load()),
		"puts":               float64(c.Tap.Calls("Put")),
		"deletes":            float64(c.Tap.Calls("DeleteRange")),
		"serializable_reads": float64(c.serializable.Load()),
		"linearizable_reads": float64(c.linearizable.Load()),
		"watches":            float64(len(c.Tap.WatchCreates())),
		"unwatches":          float64(c.unwatchd.Load()),
	}
}

// per returns the difference from before, divided by n.
func (v Values) per(before Values, n int) Values {
	out := Values{}
	for k := range v {
		out[k] = (v[k] - before[k]) / float64(n)
	}
	return out
}

// Requests is how many requests an acquisition and its release make. With one session
// nobody else wants the lock; with more sessions all want it all the time, and each
// keeps it for hold.
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

// Requests returns how many requests there were so far, not counting watches.
func (c *Counter) Requests() int { return c.Tap.Calls() }

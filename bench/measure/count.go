package measure

import (
	"context"
	"slices"
	"sync/atomic"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/stats"
)

// kind is what a message asks of etcd.
type kind int

const (
	commit       kind = iota // a put, a delete, or a transaction that may write
	serializable             // a read that is answered by the member that was asked
	linearizable             // a read that asks the quorum first
	lease                    // a renewal, or another request about a lease
	watch
	unwatch
	progress // asks a watch stream whether it lives
	other
	kinds
)

var kindNames = [kinds]string{"commits", "serializable_reads", "linearizable_reads", "lease_requests", "watches", "unwatches", "progress_requests", "others"}

// A Counter counts the messages that the clients with its option send to etcd, and
// those that they receive. On a stream, as of a watch or of renewals, each message
// counts.
type Counter struct {
	sent     [kinds]atomic.Int64
	received atomic.Int64
	bytes    atomic.Int64 // both ways
}

// Option makes a client's messages count.
func (c *Counter) Option() grpc.DialOption { return grpc.WithStatsHandler(c) }

// HandleRPC counts a message.
func (c *Counter) HandleRPC(_ context.Context, s stats.RPCStats) {
	switch s := s.(type) {
	case *stats.OutPayload:
		c.sent[kindOf(s.Payload)].Add(1)
		c.bytes.Add(int64(s.WireLength))
	case *stats.InPayload:
		c.received.Add(1)
		c.bytes.Add(int64(s.WireLength))
	}
}

// TagRPC does nothing; a stats.Handler needs it, and the next two.
func (c *Counter) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// TagConn does nothing.
func (c *Counter) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn does nothing.
func (c *Counter) HandleConn(context.Context, stats.ConnStats) {}

func kindOf(message any) kind {
	switch m := message.(type) {
	case *pb.PutRequest, *pb.DeleteRangeRequest:
		return commit
	case *pb.RangeRequest:
		return read(m.Serializable)
	case *pb.TxnRequest:
		asksQuorum := false
		for _, op := range slices.Concat(m.Success, m.Failure) {
			if op.GetRequestRange() == nil {
				return commit
			}
			asksQuorum = asksQuorum || !op.GetRequestRange().Serializable
		}
		return read(!asksQuorum)
	case *pb.LeaseGrantRequest, *pb.LeaseRevokeRequest, *pb.LeaseKeepAliveRequest, *pb.LeaseTimeToLiveRequest:
		return lease
	case *pb.WatchRequest:
		switch {
		case m.GetCreateRequest() != nil:
			return watch
		case m.GetCancelRequest() != nil:
			return unwatch
		}
		return progress
	}
	return other
}

func read(isSerializable bool) kind {
	if isSerializable {
		return serializable
	}
	return linearizable
}

// count returns how many messages there were so far: those that were sent by kind,
// and in all.
func (c *Counter) count() Values {
	v := Values{"received": float64(c.received.Load()), "bytes": float64(c.bytes.Load())}
	for k, name := range kindNames {
		v[name] = float64(c.sent[k].Load())
		v["requests"] += v[name]
	}
	return v
}

// Requests returns how many messages were sent so far.
func (c *Counter) Requests() int { return int(c.count()["requests"]) }

// per returns the difference from before, divided by n.
func (v Values) per(before Values, n float64) Values {
	out := Values{}
	for k := range v {
		out[k] = (v[k] - before[k]) / n
	}
	return out
}

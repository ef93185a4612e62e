package soak

import (
	"context"
	"errors"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"

	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/test/history"
)

// memberFaults are those of the members, one at a time.
func (r *run) memberFaults() []fault {
	// down takes n members down for a while, from the pick-th on.
	down := func(n int, how func(*etcdtest.Member)) func(context.Context, time.Duration, int) error {
		return func(ctx context.Context, lasts time.Duration, pick int) error {
			var wg sync.WaitGroup
			for i := range n {
				wg.Go(func() { how(r.cluster.Member((pick + i) % members)) })
			}
			wg.Wait()
			wait(ctx, lasts)
			for i := range n {
				wg.Go(func() {
					if err := r.cluster.Member((pick + i) % members).Restart(r.context()); err != nil {
						r.t.Error(err)
					}
				})
			}
			wg.Wait()
			return nil
		}
	}
	isolate := func(ctx context.Context, m *etcdtest.Member, lasts time.Duration) {
		m.Isolate()
		wait(ctx, lasts)
		m.Heal()
	}
	return []fault{
		{"stop a member", 2, 4 * time.Second, down(1, (*etcdtest.Member).Stop)},
		{"kill a member", 2, 4 * time.Second, down(1, (*etcdtest.Member).Kill)},
		{"kill two members", 1, 4 * time.Second, down(2, (*etcdtest.Member).Kill)},
		{"kill all members", 1, 2 * time.Second, down(3, (*etcdtest.Member).Kill)},
		{"isolate a member", 2, 6 * time.Second, func(ctx context.Context, lasts time.Duration, pick int) error {
			isolate(ctx, r.cluster.Member(pick%members), lasts)
			return nil
		}},
		{"isolate the leader", 2, 6 * time.Second, func(ctx context.Context, lasts time.Duration, _ int) error {
			leader, err := r.leader(ctx)
			if err == nil {
				isolate(ctx, leader, lasts)
			}
			return err
		}},
		{"isolate all members", 1, 4 * time.Second, func(ctx context.Context, lasts time.Duration, _ int) error {
			for i := range members {
				r.cluster.Member(i).Isolate()
			}
			wait(ctx, lasts)
			for i := range members {
				r.cluster.Member(i).Heal()
			}
			return nil
		}},
		{"move the leader", 3, time.Second, func(ctx context.Context, _ time.Duration, pick int) error {
			ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
			defer cancel()
			return r.cluster.MoveLeader(ctx, pick%members)
		}},
	}
}

func (r *run) leader(ctx context.Context) (*etcdtest.Member, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	return r.cluster.Leader(ctx)
}

// dataFaults are what others do to the data.
func (r *run) dataFaults() []fault {
	errNone := errors.New("there is none")
	brief := func(ctx context.Context) (context.Context, context.CancelFunc) {
		return context.WithTimeout(ctx, 2*time.Second)
	}
	return []fault{
		// Not further than the observers have come, who miss nothing then. Waiters
		// may have come less far.
		{"compact", 8, time.Second, func(ctx context.Context, _ time.Duration, _ int) error {
			ctx, cancel := brief(ctx)
			defer cancel()
			_, err := r.direct.Compact(ctx, r.log.Revision())
			return err
		}},
		{"revoke a lease", 1, time.Second, func(ctx context.Context, _ time.Duration, pick int) error {
			live := r.log.Live()
			if len(live) == 0 {
				return errNone
			}
			ctx, cancel := brief(ctx)
			defer cancel()
			lease := live[pick%len(live)].Lease
			r.log.WillRevoke(lease)
			_, err := r.direct.Revoke(ctx, clientv3.LeaseID(lease))
			return err
		}},
		{"delete an entry", 2, time.Second, func(ctx context.Context, _ time.Duration, pick int) error {
			live := r.log.Live()
			if len(live) == 0 {
				return errNone
			}
			ctx, cancel := brief(ctx)
			defer cancel()
			e := live[pick%len(live)]
			r.log.WillRemove(e)
			_, err := r.direct.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(e.Key), "=", e.Created)).Then(clientv3.OpDelete(e.Key)).Commit()
			return err
		}},
	}
}

// faults are those between one client and the cluster, on its network and among
// its calls.
func (c *client) faults() []fault {
	directions := []etcdtest.Direction{etcdtest.ToServer, etcdtest.ToClient, etcdtest.Both}
	methods := []string{"Txn", "Txn", "Txn", "Txn", "LeaseGrant", "LeaseRevoke"}
	network := func(begin func(lasts time.Duration, pick int)) func(context.Context, time.Duration, int) error {
		return func(ctx context.Context, lasts time.Duration, pick int) error {
			begin(lasts, pick)
			wait(ctx, lasts)
			c.proxy.Heal()
			return nil
		}
	}
	calls := func(begin func(lasts time.Duration, pick int)) func(context.Context, time.Duration, int) error {
		return func(ctx context.Context, lasts time.Duration, pick int) error {
			begin(lasts, pick)
			wait(ctx, lasts)
			c.tap.Clear()
			return nil
		}
	}
	all := []fault{
		{"blackhole", 2, 5 * time.Second, network(func(_ time.Duration, pick int) { c.proxy.Blackhole(directions[pick%3]) })},
		{"hold back", 2, 5 * time.Second, network(func(_ time.Duration, pick int) { c.proxy.Hold(directions[pick%3]) })},
		{"delay", 2, 5 * time.Second, network(func(_ time.Duration, pick int) {
			c.proxy.Delay(directions[pick%3], time.Duration(pick%500)*time.Millisecond)
		})},
		// Longer than the package waits before it sends a request once more, beside the first.
		{"slow answers", 2, 5 * time.Second, network(func(time.Duration, int) { c.proxy.Delay(etcdtest.ToClient, 350*time.Millisecond) })},
		// Replies come late, when nothing gets to etcd anymore: the worst for those who
		// count from the reply.
		{"late replies, then none", 2, 2 * time.Second, func(ctx context.Context, lasts time.Duration, pick int) error {
			c.proxy.Hold(etcdtest.ToClient)
			wait(ctx, time.Duration(pick%600)*time.Millisecond)
			c.proxy.Blackhole(etcdtest.ToServer)
			wait(ctx, time.Duration(pick/600%1200)*time.Millisecond)
			c.proxy.Release(etcdtest.ToClient)
			wait(ctx, 2*time.Second+lasts)
			c.proxy.Heal()
			return nil
		}},
		{"refuse", 1, 2 * time.Second, network(func(time.Duration, int) { c.proxy.Refuse(); c.proxy.Reset() })},
		{"reset", 3, 100 * time.Millisecond, network(func(time.Duration, int) { c.proxy.Reset() })},
		{"drop replies", 3, time.Second, calls(func(_ time.Duration, pick int) {
			for range 1 + pick%3 {
				c.tap.Next(methods[pick%len(methods)], etcdtest.DropReply)
			}
		})},
		{"fail calls", 2, time.Second, calls(func(_ time.Duration, pick int) {
			for range 1 + pick%3 {
				c.tap.Next(methods[pick%len(methods)], etcdtest.FailBefore)
			}
		})},
		{"postpone a call", 3, 4 * time.Second, func(ctx context.Context, lasts time.Duration, pick int) error {
			p := c.tap.Postpone(methods[pick%len(methods)], 1+pick%3)
			wait(ctx, lasts)
			c.tap.Clear() // one that was not caught yet never will be
			select {
			case <-p.Caught():
				ctx, cancel := context.WithTimeout(context.Background(), time.Second)
				defer cancel()
				return p.Send(ctx)
			default:
				return errors.New("there was none")
			}
		}},
		// As if the first attempt had been stuck, and the second one carried out.
		{"repeat releases", 2, 4 * time.Second, calls(func(_ time.Duration, pick int) {
			again := time.Duration(pick%300) * time.Millisecond
			c.tap.Every("Txn", func(ctx context.Context, call *etcdtest.Call) error {
				req := protoadapt.MessageV1Of(proto.Clone(protoadapt.MessageV2Of(call.Request))).(*pb.TxnRequest)
				err := call.Send(ctx)
				if err == nil && releases(req) {
					c.run.behind.Go(func() {
						ctx, cancel := context.WithTimeout(context.Background(), again+time.Second)
						defer cancel()
						wait(ctx, again)
						_, _ = clientv3.RetryKVClient(c.run.direct).Txn(ctx, req)
					})
				}
				return err
			})
		})},
		{history.LoseEvents, 2, 4 * time.Second, calls(func(time.Duration, int) {
			c.tap.OnWatchResponse(func(_ context.Context, m *pb.WatchResponse) error {
				if len(m.Events) > 0 {
					return etcdtest.ErrDrop
				}
				return nil
			})
		})},
		{"break watches", 2, 200 * time.Millisecond, calls(func(time.Duration, int) {
			c.tap.OnWatchResponse(func(context.Context, *pb.WatchResponse) error { return etcdtest.ErrTransport })
		})},
		{"lose renewals", 1, 4 * time.Second, calls(func(time.Duration, int) {
			c.tap.OnKeepAliveResponse(func(context.Context, *pb.LeaseKeepAliveResponse) error { return etcdtest.ErrDrop })
		})},
		{"hold renewals back", 1, 3 * time.Second, calls(func(lasts time.Duration, _ int) {
			c.tap.OnKeepAliveResponse(func(ctx context.Context, _ *pb.LeaseKeepAliveResponse) error {
				wait(ctx, lasts)
				return nil
			})
		})},
	}
	if c.beyond != nil {
		// Less than the half second after which the grpc-proxy repeats renewals; see doc.go.
		all = append(all, fault{"slow answers to the grpc-proxy", 8, 5 * time.Second, func(ctx context.Context, lasts time.Duration, pick int) error {
			c.beyond.Delay(etcdtest.ToClient, time.Duration(200+pick%200)*time.Millisecond)
			wait(ctx, lasts)
			c.beyond.Heal()
			return nil
		}})
	}
	return all
}

// releases reports whether a transaction does nothing but delete.
func releases(req *pb.TxnRequest) bool {
	deletes := false
	for _, op := range req.Success {
		switch {
		case op.GetRequestDeleteRange() != nil:
			deletes = true
		case op.GetRequestTxn() != nil && releases(op.GetRequestTxn()):
			deletes = true
		default:
			return false
		}
	}
	return deletes
}

package main

import (
	"context"
	"time"

	"github.com/etcdlock/etcdlock/bench/measure"
	"github.com/etcdlock/etcdlock/bench/peer"
	"github.com/etcdlock/etcdlock/bench/report"
	"github.com/etcdlock/etcdlock/bench/server"
)

// onNames measures locks of many names on etcd processes, whose processor time is not that of the clients. client is
// how long a message takes between a client and a member; then one between members takes 1 ms.
func (b *bench) onNames(members int, client time.Duration) func(context.Context) error {
	return func(ctx context.Context) error {
		var delays *server.Delays
		if client > 0 {
			delays = &server.Delays{Peer: server.NewDelay(time.Millisecond), Client: server.NewDelay(client)}
		}
		return b.onProcesses(ctx, members, delays, func(etcd *server.Etcd, _ server.Clients) error {
			b.manyNames(ctx, etcd)
			return nil
		})
	}
}

func (b *bench) manyNames(ctx context.Context, etcd *server.Etcd) {
	for _, n := range report.Names {
		for _, newPeer := range []func(peer.Clients) peer.Peer{peer.Floor, peer.Concurrency, peer.Etcdlock, peer.Releasing} {
			b.one(ctx, "names/"+n.String(), newPeer(nil).Name, func(ctx context.Context) (measure.Values, error) {
				return b.counting(etcd, func(count *measure.Counter, clients server.Clients) (measure.Values, error) {
					return measure.ManyNames(ctx, newPeer(clients.Get), n, count, etcd.PIDs, b.d)
				})
			})
		}
	}
}

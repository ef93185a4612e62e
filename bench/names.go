package main

import (
	"context"

	"github.com/etcdlock/etcdlock/bench/measure"
	"github.com/etcdlock/etcdlock/bench/peer"
	"github.com/etcdlock/etcdlock/bench/report"
	"github.com/etcdlock/etcdlock/bench/server"
)

// onOne measures on one etcd process, whose processor time is not that of the clients.
func (b *bench) onOne(ctx context.Context) error {
	return b.onProcesses(ctx, 1, nil, func(etcd *server.Etcd, _ server.Clients) error {
		b.manyNames(ctx, etcd)
		return nil
	})
}

// manyNames measures contenders that each lock another name.
func (b *bench) manyNames(ctx context.Context, etcd *server.Etcd) {
	for _, c := range report.OwnNames {
		for _, newPeer := range []func(peer.Clients) peer.Peer{peer.Floor, peer.Concurrency, peer.Etcdlock} {
			b.one(ctx, "own names/"+c.String(), newPeer(nil).Name, func(ctx context.Context) (measure.Values, error) {
				return b.counting(etcd, func(count *measure.Counter, clients server.Clients) (measure.Values, error) {
					return measure.ManyNames(ctx, newPeer(clients.Get), c, count, etcd.PIDs, b.d)
				})
			})
		}
	}
}

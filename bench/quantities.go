package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/bench/measure"
	"github.com/etcdlock/etcdlock/bench/peer"
	"github.com/etcdlock/etcdlock/bench/server"
)

// hold is how long a holder keeps the lock when hand-overs are timed.
const hold = 3 * time.Millisecond

// onEmbedded measures on one etcd member in this process, and on the servers that
// are not etcd.
func (b *bench) onEmbedded(ctx context.Context) (err error) {
	var stops []func() error
	defer func() {
		for _, stop := range slices.Backward(stops) {
			err = errors.Join(err, stop())
		}
	}()
	etcd, err := server.Embedded()
	if err != nil {
		return err
	}
	stops = append(stops, etcd.Close)
	others, stopOthers, err := startOthers()
	stops = append(stops, stopOthers...)
	if err != nil {
		return err
	}
	clients, err := etcd.Connect(b.conns)
	if err != nil {
		return err
	}
	stops = append(stops, clients.Close)

	get := clients.Get
	b.passing(ctx, get, others)
	b.together(ctx, "uncontended, used", onEtcd(get), func(ctx context.Context, ps []peer.Peer) ([]measure.Values, error) {
		return measure.Uncontended(ctx, ps, b.used, b.d)
	})
	for _, n := range []int{50, b.deep} {
		b.each(ctx, fmt.Sprintf("hand-over, deep/%d", n), locksOnEtcd(get), func(ctx context.Context, p peer.Peer) (measure.Values, error) {
			return measure.Deep(ctx, p, clients[0], n, hold, b.d)
		})
	}
	b.requests(ctx, etcd)
	b.readersAndWriters(ctx, etcd, clients[0])
	// The floor for a process that was idle before, as in 'writer behind'.
	b.one(ctx, "hand-over, at rest", "floor", func(ctx context.Context) (measure.Values, error) {
		return measure.Floor(ctx, get(0), get(1), 400*time.Millisecond, 4*b.d)
	})
	b.each(ctx, "order", append(locksOnEtcd(get), others...), func(ctx context.Context, p peer.Peer) (measure.Values, error) {
		return measure.Order(ctx, p, 20, 4)
	})
	b.each(ctx, "one session/16", append(locksOnEtcd(get), peer.Serialized(get)), func(ctx context.Context, p peer.Peer) (measure.Values, error) {
		return measure.OneSession(ctx, p, 16, time.Millisecond, b.d)
	})
	return nil
}

// onThree measures on three etcd processes.
func (b *bench) onThree(ctx context.Context) (err error) {
	etcd, err := server.Processes(b.etcd, 3, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, etcd.Close()) }()
	clients, err := etcd.Connect(b.conns)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, clients.Close()) }()
	b.passing(ctx, clients.Get, nil)
	return nil
}

// onFar measures on three etcd processes with a simulated network: a round trip
// takes 2 ms between members and 1 ms between a client and a member.
func (b *bench) onFar(ctx context.Context) (err error) {
	delays := &server.Delays{Peer: server.NewDelay(time.Millisecond), Client: server.NewDelay(time.Millisecond / 2)}
	etcd, err := server.Processes(b.etcd, 3, delays)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, etcd.Close()) }()
	clients, err := etcd.Connect(b.conns)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, clients.Close()) }()
	b.passing(ctx, clients.Get, nil)

	// All clients are connected to the leader while round trips are counted:
	// another member would forward each request to the leader, which is one
	// round trip more.
	leader, err := etcd.Leader(ctx)
	if err != nil {
		return err
	}
	near, err := (&server.Etcd{Endpoints: []string{leader}}).Connect(b.conns)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, near.Close()) }()
	// Longer than any waiter needs to make all requests before it waits.
	const hold = 150 * time.Millisecond
	roundTrip := func(d time.Duration) { delays.Peer.Set(d / 2) }
	b.one(ctx, "round trips", "floor", func(ctx context.Context) (measure.Values, error) {
		return measure.RoundTrips(roundTrip, func() (measure.Values, error) { return measure.Floor(ctx, near.Get(0), near.Get(1), hold, 2*b.d) })
	})
	b.each(ctx, "round trips", locksOnEtcd(near.Get), func(ctx context.Context, p peer.Peer) (measure.Values, error) {
		return measure.RoundTrips(roundTrip, func() (measure.Values, error) { return measure.Handover(ctx, p, 2, hold, 2*b.d) })
	})
	return nil
}

// onProcess measures what locks cost their own process. The server runs in
// another process.
func (b *bench) onProcess(ctx context.Context) (err error) {
	etcd, err := server.Processes(b.etcd, 1, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, etcd.Close()) }()
	for quantity, which := range map[string]string{"waiting/512": "waiting", "holding/10000": "holding"} {
		b.each(ctx, quantity, locksOnEtcd(nil), func(ctx context.Context, p peer.Peer) (measure.Values, error) {
			return inOwnProcess(ctx, etcd, which, p.Name)
		})
	}
	return nil
}

// passing measures how fast a lock is acquired and passed on.
func (b *bench) passing(ctx context.Context, get peer.Clients, others []peer.Peer) {
	for _, peers := range [][]peer.Peer{onEtcd(get), others} {
		b.together(ctx, "uncontended", peers, func(ctx context.Context, ps []peer.Peer) ([]measure.Values, error) {
			return measure.Uncontended(ctx, ps, 0, b.d)
		})
	}
	for _, n := range []int{2, 16, 128, 512} {
		b.one(ctx, fmt.Sprintf("grants/%d", n), "floor", func(ctx context.Context) (measure.Values, error) {
			return measure.Relay(ctx, get, n, b.d)
		})
		b.each(ctx, fmt.Sprintf("grants/%d", n), append(locksOnEtcd(get), others...), func(ctx context.Context, p peer.Peer) (measure.Values, error) {
			return measure.Grants(ctx, p, n, b.d)
		})
	}
	b.one(ctx, "hand-over", "floor", func(ctx context.Context) (measure.Values, error) {
		return measure.Floor(ctx, get(0), get(1), hold, 2*b.d)
	})
	for _, n := range []int{2, 64} {
		b.each(ctx, fmt.Sprintf("hand-over/%d", n), append(locksOnEtcd(get), others...), func(ctx context.Context, p peer.Peer) (measure.Values, error) {
			return measure.Handover(ctx, p, n, hold, 2*b.d)
		})
	}
}

// locksOnEtcd returns the mutexes on etcd; onEtcd also returns the floor.
func locksOnEtcd(get peer.Clients) []peer.Peer {
	return []peer.Peer{peer.Etcdlock(get), peer.Concurrency(get)}
}

func onEtcd(get peer.Clients) []peer.Peer {
	return append(locksOnEtcd(get), peer.Floor(get))
}

// startOthers starts the servers of the peers that do not use etcd.
func startOthers() (peers []peer.Peer, stops []func() error, err error) {
	for name, fsync := range map[string]bool{"redsync": false, "redsync, fsync": true} {
		addr, stop, err := server.Redis(fsync)
		if err != nil {
			return nil, stops, err
		}
		stops = append(stops, stop)
		peers = append(peers, peer.Redsync(name, addr))
	}
	addr, stop, err := server.ZooKeeper()
	if err != nil {
		return nil, stops, err
	}
	return append(peers, peer.ZooKeeper(addr)), append(stops, stop), nil
}

// counting makes separate clients for a peer and counts their requests.
func (b *bench) counting(etcd *server.Etcd, f func(c *measure.Counter, clients server.Clients) (measure.Values, error)) (v measure.Values, err error) {
	c := measure.NewCounter()
	clients, err := etcd.Connect(b.conns, c.Tap.DialOptions()...)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, clients.Close()) }()
	return f(c, clients)
}

func (b *bench) requests(ctx context.Context, etcd *server.Etcd) {
	for _, c := range []struct {
		name     string
		sessions int
		hold     time.Duration
	}{
		{"requests/1", 1, 0},
		{"requests/2", 2, hold},
		{"requests/64", 64, hold},
		{"requests/64, empty section", 64, 0},
	} {
		for _, newPeer := range []func(peer.Clients) peer.Peer{peer.Etcdlock, peer.Concurrency} {
			b.one(ctx, c.name, newPeer(nil).Name, func(ctx context.Context) (measure.Values, error) {
				return b.counting(etcd, func(count *measure.Counter, clients server.Clients) (measure.Values, error) {
					return measure.Requests(ctx, newPeer(clients.Get), count, c.sessions, c.hold, b.d)
				})
			})
		}
	}
}

func (b *bench) readersAndWriters(ctx context.Context, etcd *server.Etcd, look *clientv3.Client) {
	makers := []func(peer.Clients) peer.Peer{peer.Etcdlock, peer.Recipes}
	for _, n := range []int{1, 16, 128, 512} {
		for _, newPeer := range makers {
			for name, rested := range map[string]bool{"burst/%d": false, "burst, at rest/%d": true} {
				b.one(ctx, fmt.Sprintf(name, n), newPeer(nil).Name, func(ctx context.Context) (measure.Values, error) {
					return b.counting(etcd, func(count *measure.Counter, clients server.Clients) (measure.Values, error) {
						return measure.Burst(ctx, newPeer(clients.Get), look, count, n, rested)
					})
				})
			}
		}
	}
	readers := server.Clients{look}
	for _, n := range []int{16, 512} {
		for _, newPeer := range makers {
			b.one(ctx, fmt.Sprintf("writer behind/%d", n), newPeer(nil).Name, func(ctx context.Context) (measure.Values, error) {
				return b.counting(etcd, func(count *measure.Counter, clients server.Clients) (measure.Values, error) {
					return measure.WriterBehind(ctx, newPeer(readers.Get), newPeer(clients.Get), look, count, n)
				})
			})
		}
	}
}

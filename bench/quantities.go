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
	"github.com/etcdlock/etcdlock/bench/report"
	"github.com/etcdlock/etcdlock/bench/server"
)

// hold is how long a holder keeps the lock when hand-overs are timed.
const hold = 3 * time.Millisecond

// connections is the largest number of processes of any contenders.
const connections = 16

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
	clients, err := etcd.Connect(connections)
	if err != nil {
		return err
	}
	stops = append(stops, clients.Close)

	get := clients.Get
	b.passing(ctx, get, others)
	b.together(ctx, "uncontended, used", onEtcd(get), func(ctx context.Context, ps []peer.Peer) ([]measure.Values, error) {
		return measure.Uncontended(ctx, ps, b.used, b.d)
	})
	b.requests(ctx, etcd)
	b.readersAndWriters(ctx, etcd, clients[0])
	b.multi(ctx, etcd, get)
	b.items(ctx, get)
	// The floor for a process that was idle before, as in 'writer behind'.
	b.one(ctx, "hand-over, at rest", "floor", func(ctx context.Context) (measure.Values, error) {
		return measure.Floor(ctx, get(0), get(1), 400*time.Millisecond, 4*b.d)
	})
	b.each(ctx, "order", append(mutexes(get), others...), func(ctx context.Context, p peer.Peer) (measure.Values, error) {
		return measure.Order(ctx, p, measure.Contenders{Processes: 7, Goroutines: 3}, 4)
	})
	return nil
}

// onThree measures on three etcd processes.
func (b *bench) onThree(ctx context.Context) error {
	return b.onProcesses(ctx, 3, nil, func(_ *server.Etcd, clients server.Clients) error {
		b.passing(ctx, clients.Get, nil)
		return nil
	})
}

// onFar measures on three etcd processes with a simulated network: a round trip
// takes 2 ms between members and 1 ms between a client and a member.
func (b *bench) onFar(ctx context.Context) error {
	delays := &server.Delays{Peer: server.NewDelay(time.Millisecond), Client: server.NewDelay(time.Millisecond / 2)}
	return b.onProcesses(ctx, 3, delays, func(etcd *server.Etcd, clients server.Clients) (err error) {
		b.passing(ctx, clients.Get, nil)

		// All clients are connected to the leader while round trips are counted:
		// another member would forward each request to the leader, which is one
		// round trip more.
		leader, err := etcd.Leader(ctx)
		if err != nil {
			return err
		}
		near, err := (&server.Etcd{Endpoints: []string{leader}}).Connect(2)
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
		b.each(ctx, "round trips", mutexes(near.Get), func(ctx context.Context, p peer.Peer) (measure.Values, error) {
			return measure.RoundTrips(roundTrip, func() (measure.Values, error) {
				return measure.Handover(ctx, p, measure.Contenders{Processes: 2, Goroutines: 1}, hold, 2*b.d)
			})
		})
		return nil
	})
}

// onProcesses starts members, with clients for all contenders.
func (b *bench) onProcesses(ctx context.Context, members int, delays *server.Delays, f func(*server.Etcd, server.Clients) error) (err error) {
	etcd, err := server.Processes(b.etcd, members, delays)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, etcd.Close()) }()
	clients, err := etcd.Connect(connections)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, clients.Close()) }()
	return f(etcd, clients)
}

// passing measures how fast a lock is acquired and passed on.
func (b *bench) passing(ctx context.Context, get peer.Clients, others []peer.Peer) {
	for _, peers := range [][]peer.Peer{onEtcd(get), others} {
		b.together(ctx, "uncontended", peers, func(ctx context.Context, ps []peer.Peer) ([]measure.Values, error) {
			return measure.Uncontended(ctx, ps, 0, b.d)
		})
	}
	b.each(ctx, "back to back", []peer.Peer{peer.Floor(get), peer.Etcdlock(get), peer.Releasing(get)}, func(ctx context.Context, p peer.Peer) (measure.Values, error) {
		vs, err := measure.Uncontended(ctx, []peer.Peer{p}, 0, b.d)
		if err != nil {
			return nil, err
		}
		return vs[0], nil
	})
	contended := slices.Concat(mutexes(get), []peer.Peer{peer.Releasing(get), peer.Serialized(get)}, others)
	for _, c := range report.Contenders {
		for name, pass := range map[string]measure.Pass{"floor": measure.DeleteAndPut, report.LikeALock: measure.LikeALock} {
			b.one(ctx, "grants/"+c.String(), name, func(ctx context.Context) (measure.Values, error) {
				return measure.Ring(ctx, get, c, b.d, pass)
			})
		}
		b.each(ctx, "grants/"+c.String(), contended, func(ctx context.Context, p peer.Peer) (measure.Values, error) {
			return measure.Grants(ctx, p, c, b.d)
		})
	}
	b.one(ctx, "hand-over", "floor", func(ctx context.Context) (measure.Values, error) {
		return measure.Floor(ctx, get(0), get(1), hold, 2*b.d)
	})
	for _, c := range report.Handovers {
		b.each(ctx, "hand-over/"+c.String(), append(mutexes(get), others...), func(ctx context.Context, p peer.Peer) (measure.Values, error) {
			return measure.Handover(ctx, p, c, hold, 2*b.d)
		})
	}
}

// mutexes returns the mutexes on etcd; onEtcd also returns the floor.
func mutexes(get peer.Clients) []peer.Peer {
	return []peer.Peer{peer.Etcdlock(get), peer.Concurrency(get)}
}

func onEtcd(get peer.Clients) []peer.Peer {
	return append(mutexes(get), peer.Floor(get))
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
func (b *bench) counting(etcd *server.Etcd, f func(count *measure.Counter, clients server.Clients) (measure.Values, error)) (v measure.Values, err error) {
	count := &measure.Counter{}
	clients, err := etcd.Connect(connections, count.Option())
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, clients.Close()) }()
	return f(count, clients)
}

func (b *bench) requests(ctx context.Context, etcd *server.Etcd) {
	for _, c := range report.Requests {
		for _, newPeer := range []func(peer.Clients) peer.Peer{peer.Etcdlock, peer.Concurrency} {
			b.one(ctx, "requests/"+c.String(), newPeer(nil).Name, func(ctx context.Context) (measure.Values, error) {
				return b.counting(etcd, func(count *measure.Counter, clients server.Clients) (measure.Values, error) {
					return measure.Requests(ctx, newPeer(clients.Get), count, c, hold, b.d)
				})
			})
		}
	}
}

func (b *bench) readersAndWriters(ctx context.Context, etcd *server.Etcd, look *clientv3.Client) {
	for _, c := range report.Readers {
		for _, newPeer := range []func(peer.Clients) peer.Peer{peer.Etcdlock, peer.Recipes} {
			b.one(ctx, "burst/"+c.String(), newPeer(nil).Name, func(ctx context.Context) (measure.Values, error) {
				return b.counting(etcd, func(count *measure.Counter, clients server.Clients) (measure.Values, error) {
					return measure.Burst(ctx, newPeer(clients.Get), look, count, c)
				})
			})
			b.one(ctx, "writer behind/"+c.String(), newPeer(nil).Name, func(ctx context.Context) (measure.Values, error) {
				readers, err := etcd.Connect(connections)
				if err != nil {
					return nil, err
				}
				v, err := b.counting(etcd, func(count *measure.Counter, clients server.Clients) (measure.Values, error) {
					return measure.WriterBehind(ctx, newPeer(readers.Get), newPeer(clients.Get), look, count, c)
				})
				return v, errors.Join(err, readers.Close())
			})
		}
	}
}

// multi measures locks of several names.
func (b *bench) multi(ctx context.Context, etcd *server.Etcd, get peer.Clients) {
	for _, n := range report.Sets {
		ways := []func(peer.Clients) peer.Peer{peer.Etcdlock, peer.OneByOne}
		var peers, several []peer.Peer
		for _, newPeer := range ways {
			peers, several = append(peers, newPeer(get)), append(several, peer.Several(newPeer(get), n))
		}
		b.together(ctx, fmt.Sprintf("multi/%d", n), several, func(ctx context.Context, ps []peer.Peer) ([]measure.Values, error) {
			return measure.Uncontended(ctx, ps, 0, b.d)
		})
		for _, newPeer := range ways {
			b.one(ctx, fmt.Sprintf("multi, requests/%d", n), newPeer(nil).Name, func(ctx context.Context) (measure.Values, error) {
				return b.counting(etcd, func(count *measure.Counter, clients server.Clients) (measure.Values, error) {
					return measure.Requests(ctx, peer.Several(newPeer(clients.Get), n), count, measure.Contenders{Processes: 1, Goroutines: 1}, 0, b.d)
				})
			})
		}
		b.each(ctx, fmt.Sprintf("multi, overlapping/%d", n), peers, func(ctx context.Context, p peer.Peer) (measure.Values, error) {
			return measure.Overlapping(ctx, p, measure.Contenders{Processes: 8, Goroutines: 1}, 12, n, b.d)
		})
	}
}

// items measures a process that needs one lock for many items: without a competitor, and
// how long one waits when an item takes a millisecond.
func (b *bench) items(ctx context.Context, get peer.Clients) {
	peers := append([]peer.Peer{peer.Keeping(get)}, mutexes(get)...)
	b.together(ctx, "items", peers, func(ctx context.Context, ps []peer.Peer) ([]measure.Values, error) {
		vs, err := measure.Uncontended(ctx, ps, 0, b.d)
		for _, v := range vs {
			v["per_s"] = 1e6 / v["mean_us"]
		}
		return vs, err
	})
	b.each(ctx, "items, wanted", peers, func(ctx context.Context, p peer.Peer) (measure.Values, error) {
		competitor := p
		if p.Name == peer.Keeping(nil).Name { // its Unlock would keep the lock
			competitor = peer.Etcdlock(get)
		}
		return measure.Wanted(ctx, p, competitor, time.Millisecond, 100*time.Millisecond, max(3*b.d, 3*time.Second))
	})
}

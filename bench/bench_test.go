package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/etcdlock/etcdlock/bench/measure"
	"github.com/etcdlock/etcdlock/bench/peer"
	"github.com/etcdlock/etcdlock/bench/server"
)

// Go benchmarks for benchstat. They show whether a change slows the library
// down. They run on one embedded etcd, with fsync.

var etcd *server.Etcd

func TestMain(m *testing.M) {
	var err error
	if etcd, err = server.Embedded(); err != nil {
		fmt.Fprintln(os.Stderr, "start etcd:", err)
		os.Exit(1)
	}
	code := m.Run()
	if err := etcd.Close(); err != nil {
		fmt.Fprintln(os.Stderr, "stop etcd:", err)
		os.Exit(1)
	}
	os.Exit(code)
}

// setting is the environment of a benchmark: sessions of a peer, and a counter
// of their requests.
type setting struct {
	count    *measure.Counter
	clients  server.Clients
	peer     peer.Peer
	sessions []peer.Session
	name     string
}

func newSetting(b *testing.B, newPeer func(peer.Clients) peer.Peer, sessions int) *setting {
	b.Helper()
	s := &setting{count: measure.NewCounter(), name: fmt.Sprintf("/%s/%x", b.Name(), rand.Uint64())}
	clients, err := etcd.Connect(8, s.count.Tap.DialOptions()...)
	check(b, err)
	s.clients, s.peer = clients, newPeer(clients.Get)
	b.Cleanup(func() { check(b, clients.Close()) })
	for i := range sessions {
		session, err := s.peer.Open(context.Background(), i)
		check(b, err)
		s.sessions = append(s.sessions, session)
		b.Cleanup(func() { check(b, session.Close(context.Background())) })
	}
	return s
}

func check(b *testing.B, err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// timed runs op until the benchmark ends, and reports quantiles of its time and
// the number of requests per operation.
func (s *setting) timed(b *testing.B, op func() (time.Duration, error)) {
	b.Helper()
	_, err := op() // opens connections
	check(b, err)
	var times []time.Duration
	before := s.count.Requests()
	for b.Loop() {
		t, err := op()
		check(b, err)
		times = append(times, t)
	}
	b.ReportMetric(float64(s.count.Requests()-before)/float64(len(times)), "requests/op")
	slices.Sort(times)
	b.ReportMetric(float64(times[len(times)/2].Nanoseconds()), "p50-ns")
	b.ReportMetric(float64(times[len(times)*99/100].Nanoseconds()), "p99-ns")
}

var mutexes = []func(peer.Clients) peer.Peer{peer.Etcdlock, peer.Concurrency}

func BenchmarkUncontended(b *testing.B) {
	for _, newPeer := range append(mutexes, peer.Floor) {
		b.Run("peer="+newPeer(nil).Name, func(b *testing.B) {
			s := newSetting(b, newPeer, 1)
			l := s.sessions[0].Mutex(s.name)
			s.timed(b, func() (time.Duration, error) { return cycle(l.Lock, l.Unlock) })
		})
	}
}

func BenchmarkUncontendedRW(b *testing.B) {
	s := newSetting(b, peer.Etcdlock, 1)
	l := s.sessions[0].(peer.RWSession).RWMutex(s.name)
	b.Run("hold=write", func(b *testing.B) {
		s.timed(b, func() (time.Duration, error) { return cycle(l.Lock, l.Unlock) })
	})
	b.Run("hold=read", func(b *testing.B) {
		s.timed(b, func() (time.Duration, error) { return cycle(l.RLock, l.RUnlock) })
	})
}

func cycle(lock, unlock func(context.Context) error) (time.Duration, error) {
	start := time.Now()
	if err := lock(context.Background()); err != nil {
		return 0, err
	}
	err := unlock(context.Background())
	return time.Since(start), err
}

// BenchmarkHandover: in one operation every session has the lock once, so ns/op
// divided by the number of sessions is the time of a grant.
func BenchmarkHandover(b *testing.B) {
	for _, newPeer := range mutexes {
		for _, n := range []int{2, 16, 128} {
			b.Run(fmt.Sprintf("peer=%s/sessions=%d", newPeer(nil).Name, n), func(b *testing.B) {
				s := newSetting(b, newPeer, n)
				stop := contend(b, s, n-1)
				l := s.sessions[n-1].Mutex(s.name)
				s.timed(b, func() (time.Duration, error) { return cycle(l.Lock, l.Unlock) })
				stop()
			})
		}
	}
}

// contend lets the first n sessions lock and unlock until stop is called.
func contend(b *testing.B, s *setting, n int) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for _, session := range s.sessions[:n] {
		l := session.Mutex(s.name)
		wg.Go(func() {
			for {
				err := l.Lock(ctx)
				if err == nil {
					err = l.Unlock(context.Background())
				} else if ctx.Err() != nil {
					return
				}
				if err != nil { // the measurement is invalid without all contenders
					b.Error(err)
					return
				}
			}
		})
	}
	return func() { cancel(); wg.Wait() }
}

// BenchmarkPassing: two contenders with an empty section. The two peers are
// measured by turns; the ratio says how much more often etcdlock's lock changes
// hands.
func BenchmarkPassing(b *testing.B) {
	var per [2]time.Duration
	rounds := 0
	var turns [2]func() (time.Duration, error)
	for i, newPeer := range mutexes {
		s := newSetting(b, newPeer, 2)
		l := s.sessions[1].Mutex(s.name)
		turns[i] = func() (t time.Duration, err error) {
			stop := contend(b, s, 1)
			defer stop()
			const n = 20
			start := time.Now()
			for range n {
				if _, err := cycle(l.Lock, l.Unlock); err != nil {
					return 0, err
				}
			}
			return time.Since(start) / n, nil
		}
	}
	for b.Loop() {
		for i, turn := range turns {
			t, err := turn()
			check(b, err)
			per[i] += t
		}
		rounds++
	}
	for i, newPeer := range mutexes {
		b.ReportMetric(float64(per[i].Nanoseconds())/float64(rounds), newPeer(nil).Name+"-ns/turn")
	}
	b.ReportMetric(float64(per[1])/float64(per[0]), "times-concurrency")
}

// BenchmarkBurst: in one operation a writer locks, readers queue up behind it, the
// writer unlocks, and all readers get the lock and unlock it.
func BenchmarkBurst(b *testing.B) {
	for _, n := range []int{1, 16, 128} {
		b.Run(fmt.Sprintf("readers=%d", n), func(b *testing.B) {
			s := newSetting(b, peer.Etcdlock, n+1)
			writer := s.sessions[n].(peer.RWSession).RWMutex(s.name)
			s.timed(b, func() (time.Duration, error) {
				start := time.Now()
				if err := writer.Lock(context.Background()); err != nil {
					return 0, err
				}
				var wg sync.WaitGroup
				for _, session := range s.sessions[:n] {
					wg.Go(func() {
						l := session.(peer.RWSession).RWMutex(s.name)
						if _, err := cycle(l.RLock, l.RUnlock); err != nil {
							b.Error(err)
						}
					})
				}
				err := writer.Unlock(context.Background())
				wg.Wait()
				return time.Since(start), err
			})
		})
	}
}

// BenchmarkClose: the end of a session releases all its locks.
func BenchmarkClose(b *testing.B) {
	for _, n := range []int{1, 1000} {
		b.Run(fmt.Sprintf("locks=%d", n), func(b *testing.B) {
			s := newSetting(b, peer.Etcdlock, 0)
			s.timed(b, func() (time.Duration, error) {
				session, err := s.peer.Open(context.Background(), 0)
				check(b, err)
				for i := range n {
					check(b, session.Mutex(fmt.Sprintf("%s/%d", s.name, i)).Lock(context.Background()))
				}
				start := time.Now()
				err = session.Close(context.Background())
				return time.Since(start), err
			})
		})
	}
}

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
	"github.com/etcdlock/etcdlock/bench/report"
	"github.com/etcdlock/etcdlock/bench/server"
)

// Go benchmarks for benchstat. They show whether a change slows the library
// down. They run on one embedded etcd, with fsync.

var etcd *server.Etcd

// builtEtcd is the path of an etcd, which is built for the first test that asks for it.
var builtEtcd func() (path string, err error)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "scale" { // run by inOwnProcess
		if err := scale(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	builtEtcd = sync.OnceValues(func() (string, error) { return server.BuildEtcd(dir) })
	if etcd, err = server.Embedded(); err != nil {
		fmt.Fprintln(os.Stderr, "start etcd:", err)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(dir)
	if err := etcd.Close(); err != nil {
		fmt.Fprintln(os.Stderr, "stop etcd:", err)
		os.Exit(1)
	}
	os.Exit(code)
}

// setting is the environment of a benchmark: sessions of a peer, one for each
// contender, and a counter of their requests.
type setting struct {
	count    *measure.Counter
	peer     peer.Peer
	sessions []peer.Session
	name     string
}

func newSetting(b *testing.B, newPeer func(peer.Clients) peer.Peer, c measure.Contenders) *setting {
	b.Helper()
	s := &setting{count: &measure.Counter{}, name: fmt.Sprintf("/%s/%x", b.Name(), rand.Uint64())}
	clients, err := etcd.Connect(max(c.Processes, 1), s.count.Option())
	check(b, err)
	b.Cleanup(func() { check(b, clients.Close()) })
	s.peer = newPeer(clients.Get)
	if c.Total() == 0 {
		return s
	}
	opened, err := measure.Open(context.Background(), s.peer, c)
	check(b, err)
	b.Cleanup(func() { check(b, opened.Close()) })
	s.sessions = opened.Of
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

var (
	contended = []func(peer.Clients) peer.Peer{peer.Etcdlock, peer.Releasing, peer.Concurrency}
	single    = measure.Contenders{Processes: 1, Goroutines: 1}
)

func BenchmarkUncontended(b *testing.B) {
	for _, newPeer := range append(contended, peer.Floor) {
		b.Run("peer="+newPeer(nil).Name, func(b *testing.B) {
			s := newSetting(b, newPeer, single)
			l := s.sessions[0].Mutex(s.name)
			s.timed(b, func() (time.Duration, error) { return cycle(l.Lock, l.Unlock) })
		})
	}
}

func BenchmarkUncontendedRW(b *testing.B) {
	s := newSetting(b, peer.Etcdlock, single)
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

// BenchmarkHandover: in one operation every contender has the lock once, so ns/op
// divided by their number is the time of a grant.
func BenchmarkHandover(b *testing.B) {
	for _, newPeer := range contended {
		for _, c := range report.Contenders {
			b.Run(fmt.Sprintf("peer=%s/contenders=%s", newPeer(nil).Name, c), func(b *testing.B) {
				s := newSetting(b, newPeer, c)
				stop := contend(b, s, c.Total()-1)
				l := s.sessions[c.Total()-1].Mutex(s.name)
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

// BenchmarkBurst: in one operation a writer locks, readers queue up behind it, the
// writer unlocks, and all readers get the lock and unlock it.
func BenchmarkBurst(b *testing.B) {
	for _, c := range report.Readers {
		b.Run("contenders="+c.String(), func(b *testing.B) {
			s := newSetting(b, peer.Etcdlock, c)
			var locks []peer.RWLocker
			for _, session := range s.sessions {
				locks = append(locks, session.(peer.RWSession).RWMutex(s.name))
			}
			writer, readers := locks[0], locks[1:]
			s.timed(b, func() (time.Duration, error) {
				start := time.Now()
				if err := writer.Lock(context.Background()); err != nil {
					return 0, err
				}
				var wg sync.WaitGroup
				for _, l := range readers {
					wg.Go(func() {
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
			s := newSetting(b, peer.Etcdlock, measure.Contenders{})
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

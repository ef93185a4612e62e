package sender

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/etcdlock/etcdlock/internal/etcd"
)

func TestPace(t *testing.T) {
	for _, tc := range []struct {
		latency, answer time.Duration
		commands        float64
		most, seats     int
		patience        time.Duration
	}{
		{0, 0, 0, maxCommands, minSeats, patienceNear},
		{ms, 0, 0, maxCommands, minSeats, patienceNear},
		{10 * ms, 0, 0, maxCommands, 20, patienceFar},
		{0, 0, 0, maxCommands / 8, 8 * minSeats, patienceNear},
		{0, 0, 0, 1, maxCommands * minSeats, patienceNear},
		{ms, 3 * ms, 10, maxCommands, minSeats, 6 * ms}, // its own commands are why
		{ms, 4 * ms, 10, maxCommands, 1, 8 * ms},
		{ms, 4 * ms, 10, maxCommands / 8, 8, 8 * ms},
		{ms, 4 * ms, minSeats, maxCommands, minSeats, 8 * ms},        // of so few
		{ms / 2, 5 * ms / 2, 8, maxCommands, minSeats, patienceNear}, // it is not that busy
		{20 * ms, 60 * ms, 10, maxCommands, 40, 120 * ms},
		{20 * ms, 80 * ms, 10, maxCommands, 10, 160 * ms},
	} {
		p := pace{latency: tc.latency, answer: tc.answer, commands: tc.commands}
		require.Equal(t, tc.seats, p.seats(tc.most), tc)
		require.Equal(t, tc.patience, p.patience(), tc)
	}
}

const ms = time.Millisecond

// Etcd is as near as the shortest answer says, and farther only if all answers of a window say so.
func TestPace_Distance(t *testing.T) {
	start := time.Now()
	var p pace
	took := func(n int, d time.Duration, commands int, at time.Duration) {
		for range n {
			p.took(start.Add(at-d), start.Add(at), commands)
		}
	}
	is := func(d time.Duration, why string) { require.InDelta(t, d, p.latency, float64(ms/100), why) }
	took(1, 20*ms, 2, 0)
	is(10*ms, "the other command may be why")
	took(20, ms, 10, ms)
	is(ms, "it is no farther away than that")
	took(100, 20*ms, 1, window-ms)
	is(ms, "it may be busy for a while")
	took(1, 20*ms, 1, window)
	is(ms, "one answer of the window was short")

	took(leastAnswers, 20*ms, 1, 2*window-ms)
	is(ms, "the next window has begun when that ended")
	took(1, 20*ms, 2, 2*window)
	is(10*ms, "all were long")

	took(leastAnswers-2, time.Hour, 1, 2*window)
	took(1, time.Hour, 1, 3*window)
	is(10*ms, "these are few")
	took(1, time.Hour, 1, 3*window)
	is(maxLatency, "one answer says so much")
}

// What answers tell decides how many requests may go, and for how long a command waits.
func TestPace_Learns(t *testing.T) {
	var p pace
	now := time.Now()
	took := func(n int, d time.Duration, commands int) {
		for range n {
			now = now.Add(window / 50)
			p.took(now.Add(-d), now, commands)
		}
	}
	took(100, ms, 1)
	require.InDelta(t, ms, p.latency, float64(ms/1000))
	took(1, time.Hour, 1)
	require.LessOrEqual(t, p.latency, maxLatency/4)
	took(10, ms, 10)
	require.Less(t, p.latency, 2*ms, "it is no farther away than that")
	took(100, 10*ms, 20)
	require.Less(t, p.latency, 2*ms, "it may be busy with the others")
	took(150, 20*ms, 2)
	require.InDelta(t, 10*ms, p.latency, float64(ms))
	require.InDelta(t, 20, p.seats(maxCommands), 1)
	require.Equal(t, patienceFar, p.patience())
	took(100, 40*ms, 20)
	require.Less(t, p.seats(maxCommands), 16, "it is busy")
	require.InDelta(t, 80*ms, p.patience(), float64(ms))
}

// Etcd takes some time for each request, one after the other, and a part of that for each command. However little it can do,
// it is sent few requests, and carries out as much as it can. Where it is only far away, it is sent as many as there are.
func TestSender_ABusyEtcd(t *testing.T) {
	for _, tc := range []struct {
		goroutines             int
		request, command, away time.Duration
		others                 int     // requests of other sessions that are before each one
		requests, cycles       float64 // for a cycle; in a second
	}{
		{16, 600 * time.Microsecond, 40 * time.Microsecond, 300 * time.Microsecond, 0, 0.6, 2500},
		{64, 2500 * time.Microsecond, 40 * time.Microsecond, 300 * time.Microsecond, 0, 0.16, 2200},
		{256, 2500 * time.Microsecond, 40 * time.Microsecond, 300 * time.Microsecond, 0, 0.04, 5500},
		{16, 0, 0, 10 * time.Millisecond, 0, 2, 750},
		{64, 0, 0, 10 * time.Millisecond, 0, 2, 3000},
		{16, 600 * time.Microsecond, 40 * time.Microsecond, 300 * time.Microsecond, 10, 0.25, 600},
		{64, 600 * time.Microsecond, 40 * time.Microsecond, 300 * time.Microsecond, 10, 0.08, 2000},
	} {
		onPost(t, func(p *post) {
			p.etcd.NeverHedge()
			const lasts = time.Second
			var busy time.Time // until then
			var requests, cycles float64
			p.pace.took(time.Now().Add(-tc.request-tc.command-tc.away), time.Now(), 1) // of a quiet time before
			p.set(func() {
				p.before = func(ctx context.Context, r *pb.TxnRequest) error {
					p.mu.Lock()
					requests++
					if busy.Before(time.Now()) {
						busy = time.Now()
					}
					busy = busy.Add(time.Duration(1+tc.others)*tc.request + time.Duration(len(r.Success))*tc.command)
					d := time.Until(busy) + tc.away
					p.mu.Unlock()
					return etcd.Sleep(ctx, d)
				}
			})
			began := time.Now()
			for i := range tc.goroutines {
				p.calls.Go(func() {
					for time.Since(began) < lasts {
						key := fmt.Sprintf("n%d/1", i)
						r, _, err := p.Do(p.Context(), nil, put(key))
						if err == nil {
							_, _, err = p.Do(p.Context(), nil, remove(key, r.At))
						}
						assert.NoError(t, err)
						p.set(func() { cycles++ })
					}
				})
			}
			p.calls.Wait()
			t.Logf("%v: %.2f requests for a cycle, %.0f cycles in a second", tc, requests/cycles, cycles)
			require.LessOrEqual(t, requests/cycles, tc.requests)
			require.GreaterOrEqual(t, cycles, tc.cycles)
		})
	}
}

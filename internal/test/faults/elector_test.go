package faults

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/test/harness"
)

// Electors that lose their connection to etcd.

// A leadTime is one call of a lead function: when it began, and when its ctx had ended.
type leadTime struct{ began, over time.Time }

// A leadLog records the leads of several electors of one name.
type leadLog struct {
	mu    sync.Mutex
	leads []leadTime
	began chan struct{} // capacity 1: a lead has begun
}

// lead leads until ctx ends.
func (l *leadLog) lead(ctx context.Context, _ *etcdlock.Held) error {
	began := time.Now()
	l.mu.Lock()
	i := len(l.leads)
	l.leads = append(l.leads, leadTime{began: began})
	l.mu.Unlock()
	select {
	case l.began <- struct{}{}:
	default:
	}
	<-ctx.Done()
	over := time.Now()
	l.mu.Lock()
	l.leads[i].over = over
	l.mu.Unlock()
	return ctx.Err()
}

// requireApart requires that the ctx of each lead had ended before the next lead began, and
// returns the leads in order. A lead may have noticed the end of its ctx late, by at most
// late.
func (l *leadLog) requireApart(t *testing.T, late time.Duration) []leadTime {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	leads := slices.SortedFunc(slices.Values(l.leads), func(a, b leadTime) int { return a.began.Compare(b.began) })
	for i := 1; i < len(leads); i++ {
		require.False(t, leads[i-1].over.IsZero(), "lead %d has not ended when the next lead begins", i-1)
		require.True(t, leads[i-1].over.Before(leads[i].began.Add(late)), "lead %d overlaps the next lead by %v", i-1, leads[i-1].over.Sub(leads[i].began))
	}
	return leads
}

// The leader loses its connection at any moment between two renewals. The ctx of its lead
// ends before the next leader begins.
func TestElector_CutOff(t *testing.T) {
	t.Parallel()
	own := etcdtest.Start(t)
	direct := own.Client(t)
	lateness := measureLateness(t)
	turns := make(chan struct{}, 20) // limits how many begin at once, so that the machine is not too slow
	logs := make([]leadLog, harness.Runs(t))
	var wg sync.WaitGroup
	for i := range logs {
		logs[i].began = make(chan struct{}, 1)
		wg.Go(func() {
			if err := cutOff(own, direct, fmt.Sprintf("cut%d", i), &logs[i], turns); err != nil {
				t.Errorf("run %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	late := beyondTheMargin(lateness(), cutOffTTL)
	earliest, latest := time.Hour, time.Duration(0)
	for i := range logs {
		leads := logs[i].requireApart(t, late)
		if late == 0 {
			require.Len(t, leads, 2)
		}
		require.GreaterOrEqual(t, len(leads), 2) // a machine that stalls for most of a TTL costs a lead
		gap := leads[1].began.Sub(leads[0].over)
		earliest, latest = min(earliest, gap), max(latest, gap)
	}
	t.Logf("shown: TTL %v, %d runs: the next lead began %v to %v after the ctx of the lead that was cut off had ended",
		cutOffTTL, len(logs), earliest.Round(time.Millisecond), latest.Round(time.Millisecond))
}

const cutOffTTL = 2 * time.Second

func cutOff(own *etcdtest.Cluster, direct *clientv3.Client, name string, log *leadLog, turns chan struct{}) error {
	proxy, err := own.NewProxy()
	if err != nil {
		return err
	}
	defer proxy.Close()
	client, err := own.NewClient(proxy)
	if err != nil {
		return err
	}
	defer client.Close()
	proxy.Delay(etcdtest.ToClient, latency)
	ctx, cancel := context.WithTimeout(context.Background(), 2*harness.Hang)
	defer cancel()
	var wg sync.WaitGroup
	defer wg.Wait()
	run := func(c *clientv3.Client) (stop func() error) {
		ctx, cancel := context.WithCancel(ctx)
		done := make(chan error, 1)
		wg.Go(func() {
			locks := etcdlock.New(c, etcdlock.WithTTL(cutOffTTL))
			defer locks.Close()
			done <- locks.Elector(name).Run(ctx, log.lead)
		})
		return func() error { cancel(); return <-done }
	}
	begins := func() error {
		select {
		case <-log.began:
			return nil
		case <-ctx.Done():
			return errors.New("no elector leads")
		}
	}
	turns <- struct{}{}
	stopFirst := run(client)
	err = begins()
	stopSecond := run(direct)
	for err == nil { // until the second elector is in the queue
		got, gerr := direct.Get(ctx, name+"/", clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err = gerr; err == nil && got.Count == 2 {
			break
		}
		err = cmp.Or(err, etcd.Sleep(ctx, harness.Tick))
	}
	<-turns
	if err == nil {
		err = etcd.Sleep(ctx, rand.N(cutOffTTL/3))
	}
	proxy.Blackhole(etcdtest.Both)
	err = cmp.Or(err, begins())
	for _, stop := range []func() error{stopSecond, stopFirst} {
		if rerr := stop(); !errors.Is(rerr, context.Canceled) {
			err = cmp.Or(err, fmt.Errorf("Run returned %w", rerr))
		}
	}
	return err
}

// etcd does not answer for three TTLs. Meanwhile no elector leads, and none makes more than
// a few requests. When etcd answers again, the electors campaign again.
func TestElector_EtcdAway(t *testing.T) {
	t.Parallel()
	const ttl = 4 * time.Second
	own := etcdtest.Start(t)
	log := leadLog{began: make(chan struct{}, 1)}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	tap := etcdtest.NewTap()
	var wg sync.WaitGroup
	var electors []*etcdlock.Elector
	var clients []*etcdlock.Client
	c := own.Client(t)
	for i := range 3 {
		locks := newClient(t, own.Client(t, tap), etcdlock.WithTTL(ttl))
		e := locks.Elector("a")
		electors, clients = append(electors, e), append(clients, locks)
		wg.Go(func() {
			if err := e.Run(ctx, log.lead); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
		harness.QueueIs(t, c, "a", i+1)
	}
	<-log.began
	own.Member(0).Kill()
	away := time.NewTimer(3 * ttl)
	before := tap.Calls() + tap.Calls("LeaseKeepAlive", "Watch")
	<-away.C
	calls := tap.Calls() + tap.Calls("LeaseKeepAlive", "Watch") - before
	for _, e := range electors {
		require.False(t, e.IsLeader())
	}
	require.Empty(t, log.began, "no elector may lead during an outage")
	// etcd's client repeats a LeaseGrant by itself every 25 ms; without a connection these
	// attempts do not leave the process.
	require.Less(t, calls, 3*int(3*ttl/(10*time.Millisecond)), "the electors must pause between attempts")
	require.NoError(t, own.Member(0).Restart(harness.Ctx(t)))
	back := time.Now()
	select {
	case <-log.began:
	case <-time.After(harness.Hang):
		t.Fatal("no elector leads after the outage")
	}
	t.Logf("shown: outage of %v: %d attempts by 3 electors, the next leader %v after its end", 3*ttl, calls, time.Since(back).Round(time.Millisecond))
	harness.QueueIs(t, c, "a", 3)
	cancel()
	wg.Wait()
	harness.QueueIs(t, c, "a", 0)
	for _, locks := range clients {
		require.NoError(t, locks.Close())
	}
	require.Zero(t, harness.Leases(t, c))
	log.requireApart(t, 0)
}

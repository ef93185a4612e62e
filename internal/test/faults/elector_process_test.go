//go:build unix

package faults

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/test/harness"
)

// Electors in separate processes. Each process is this test binary, started again.

// replicaProcess is a replica of a service: it campaigns and leads until SIGTERM. It writes
// the events of its leads to etcd, which orders them: <name>.log/<token>/began in a
// transaction of the term, and .../ended when the lead's ctx has ended. The values are times,
// which can be compared because all replicas run on one machine.
func replicaProcess(ctx context.Context, a lockerArg, c *clientv3.Client, _ *bufio.Reader) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM)
	defer stop()
	locks := etcdlock.New(c, etcdlock.WithTTL(time.Duration(a.Seconds)*time.Second))
	defer locks.Close()
	e := locks.Elector(a.Name)
	err := e.Run(ctx, func(ctx context.Context, term *etcdlock.Held) error {
		log := fmt.Sprintf("%s.log/%d/", a.Name, term.Token())
		now := func() string { return strconv.FormatInt(time.Now().UnixNano(), 10) }
		// The reply must arrive, also if the test has seen what this writes and has ended the replica before that.
		if _, err := term.Txn(context.WithoutCancel(ctx)).Then(clientv3.OpPut(log+"began", now())).Commit(); err != nil {
			return err
		}
		<-ctx.Done()
		ended := now()
		if !e.IsLeader() {
			return errors.New("the replica must not lose its term")
		}
		if _, err := c.Put(context.WithoutCancel(ctx), log+"ended", ended); err != nil {
			return err
		}
		return ctx.Err()
	})
	if !errors.Is(err, context.Canceled) {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode("resigned")
}

// A termSeen is a term as etcd has seen it: the revisions of its entry and of the keys that
// its lead wrote, and the times that those contain.
type termSeen struct {
	token, gone  int64
	began, ended int64
	at           map[string]time.Time
}

// seenTerms follows the terms of a name. wait waits until n terms have reached the step what.
func seenTerms(t *testing.T, c *clientv3.Client, name string) (terms func() []*termSeen, wait func(what string, n int)) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	events := c.Watch(ctx, name, clientv3.WithPrefix(), clientv3.WithRev(1), clientv3.WithPrevKV())
	var all []*termSeen
	byToken := map[int64]*termSeen{}
	see := func(ev *clientv3.Event) {
		key := string(ev.Kv.Key)
		log, ok := strings.CutPrefix(key, name+".log/")
		if !ok {
			if ev.Type == clientv3.EventTypeDelete && byToken[ev.PrevKv.CreateRevision] != nil {
				byToken[ev.PrevKv.CreateRevision].gone = ev.Kv.ModRevision
			}
			return
		}
		var token int64
		var what string
		_, err := fmt.Sscanf(log, "%d/%s", &token, &what)
		require.NoError(t, err)
		term := byToken[token]
		if term == nil {
			term = &termSeen{token: token, at: map[string]time.Time{}}
			byToken[token] = term
			all = append(all, term)
		}
		*map[string]*int64{"began": &term.began, "ended": &term.ended}[what] = ev.Kv.ModRevision
		nanos, err := strconv.ParseInt(string(ev.Kv.Value), 10, 64)
		require.NoError(t, err)
		term.at[what] = time.Unix(0, nanos)
	}
	count := func(what string) (n int) {
		for _, term := range all {
			if what == "gone" && term.gone > 0 || !term.at[what].IsZero() {
				n++
			}
		}
		return n
	}
	return func() []*termSeen { return all }, func(what string, n int) {
		t.Helper()
		hang := time.NewTimer(harness.Hang)
		defer hang.Stop()
		for count(what) < n {
			select {
			case wr := <-events:
				require.NoError(t, wr.Err())
				for _, ev := range wr.Events {
					see(ev)
				}
			case <-hang.C:
				t.Fatalf("%d terms have not reached the step %s", n, what)
			}
		}
	}
}

// exits requires that the replica ends by itself and without an error.
func exits(t *testing.T, p *process) {
	t.Helper()
	var said string
	p.read(t, &said)
	require.Equal(t, "resigned", said)
	require.NoError(t, p.cmd.Wait())
}

// A rolling update of three replicas: a new replica starts, and the oldest, which is always
// the leader, gets SIGTERM. The time without a leader is that of three hand-overs, which is
// far less than a TTL. No two replicas lead at once, and the ctx of each lead has ended before
// the next lead begins.
func TestElector_RollingUpdate(t *testing.T) {
	t.Parallel()
	const ttl = 15 // seconds
	own := etcdtest.Start(t)
	c := own.Client(t)
	terms, wait := seenTerms(t, c, "roll")
	var replicas []*process
	start := func() {
		replicas = append(replicas, startHelper(t, "replica", lockerArg{Endpoints: own.Endpoints(), Name: "roll", Seconds: ttl}))
		harness.QueueIs(t, c, "roll", min(len(replicas), 4))
	}
	for range 3 {
		start()
	}
	wait("began", 1)
	for i := range 3 {
		start()
		replicas[i].signal(t, syscall.SIGTERM)
		exits(t, replicas[i])
		require.Len(t, harness.Entries(t, c, "roll"), 3)
		wait("began", i+2)
	}
	// The other replicas are stopped at once: waiting replicas also leave nothing behind.
	for _, p := range replicas[3:] {
		p.signal(t, syscall.SIGTERM)
	}
	for _, p := range replicas[3:] {
		exits(t, p)
	}
	require.Empty(t, harness.Entries(t, c, "roll"))
	require.Zero(t, harness.Leases(t, c))
	wait("gone", len(terms()))

	all := terms()
	require.GreaterOrEqual(t, len(all), 4)
	var without time.Duration
	var gaps []time.Duration
	for i, term := range all[:4] {
		require.Less(t, term.token, term.began)
		require.Less(t, term.began, term.ended, "the lead's ctx must have ended")
		require.Less(t, term.ended, term.gone, "the replica must resign after the end of the ctx")
		if i > 0 {
			last := all[i-1]
			require.Less(t, last.token, term.token, "the terms must be in the order of the queue")
			require.Less(t, last.gone, term.began, "two replicas lead at once")
			gap := term.at["began"].Sub(last.at["ended"])
			without += gap
			gaps = append(gaps, gap.Round(100*time.Microsecond))
		}
	}
	require.Less(t, without, ttl*time.Second/2, "no hand-over waits for the TTL")
	t.Logf("shown: TTL %d s, rolling update of three replicas: without a leader for %v in all, %v each", ttl, without.Round(100*time.Microsecond), gaps)
}

// The leader is killed: the next replica leads soon after the TTL. etcd checks for expired
// leases twice a second.
func TestElector_Killed(t *testing.T) {
	t.Parallel()
	const ttl = 6
	own := etcdtest.Start(t)
	c := own.Client(t)
	terms, wait := seenTerms(t, c, "kill")
	start := func(n, ttl int) *process {
		p := startHelper(t, "replica", lockerArg{Endpoints: own.Endpoints(), Name: "kill", Seconds: ttl})
		harness.QueueIs(t, c, "kill", n)
		return p
	}
	leader := start(1, ttl)
	next := start(2, 5*ttl) // it must not lose its term
	wait("began", 1)
	leader.signal(t, syscall.SIGKILL)
	killed := time.Now()
	wait("began", 2)
	after := terms()[1].at["began"].Sub(killed)
	require.Less(t, after, (ttl+10)*time.Second)
	require.Less(t, terms()[0].gone, terms()[1].began, "two replicas lead at once")
	t.Logf("shown: TTL %d s, leader killed: the next replica leads %v later", ttl, after.Round(time.Millisecond))
	next.signal(t, syscall.SIGTERM)
	exits(t, next)
}

//go:build unix

package faults

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	etcds "go.etcd.io/etcd/client/v3/concurrency"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/concurrency"
	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/test/harness"
)

// An election is one of etcd's package or of the drop-in. Observe is not in it: with etcd's client 3.6, etcd's Observe
// sends responses, else both send pointers to them.
type election interface {
	Campaign(ctx context.Context, val string) error
	Proclaim(ctx context.Context, val string) error
	Resign(ctx context.Context) error
	Leader(ctx context.Context) (*clientv3.GetResponse, error)
}

// A said is what a candidate says: that it leads, or what it has observed, or read.
type said struct{ What, Value string }

// candidateProcess campaigns with a value, as the first word of What says: with etcd's package or with the drop-in. It
// observes all the time. It does what the lines of its input say: proclaim a value, read the leader's, resign.
func candidateProcess(ctx context.Context, a lockerArg, c *clientv3.Client, in *bufio.Reader) error {
	kind, value, _ := strings.Cut(a.What, " ")
	var mu sync.Mutex
	out := json.NewEncoder(os.Stdout)
	say := func(what, value string) {
		mu.Lock()
		defer mu.Unlock()
		_ = out.Encode(said{what, value})
	}
	var e election
	var observe func()
	if kind == "etcd" {
		s, err := etcds.NewSession(c, etcds.WithTTL(a.Seconds))
		if err != nil {
			return err
		}
		defer s.Close()
		etcd := etcds.NewElection(s, a.Name)
		e, observe = etcd, func() {
			for got := range etcd.Observe(ctx) {
				say("observes", string(got.Kvs[0].Value))
			}
		}
	} else {
		s, err := concurrency.NewSession(c, concurrency.WithTTL(a.Seconds))
		if err != nil {
			return err
		}
		defer s.Close()
		ours := concurrency.NewElection(s, a.Name)
		e, observe = ours, func() {
			for got := range ours.Observe(ctx) {
				say("observes", string(got.Kvs[0].Value))
			}
		}
	}
	go observe()
	go func() {
		if err := e.Campaign(ctx, value); err != nil {
			say("fails", err.Error())
			return
		}
		say("leads", value)
	}()
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return nil // the test has ended
		}
		what, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch what {
		case "proclaim":
			err = e.Proclaim(ctx, value)
		case "resign":
			err = e.Resign(ctx)
		case "read":
			got, rerr := e.Leader(ctx)
			if err = rerr; err == nil {
				say("reads", string(got.Kvs[0].Value))
			}
		}
		if err != nil {
			say("fails", err.Error())
		}
	}
}

// Candidates of both kinds lead one after the other, in the order in which they came. Each of them, and an Elector, sees
// every leader and its values, whoever writes them.
func TestDropIn_MixedElection(t *testing.T) {
	t.Parallel()
	own := etcdtest.Start(t)
	c := own.Client(t)
	const name = "/service/leader/"
	var all []*process
	for i, kind := range []string{"etcd", "dropin", "etcd", "dropin"} {
		a := lockerArg{Endpoints: own.Endpoints(), Name: name, What: fmt.Sprintf("%s %s-%d", kind, kind, i), Seconds: 6}
		all = append(all, startHelper(t, "candidate", a))
		harness.QueueIs(t, c, name, i+1)
	}
	// until reads what a candidate says until it has said that, in whatever order.
	heard := map[*process]map[said]bool{}
	until := func(p *process, what, value string) {
		t.Helper()
		if heard[p] == nil {
			heard[p] = map[said]bool{}
		}
		for !heard[p][said{what, value}] {
			var s said
			p.read(t, &s)
			require.NotEqual(t, "fails", s.What, s.Value)
			heard[p][s] = true
		}
	}
	elector := etcdlock.New(c, etcdlock.WithTrailingSlash()).Elector(name)
	everybody := func(living []*process, value string) {
		t.Helper()
		for _, p := range living {
			until(p, "observes", value)
			fmt.Fprintln(p.in, "read")
			until(p, "reads", value)
		}
		leader, err := elector.Leader(harness.Ctx(t))
		require.NoError(t, err)
		require.Equal(t, value, leader.Value)
	}
	for i, p := range all {
		value := []string{"etcd-0", "dropin-1", "etcd-2", "dropin-3"}[i]
		until(p, "leads", value)
		everybody(all[i:], value)
		fmt.Fprintln(p.in, "proclaim", value+"-moved")
		everybody(all[i:], value+"-moved")
		if i < 2 {
			fmt.Fprintln(p.in, "resign")
			harness.QueueIs(t, c, name, 3-i)
		} else {
			p.signal(t, syscall.SIGKILL)
		}
	}
	require.Eventually(t, func() bool { return len(harness.Entries(t, c, name)) == 0 }, harness.Hang, 20*time.Millisecond)
}

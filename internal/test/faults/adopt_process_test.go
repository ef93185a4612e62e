//go:build unix

package faults

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/test/harness"
	"github.com/etcdlock/etcdlock/internal/test/sample"
)

// A took is what a process says when it has its lock.
type took struct {
	Lease clientv3.LeaseID
	Token int64
	Fence bool // a transaction that is guarded by the hold was carried out
}

// adopterProcess takes a lock, or adopts the one of the process before, whose lease What names. It has the lock until it
// is killed, or until a line comes: then it unlocks.
func adopterProcess(ctx context.Context, a lockerArg, c *clientv3.Client, in *bufio.Reader) error {
	ctx, cancel := context.WithTimeout(ctx, 2*harness.Hang)
	defer cancel()
	lease, err := strconv.ParseInt(a.What, 16, 64)
	if err != nil {
		return err
	}
	s, err := etcdlock.NewSession(ctx, c, etcdlock.WithTTL(time.Duration(a.Seconds)*time.Second), etcdlock.WithLease(clientv3.LeaseID(lease)))
	if err != nil {
		return err
	}
	take := etcdlock.NewMutex(s, a.Name).Lock
	if lease != 0 {
		take = func(ctx context.Context) (*etcdlock.Held, error) { return s.Adopt(ctx, a.Name) }
	}
	h, err := take(ctx)
	if err != nil {
		return err
	}
	resp, err := h.Txn(ctx).Then(clientv3.OpPut(a.Name+".log", strconv.Itoa(os.Getpid()))).Commit()
	if err != nil {
		return err
	}
	if err := json.NewEncoder(os.Stdout).Encode(took{s.Lease(), h.Token(), resp.Succeeded}); err != nil {
		return err
	}
	if _, err := in.ReadString('\n'); err != nil {
		return err
	}
	if err := h.Unlock(ctx); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode("released")
}

// A process that has a lock is killed again and again, every second time at some moment of its start or adoption, and the
// process that follows goes on with the hold. Nobody else has the lock in between.
func TestAdopt_ProcessKilled(t *testing.T) {
	t.Parallel()
	restarts, ttl := sample.Rounds(t, 16, 100), 60 // the TTL is long: no restart may count on its end
	own := etcdtest.Start(t)
	c := own.Client(t)
	start := func(lease clientv3.LeaseID) *process {
		return startHelper(t, "adopter", lockerArg{Endpoints: own.Endpoints(), Name: "a", What: strconv.FormatInt(int64(lease), 16), Seconds: ttl})
	}
	p := start(0)
	var first took
	p.read(t, &first)
	tk, err := etcdlock.NewMutex(newSession(t, c, etcdlock.WithTTL(time.Duration(ttl)*time.Second)), "a").Enqueue(harness.Ctx(t))
	require.NoError(t, err)
	adopted := 0
	for i := range restarts {
		p.signal(t, syscall.SIGKILL)
		_, _ = p.cmd.Process.Wait()
		p = start(first.Lease)
		if i%2 == 0 { // while it starts, or adopts
			<-time.After(rand.N(300 * time.Millisecond))
			continue
		}
		var got took
		p.read(t, &got)
		require.Equal(t, took{first.Lease, first.Token, true}, got)
		adopted++
		harness.NotGranted(t, tk, 1)
	}
	require.Equal(t, restarts/2, adopted)
	fmt.Fprintln(p.in, "release")
	var said string
	p.read(t, &said)
	require.Equal(t, "released", said)
	h, err := tk.Wait(harness.Ctx(t))
	require.NoError(t, err)
	require.Equal(t, []string{h.Key()}, harness.Entries(t, c, "a"))
	require.Greater(t, h.Token(), first.Token)
}

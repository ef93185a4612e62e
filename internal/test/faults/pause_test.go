//go:build unix

package faults

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/test/harness"
)

// Rows F4, F6 and F12: the process of the holder, or of an etcd member, is paused.

// holderTTL is the TTL of a holder that is paused.
const holderTTL = 6 * time.Second

// holderProcess takes a lock and is paused while it holds it. When it is resumed, it prints
// the result of each call, beginning with a.What.
func holderProcess(ctx context.Context, a lockerArg, c *clientv3.Client, in *bufio.Reader) error {
	ctx, cancel := context.WithTimeout(ctx, 2*harness.Hang)
	defer cancel()
	s, err := etcdlock.NewSession(ctx, c, etcdlock.WithTTL(holderTTL))
	if err != nil {
		return err
	}
	h, err := etcdlock.NewMutex(s, a.Name).Lock(ctx)
	if err != nil {
		return err
	}
	done := h.Done()
	out := json.NewEncoder(os.Stdout)
	if err := out.Encode(h.Token()); err != nil {
		return err
	}
	if _, err := in.ReadByte(); err != nil { // do not spin longer than needed
		return err
	}
	// The process is paused in this loop, which reads the clock. So when it is
	// resumed, it continues before any timer has fired.
	began := time.Now()
	last := began
	if err := out.Encode("awake"); err != nil {
		return err
	}
	for {
		now := time.Now()
		if now.Sub(last) > holderTTL { // a machine that stalls does so for less
			break
		}
		if last = now; now.Sub(began) > harness.Hang {
			return errors.New("the process was not paused")
		}
	}
	calls := map[string]func() error{
		"Valid": func() error {
			if !h.Valid() {
				return etcdlock.ErrLost
			}
			return nil
		},
		"Err":   h.Err,
		"Check": func() error { return h.Check(ctx) },
		"Txn": func() error {
			_, err := h.Txn(ctx).Then(clientv3.OpPut(a.Name+".guarded", "stale")).Commit()
			return err
		},
		"Unlock": func() error { return h.Unlock(ctx) },
	}
	said := map[string]string{}
	for _, call := range []string{a.What, "Valid", "Err", "Check", "Txn", "Unlock"} {
		if said[call] == "" {
			said[call] = "succeeded"
			if err := calls[call](); errors.Is(err, etcdlock.ErrLost) {
				said[call] = "lost"
			} else if err != nil {
				said[call] = err.Error()
			}
		}
	}
	<-done
	said["the store"] = "succeeded"
	if ok, err := storeWrite(ctx, c, a.Name+".store", "stale", h.Token()); err != nil {
		return err
	} else if !ok {
		said["the store"] = "refused"
	}
	return out.Encode(said)
}

// storeWrite writes to a store that knows nothing of locks. The store refuses tokens lower
// than the highest that it has seen.
func storeWrite(ctx context.Context, c *clientv3.Client, key, value string, token int64) (bool, error) {
	seen := fmt.Sprintf("%020d", token)
	resp, err := c.Txn(ctx).If(clientv3.Compare(clientv3.Value(key+".token"), ">", seen)).
		Else(clientv3.OpPut(key, value), clientv3.OpPut(key+".token", seen)).Commit()
	if err != nil {
		return false, err
	}
	return !resp.Succeeded, nil
}

// A holder is stopped for longer than its TTL, and another session gets its lock. Each call that
// the holder may make first when it is resumed reports the loss.
func TestFault_F4_HolderPaused(t *testing.T) {
	t.Parallel()
	c := cluster.Client(t)
	s := newSession(t, c)
	name := harness.LockName(t)
	firsts := []string{"Valid", "Err", "Check", "Txn", "Unlock"}
	holders := map[string]*process{}
	for _, first := range firsts {
		holders[first] = startHelper(t, "holder", lockerArg{Endpoints: cluster.Endpoints(), Name: name + first, What: first})
	}
	tokens, next := map[string]int64{}, map[string]*etcdlock.Ticket{}
	for _, first := range firsts {
		var token int64
		holders[first].read(t, &token)
		tokens[first] = token
		tk, err := etcdlock.NewMutex(s, name+first).Enqueue(harness.Ctx(t))
		require.NoError(t, err)
		harness.NotGranted(t, tk, 1)
		next[first] = tk
	}
	for _, p := range holders {
		_, err := p.in.Write([]byte{'\n'})
		require.NoError(t, err)
		var awake string
		p.read(t, &awake)
		p.signal(t, syscall.SIGSTOP)
	}
	paused := time.NewTimer(holderTTL * 3 / 2)
	for _, first := range firsts {
		h, err := next[first].Wait(harness.Ctx(t))
		require.NoError(t, err)
		require.Greater(t, h.Token(), tokens[first])
		ok, err := storeWrite(harness.Ctx(t), c, name+first+".store", "new", h.Token())
		require.NoError(t, err)
		require.True(t, ok)
	}
	<-paused.C
	for _, p := range holders {
		p.signal(t, syscall.SIGCONT)
	}
	for _, first := range firsts {
		said := map[string]string{}
		holders[first].read(t, &said)
		require.Equal(t, map[string]string{
			"Valid": "lost", "Err": "lost", "Check": "lost", "Txn": "lost", "Unlock": "lost", "the store": "refused",
		}, said, "first "+first)
		h, err := next[first].Wait(harness.Ctx(t))
		require.NoError(t, err)
		require.NoError(t, h.Check(harness.Ctx(t)))
		got, err := c.Get(harness.Ctx(t), name+first+".", clientv3.WithPrefix())
		require.NoError(t, err)
		for _, kv := range got.Kvs {
			require.NotEqual(t, "stale", string(kv.Value), string(kv.Key))
		}
		require.NoError(t, h.Unlock(harness.Ctx(t)))
	}
}

// A member is paused with its connections open. No session is lost, no waiter fails, and
// locks are still handed over.
func TestFault_F12_MemberPaused(t *testing.T) {
	t.Parallel()
	members, endpoints := startProcesses(t)
	for _, of := range []struct {
		role       string
		ttl, pause time.Duration
	}{
		{"follower", 9 * time.Second, 10 * time.Second},
		// Shorter than the TTL; see TestFault_F6_OldLeaderWakes.
		{"leader", 15 * time.Second, 3 * time.Second},
	} {
		at := leaderOf(t, endpoints)
		if of.role == "follower" {
			at = (at + 1) % 3
		}
		var sessions []*etcdlock.Session
		var tickets []*etcdlock.Ticket
		var holds []*etcdlock.Held
		for i := range 3 {
			s := newSession(t, processClient(t, endpoints), etcdlock.WithTTL(of.ttl))
			tk, err := etcdlock.NewMutex(s, "shared").Enqueue(harness.Ctx(t))
			require.NoError(t, err)
			h, err := etcdlock.NewMutex(s, fmt.Sprint("own", i)).Lock(harness.Ctx(t))
			require.NoError(t, err)
			h.Done()
			sessions, tickets, holds = append(sessions, s), append(tickets, tk), append(holds, h)
		}
		members[at].signal(t, syscall.SIGSTOP)
		// These waits have no short bound: a waiter whose watch is on a paused leader may ask
		// etcd itself only after most of its TTL.
		over := make(chan error, 1)
		time.AfterFunc(of.pause, func() { over <- members[at].cmd.Process.Signal(syscall.SIGCONT) })
		slowest := time.Duration(0)
		for _, tk := range tickets {
			began := time.Now()
			h, err := tk.Wait(harness.Ctx(t))
			require.NoError(t, err, of.role)
			require.NoError(t, h.Unlock(harness.Ctx(t)))
			slowest = max(slowest, time.Since(began))
		}
		require.NoError(t, <-over)
		for i, s := range sessions {
			require.NoError(t, holds[i].Check(harness.Ctx(t)))
			require.NoError(t, s.Refresh(harness.Ctx(t)))
			select {
			case <-holds[i].Done():
				t.Error(of.role, holds[i].Err())
			default:
			}
			require.NoError(t, holds[i].Unlock(harness.Ctx(t)))
			require.NoError(t, s.Close())
		}
		t.Logf("shown: %s paused: a hand-over took at most %v", of.role, slowest.Round(100*time.Millisecond))
	}
}

// A leader that was paused for longer than a TTL may, when it is resumed, revoke leases that
// were renewed with the new leader: its clock ticks before it checks whether it still leads
// (EtcdServer.ensureLeadership, isActive). No client can prevent this, but the holders are
// told.
func TestFault_F6_OldLeaderWakes(t *testing.T) {
	t.Parallel()
	members, endpoints := startProcesses(t)
	at := leaderOf(t, endpoints)
	others := []string{endpoints[(at+1)%3], endpoints[(at+2)%3]}
	gone := map[string]time.Time{}
	ctx, cancel := context.WithCancel(harness.Ctx(t))
	watching, stopWatching := context.WithCancel(ctx)
	deletions := processClient(t, others).Watch(watching, "a", clientv3.WithPrefix(), clientv3.WithFilterPut(), clientv3.WithCreatedNotify())
	<-deletions
	var wg, watch sync.WaitGroup
	watch.Go(func() {
		for wr := range deletions {
			for _, ev := range wr.Events {
				gone[string(ev.Kv.Key)] = time.Now()
			}
		}
	})
	holds := make([]*etcdlock.Held, 10)
	lost := make([]time.Time, len(holds))
	for i := range holds {
		s := newSession(t, processClient(t, endpoints), etcdlock.WithTTL(5*time.Second))
		h, err := etcdlock.NewMutex(s, fmt.Sprint("a", i)).Lock(harness.Ctx(t))
		require.NoError(t, err)
		holds[i] = h
		wg.Go(func() {
			select {
			case <-h.Done():
				lost[i] = time.Now()
			case <-ctx.Done():
			}
		})
	}
	lateness := measureLateness(t)
	members[at].signal(t, syscall.SIGSTOP)
	harness.Elapse(7 * time.Second)
	members[at].signal(t, syscall.SIGCONT)
	harness.Elapse(2 * harness.Told)
	for _, h := range holds {
		if err := h.Check(harness.Ctx(t)); err != nil {
			require.ErrorIs(t, err, etcdlock.ErrLost)
		}
	}
	stopWatching()
	watch.Wait()
	for i, h := range holds {
		if _, is := gone[h.Key()]; is {
			select {
			case <-h.Done():
			case <-time.After(harness.Hang):
				t.Fatalf("%d: the holder is not told of the loss", i)
			}
		}
	}
	cancel()
	wg.Wait()
	late := lateness()
	for i, h := range holds {
		if at, is := gone[h.Key()]; is && !lost[i].IsZero() { // else both have ended
			require.Less(t, lost[i].Sub(at), harness.ToldLate+late)
		}
	}
	t.Logf("shown: TTL 5 s, leader paused for 7 s: %d of %d leases revoked in spite of renewals, all holders told", len(gone), len(holds))
}

// The first of two waiters is a process that is killed. The second waits until the lease of
// the first has expired, and does not get the lock before the holder unlocks.
func TestMutex_WaiterInTheMiddleIsKilled(t *testing.T) {
	t.Parallel()
	c, name := cluster.Client(t), harness.LockName(t)
	h, err := etcdlock.NewMutex(newSession(t, c), name).Lock(harness.Ctx(t))
	require.NoError(t, err)
	middle := startHelper(t, "holder", lockerArg{Endpoints: cluster.Endpoints(), Name: name, What: "Err"})
	require.Eventually(t, func() bool { return len(harness.Entries(t, c, name)) == 2 }, harness.Hang, harness.Tick)
	last, err := etcdlock.NewMutex(newSession(t, c), name).Enqueue(harness.Ctx(t))
	require.NoError(t, err)
	harness.NotGranted(t, last, 2)
	middle.signal(t, syscall.SIGKILL)
	require.Eventually(t, func() bool { return len(harness.Entries(t, c, name)) == 2 }, harness.Hang, harness.Tick, "etcd must remove its entry")
	harness.NotGranted(t, last, 1)
	require.NoError(t, h.Check(harness.Ctx(t)))
	require.NoError(t, h.Unlock(harness.Ctx(t)))
	h2, err := last.Wait(harness.Ctx(t))
	require.NoError(t, err)
	require.NoError(t, h2.Unlock(harness.Ctx(t)))
}

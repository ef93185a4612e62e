//go:build unix

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
)

func TestShow(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	client := cluster.Client(t)
	status, out, _ := ask(t, cluster, "show", "x")
	require.Zero(t, status)
	require.Equal(t, "x: free", out)
	_, out, _ = ask(t, cluster, "show", "x", "-o", "json")
	require.JSONEq(t, `{"name":"x","revision":1,"entries":[]}`, out)

	enqueued(t, client, "ann", "x")
	s, err := concurrency.NewSession(client)
	require.NoError(t, err)
	m := concurrency.NewMutex(s, "x")
	require.ErrorIs(t, m.TryLock(bounded(t)), concurrency.ErrLocked)
	go func() { _ = m.Lock(bounded(t)) }()
	waiters(t, client, "x", 2)
	enqueued(t, client, "bob\x1b[31m\n", "x")
	status, out, _ = ask(t, cluster, "show", "x")
	require.Zero(t, status)
	require.Regexp(t, `^x: held, 2 waiting

STATE +KIND +QUEUED +HELD +LEASE +OWNER +ENTRY
holds +exclusive +\d+s +≤\d+s +\d+ of 10s +ann +x/[0-9a-f]+@\d+
place 1 +exclusive +\? +- +\d+ of 60s +unknown \(lease [0-9a-f]+\) +x/[0-9a-f]+@\d+
place 2 +exclusive +\d+s +- +\d+ of 10s +bob\x{fffd}\[31m\x{fffd} +x/[0-9a-f]+@\d+$`, out)
	_, out, _ = ask(t, cluster, "show", "x", "-o", "json")
	var q etcdlock.Queue
	require.NoError(t, json.Unmarshal([]byte(out), &q))
	require.Len(t, q.Waiters(), 2)
	require.Equal(t, "ann", q.Holders()[0].Owner)
}

// Without a terminal each change is a block of lines, or a line of JSON.
func TestShow_WatchPiped(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	client := cluster.Client(t)
	env := []string{"ETCDCTL_ENDPOINTS=" + cluster.Endpoints()[0]}
	r := start(t, env, "show", "x", "--watch")
	r.until(t, "^x: free$")
	ann := enqueued(t, client, "ann", "x")
	r.until(t, "^holds .* ann ")
	bob := enqueued(t, client, "bob", "x")
	r.until(t, `^place 1 .* bob `)
	require.NoError(t, ann.Close())
	r.until(t, `^holds .* bob +↑ was place 1 `)
	r.until(t, `^\d\d:\d\d:\d\d  ann left the lock$`)
	r.until(t, `^\d\d:\d\d:\d\d  bob got the lock, \d+s after it arrived$`)
	require.NoError(t, bob.Close())
	r.until(t, "^x: free$")
	require.NoError(t, r.cmd.Process.Signal(os.Interrupt))
	require.Equal(t, 130, r.wait(t))
	require.Empty(t, r.stderr.String())
	require.NotContains(t, r.output(), "\x1b")

	r = start(t, env, "show", "x", "--watch", "-o", "json")
	r.until(t, `^\{"name":"x",.*"entries":\[\]\}$`)
	enqueued(t, client, "cyd", "x")
	r.until(t, `^\{"name":"x",.*"owner":"cyd".*\}$`)
	require.NoError(t, r.cmd.Process.Signal(syscall.SIGTERM))
	require.Equal(t, 143, r.wait(t))

	// It ends when nobody reads its output any more.
	unread(t, env, "show", "x", "--watch", "-o", "json")
}

// Etcd does not store when a lock was granted. So HELD counts from what --watch saw,
// and is otherwise only known to be at most the time in the queue.
func TestShow_Held(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	client := cluster.Client(t)
	ann := enqueued(t, client, "ann", "x")
	lease, err := client.Grant(bounded(t), 600)
	require.NoError(t, err)
	ago := time.Now().Add(-3 * time.Hour).UTC().Format(time.RFC3339Nano)
	_, err = client.Put(bounded(t), fmt.Sprintf("x/%x", lease.ID), `{"owner":"bob","queued":"`+ago+`"}`, clientv3.WithLease(lease.ID))
	require.NoError(t, err)

	r := start(t, []string{"ETCDCTL_ENDPOINTS=" + cluster.Endpoints()[0]}, "show", "x", "--watch")
	r.until(t, `^holds +exclusive +\d+s +≤\d+s +ann `)
	r.until(t, `^place 1 +exclusive +3h00m +- +bob `)
	require.NoError(t, ann.Close())
	r.until(t, `^holds +exclusive +3h00m +\d+s +bob `)
	require.NoError(t, r.cmd.Process.Signal(os.Interrupt))
	require.Equal(t, 130, r.wait(t))

	_, out, _ := ask(t, cluster, "show", "x")
	require.Regexp(t, `\nholds +exclusive +3h00m +≤3h00m +`, out)

	// A time in the future says nothing about the hold.
	later := time.Now().Add(time.Hour).UTC().Format(time.RFC3339Nano)
	_, err = client.Put(bounded(t), fmt.Sprintf("y/%x", lease.ID), `{"owner":"bob","queued":"`+later+`"}`, clientv3.WithLease(lease.ID))
	require.NoError(t, err)
	_, out, _ = ask(t, cluster, "show", "y")
	require.Regexp(t, `\nholds +exclusive +-\S+ +\? +`, out)
}

// A downgraded write lock is the same entry under another key.
func TestShow_WatchDowngrade(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	client := cluster.Client(t)
	s, err := etcdlock.NewSession(bounded(t), client, etcdlock.WithOwner("ann"))
	require.NoError(t, err)
	r := start(t, []string{"ETCDCTL_ENDPOINTS=" + cluster.Endpoints()[0]}, "show", "x", "--watch")
	r.until(t, "^x: free$")
	h, err := etcdlock.NewRWMutex(s, "x").Lock(bounded(t))
	require.NoError(t, err)
	r.until(t, `^holds +exclusive .* ann `)
	require.NoError(t, h.Downgrade(bounded(t)))
	r.until(t, `^holds +shared .* ann `)
	require.NoError(t, s.Close())
	r.until(t, "^x: free$")
	r.until(t, "  ann left the lock$")
	require.NoError(t, r.cmd.Process.Signal(os.Interrupt))
	require.Equal(t, 130, r.wait(t))
	require.Equal(t, 1, strings.Count(r.output(), "left the lock"), "at the end alone")
}

// When etcd goes away, --watch says that what it shows may be out of date.
func TestShow_WatchEtcdAway(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	proxy := cluster.Proxy(t)
	enqueued(t, cluster.Client(t), "ann", "x", etcdlock.WithTTL(60*time.Second))
	c := onConsole(t, proxy.Endpoints(), binary, "show", "x", "--watch", "--dial-timeout=4s")
	c.until(t, `holds[^\n]* ann `)
	r := merged(t, []string{"ETCDCTL_ENDPOINTS=" + proxy.Endpoints()[0]}, "show", "x", "--watch", "--dial-timeout=4s")
	r.until(t, `^holds .* ann `)
	proxy.Blackhole(etcdtest.ToServer)
	proxy.Refuse()
	r.until(t, `^etcdlock: x: etcd does not answer, so the last state may be out of date: no etcd answers at .* within 4s \(.+\)$`)
	c.until(t, `; perhaps not any more, because etcd has not answered since \d\d:\d\d:\d\d`)
	c.until(t, `\d\d:\d\d:\d\d  no etcd answers at`)
	proxy.Heal()
	r.until(t, `^etcdlock: x: etcd answers again$`)
	c.until(t, `\d\d:\d\d:\d\d  etcd answers again`)
	require.NoError(t, r.cmd.Process.Signal(os.Interrupt))
	require.Equal(t, 130, r.wait(t))
	c.types(t, ctrlC)
	require.Equal(t, 130, c.ends(t).ExitStatus())
}

// On a terminal it draws in place. The last state stays.
func TestShow_WatchTerminal(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	client := cluster.Client(t)
	c := onConsole(t, cluster.Endpoints(), binary, "show", "x", "--watch")
	c.until(t, `x\x1b\[0m: free`)
	ann := enqueued(t, client, "ann", "x")
	c.until(t, `\x1b\[1;32mholds[^\n]* ann `)
	enqueued(t, client, "bob", "x")
	c.until(t, `place 1[^\n]* bob +new `)
	require.NoError(t, ann.Close())
	c.until(t, `\x1b\[1;32mholds[^\n]* bob +↑ was place 1 `)
	c.until(t, `bob got the lock, \d+s after it arrived`)
	c.until(t, `holds +exclusive +\d+s +[1-9]\d*s +bob`) // the times change without an event
	c.types(t, ctrlC)
	require.Equal(t, 130, c.ends(t).ExitStatus())
	<-c.closed
	all := c.out.String()
	require.Equal(t, 1, strings.Count(all, "\x1b[?25l"), "the cursor is hidden once")
	end := all[strings.LastIndex(all, "\x1b[?25h"):]
	require.Contains(t, end, "bob got the lock", "the last state stays")
	require.Regexp(t, `\x1b\[A`, all)
}

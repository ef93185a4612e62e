package main

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
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

// enqueued puts an entry into a queue. Its session is closed at the end of the test.
func enqueued(t *testing.T, client *clientv3.Client, owner, name string, opts ...etcdlock.SessionOption) *etcdlock.Session {
	t.Helper()
	s, err := etcdlock.NewSession(bounded(t), client, append(opts, etcdlock.WithOwner(owner))...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close(bounded(t)) })
	_, err = etcdlock.NewMutex(s, name).Enqueue(bounded(t))
	require.NoError(t, err)
	return s
}

// ask runs a command to its end.
func ask(t *testing.T, cluster *etcdtest.Cluster, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	r := start(t, []string{"ETCDCTL_ENDPOINTS=" + strings.Join(cluster.Endpoints(), ",")}, args...)
	status = r.wait(t)
	return status, r.output(), r.stderr.String()
}

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
	require.NoError(t, ann.Close(bounded(t)))
	r.until(t, `^holds .* bob +↑ was place 1 `)
	r.until(t, `^\d\d:\d\d:\d\d  ann left the lock$`)
	r.until(t, `^\d\d:\d\d:\d\d  bob got the lock, \d+s after it arrived$`)
	require.NoError(t, bob.Close(bounded(t)))
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
	require.NoError(t, ann.Close(bounded(t)))
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
	require.NoError(t, s.Close(bounded(t)))
	r.until(t, "^x: free$")
	r.until(t, "  ann left the lock$")
	require.NoError(t, r.cmd.Process.Signal(os.Interrupt))
	require.Equal(t, 130, r.wait(t))
	require.Equal(t, 1, strings.Count(r.output(), "left the lock"), "at the end alone")
}

// On a terminal it draws in place, and leaves the last state there.
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
	require.NoError(t, ann.Close(bounded(t)))
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

func TestBreak(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	client := cluster.Client(t)
	r := start(t, []string{"ETCDCTL_ENDPOINTS=" + cluster.Endpoints()[0]}, "run", "x", "--owner=ann", "--", "sh", "-c", "echo in $$ $ETCDLOCK_TOKEN; exec sleep 1000")
	_, token := r.inSection(t)
	bob := enqueued(t, client, "bob", "x")
	keys := waiters(t, client, "x", 2)
	entry := fmt.Sprintf("%s@%d", keys[0], token)

	for args, want := range map[string]string{
		"x nonsense":               `"nonsense" is not of the form KEY@TOKEN: copy one`,
		"x @7":                     `"@7" is not of the form KEY@TOKEN`,
		"x " + keys[0] + "@x":      `is not of the form KEY@TOKEN`,
		"x " + keys[0] + "@0":      `is not of the form KEY@TOKEN`,
		"x " + keys[0] + "@999999": `is not in the queue \(any more\)`,
		"y " + entry:               `is not in the queue \(any more\)`,
		"x " + entry:               `standard input is not a terminal, so nobody can be asked: add --yes`,
		"x":                        `KEY@TOKEN is missing; usage: etcdlock break NAME KEY@TOKEN`,
	} {
		status, out, says := ask(t, cluster, append([]string{"break"}, strings.Fields(args)...)...)
		require.Equal(t, 1, status, args)
		require.Empty(t, out)
		require.Regexp(t, `^etcdlock: [^\n]*`+want+`[^\n]*\n$`, says)
	}
	require.Len(t, waiters(t, client, "x", 2), 2, "every entry is still there")

	for _, answer := range []string{"n\r", "\r", "perhaps\r", ctrlD} {
		c := onConsole(t, cluster.Endpoints(), binary, "break", "x", entry)
		c.until(t, `x: ann \(queued \d+s ago\) holds the lock\. Take it out of the queue\? \[y/N\] `)
		c.types(t, answer)
		c.until(t, `etcdlock: nothing was done`)
		require.Equal(t, 1, c.ends(t).ExitStatus())
	}
	c := onConsole(t, cluster.Endpoints(), binary, "break", "x", entry)
	c.until(t, `\[y/N\] `)
	c.types(t, ctrlC)
	require.Equal(t, 130, c.ends(t).ExitStatus())
	require.Len(t, waiters(t, client, "x", 2), 2, "every entry is still there")

	c = onConsole(t, cluster.Endpoints(), binary, "break", "x", entry)
	c.until(t, `\[y/N\] `)
	c.types(t, "y\r")
	c.until(t, regexp.QuoteMeta("x: "+entry+" is out of the queue"))
	require.Zero(t, c.ends(t).ExitStatus())
	require.Equal(t, 76, r.wait(t), "its command was ended")
	require.Equal(t, keys[1:], waiters(t, client, "x", 1), "the next waiter has the lock")

	status, out, _ := ask(t, cluster, "break", "--yes", "x", fmt.Sprintf("%s@%d", keys[1], revision(t, client, keys[1])))
	require.Zero(t, status)
	require.Contains(t, out, "is out of the queue")
	require.NoError(t, bob.Close(bounded(t)))
	noKeys(t, client)
}

// Etcd's own locks don't watch their entries: break says so first.
func TestBreak_Deaf(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	client := cluster.Client(t)
	s, err := concurrency.NewSession(client)
	require.NoError(t, err)
	m := concurrency.NewMutex(s, "x")
	require.NoError(t, m.Lock(bounded(t)))
	entry := fmt.Sprintf("%s@%d", m.Key(), revision(t, client, m.Key()))
	const warning = `holds the lock\. It will not hear of this, and goes on as if it held the lock: .* End it first\.`

	c := onConsole(t, cluster.Endpoints(), binary, "break", "x", entry)
	c.until(t, `x: unknown \(lease [0-9a-f]+\) `+warning+`\s+Take it out of the queue\? \[y/N\] `)
	c.types(t, "n\r")
	require.Equal(t, 1, c.ends(t).ExitStatus())

	status, out, says := ask(t, cluster, "break", "--yes", "x", entry)
	require.Zero(t, status)
	require.Contains(t, out, "is out of the queue")
	require.Regexp(t, `^etcdlock: x: unknown \(lease [0-9a-f]+\) `+warning+`\n$`, says)
	require.NoError(t, s.Close())

	// One that hears of it is broken without a word.
	enqueued(t, client, "ann", "x")
	keys := waiters(t, client, "x", 1)
	status, _, says = ask(t, cluster, "break", "--yes", "x", fmt.Sprintf("%s@%d", keys[0], revision(t, client, keys[0])))
	require.Zero(t, status)
	require.Empty(t, says)
}

func revision(t *testing.T, client *clientv3.Client, key string) int64 {
	t.Helper()
	got, err := client.Get(bounded(t), key)
	require.NoError(t, err)
	require.Len(t, got.Kvs, 1)
	return got.Kvs[0].CreateRevision
}

// The shell completes names of locks, and entries for break.
func TestCompletion(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	client := cluster.Client(t)
	enqueued(t, client, "ann", "jobs/a")
	enqueued(t, client, "bob", "jobs/b")
	enqueued(t, client, "cyd", "other")
	lines := func(args ...string) []string {
		_, out, _ := ask(t, cluster, append([]string{"__complete"}, args...)...)
		return strings.Split(out, "\n")
	}
	for _, command := range []string{"run", "elect", "show", "ls", "break", "doctor"} {
		require.Equal(t, []string{"jobs/a", "jobs/b", ":4"}, lines(command, "jo"), command)
	}
	require.Regexp(t, `^jobs/b/[0-9a-f]+@\d+\tbob, holds\n:36$`, strings.Join(lines("break", "jobs/b", ""), "\n"))
	require.Equal(t, []string{":0"}, lines("run", "jobs/b", "--", ""))
	require.Equal(t, []string{"table", "json", ":4"}, lines("show", "-o", ""))
	require.Equal(t, []string{":4"}, lines("show", "--endpoints=127.0.0.1:1", "jo"), "no error disturbs somebody who types")
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		status, out, _ := ask(t, cluster, "completion", shell)
		require.Zero(t, status)
		require.Contains(t, out, "etcdlock")
	}
}

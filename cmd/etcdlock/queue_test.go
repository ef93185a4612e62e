package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
)

// enqueued puts an entry into a queue; its session closes with the test.
func enqueued(t *testing.T, client *clientv3.Client, owner, name string, opts ...etcdlock.Option) *etcdlock.Session {
	t.Helper()
	s, err := etcdlock.NewSession(bounded(t), client, append(opts, etcdlock.WithOwner(owner))...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close() })
	_, err = etcdlock.NewMutex(s, name).Enqueue(bounded(t))
	require.NoError(t, err)
	return s
}

// ask runs a command that ends by itself.
func ask(t *testing.T, cluster *etcdtest.Cluster, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	r := start(t, []string{"ETCDCTL_ENDPOINTS=" + strings.Join(cluster.Endpoints(), ",")}, args...)
	status = r.wait(t)
	return status, r.output(), r.stderr.String()
}

func TestList(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	client := cluster.Client(t)
	status, out, says := ask(t, cluster, "ls")
	require.Zero(t, status)
	require.Empty(t, out)
	require.Equal(t, "nobody holds or waits for a lock\n", says)

	enqueued(t, client, "ann", "jobs/a")
	enqueued(t, client, "bob\x1b[31m\n", "jobs/a")
	s := enqueued(t, client, "cyd", "other")
	_, err := etcdlock.NewRWMutex(s, "jobs/r").RLock(bounded(t))
	require.NoError(t, err)
	_, err = etcdlock.NewRWMutex(s, "jobs/r").RLock(bounded(t))
	require.NoError(t, err)
	status, out, says = ask(t, cluster, "ls")
	require.Zero(t, status, says)
	require.Regexp(t, `^NAME +HELD BY +SINCE +WAITING
jobs/a +ann +\d+s +1
jobs/r +cyd and 1 more +\d+s +0
other +cyd +\d+s +0$`, out)
	_, out, _ = ask(t, cluster, "ls", "-q", "jobs")
	require.Equal(t, "jobs/a\njobs/r", out)
	_, out, _ = ask(t, cluster, "ls", "-o", "json", "jobs/a")
	var q etcdlock.Queue
	require.NoError(t, json.Unmarshal([]byte(out), &q))
	require.Equal(t, "bob\x1b[31m\n", q.Entries[1].Owner, "programs get it as it is")
	_, _, says = ask(t, cluster, "ls", "none")
	require.Equal(t, "nobody holds or waits for a lock whose name starts with \"none\"\n", says)
	status, _, says = ask(t, cluster, "ls", "-o", "xml")
	require.Equal(t, 1, status)
	require.Regexp(t, `^etcdlock: invalid argument "xml" for "-o, --output" flag: it is table or json\n$`, says)
	status, out, says = ask(t, cluster, "ls", "-q", "-o", "json")
	require.Equal(t, 1, status)
	require.Empty(t, out)
	require.Equal(t, "etcdlock: -q and -o json don't go together: choose one\n", says)
}

// A lock whose last entry goes after it was listed is not listed.
func TestList_Emptied(t *testing.T) {
	t.Parallel()
	listed, emptied := make(chan struct{}), make(chan struct{})
	cluster := etcdtest.Start(t, intercepted(func(ctx context.Context, req any) {
		if r, ok := req.(*pb.RangeRequest); ok && string(r.Key) == "x/" {
			select {
			case listed <- struct{}{}:
				<-emptied
			case <-ctx.Done():
			}
		}
	}))
	client := cluster.Client(t)
	for output, says := range map[string]string{"table": "nobody holds or waits for a lock\n", "json": ""} {
		_, err := client.Put(bounded(t), "x/abc", "")
		require.NoError(t, err)
		r := start(t, []string{"ETCDCTL_ENDPOINTS=" + cluster.Endpoints()[0]}, "ls", "-o", output)
		<-listed
		_, err = client.Delete(bounded(t), "x/abc")
		require.NoError(t, err)
		emptied <- struct{}{}
		require.Zero(t, r.wait(t))
		require.Empty(t, r.output())
		require.Equal(t, says, r.stderr.String())
	}
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

STATE +KIND +SINCE +LEASE +OWNER +ENTRY
holds +exclusive +\d+s +\d+ of 10s +ann +x/[0-9a-f]+@\d+
place 1 +exclusive +\? +\d+ of 60s +unknown \(lease [0-9a-f]+\) +x/[0-9a-f]+@\d+
place 2 +exclusive +\d+s +\d+ of 10s +bob\x{fffd}\[31m\x{fffd} +x/[0-9a-f]+@\d+$`, out)
	_, out, _ = ask(t, cluster, "show", "x", "-o", "json")
	var q etcdlock.Queue
	require.NoError(t, json.Unmarshal([]byte(out), &q))
	require.Len(t, q.Waiters(), 2)
	require.Equal(t, "ann", q.Holders()[0].Owner)
}

// Without a terminal each change is told in a block, or a line of JSON.
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
	r.until(t, `^\d\d:\d\d:\d\d  bob got the lock, \d+s after it came$`)
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

	// A reader that goes away ends it.
	unread(t, env, "show", "x", "--watch", "-o", "json")
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
	require.NoError(t, ann.Close())
	c.until(t, `\x1b\[1;32mholds[^\n]* bob +↑ was place 1 `)
	c.until(t, `bob got the lock, \d+s after it came`)
	c.until(t, `holds +exclusive +1s`) // time goes on by itself
	c.types(t, ctrlC)
	require.Equal(t, 130, c.ends(t).ExitStatus())
	<-c.closed
	all := c.out.String()
	require.Equal(t, 1, strings.Count(all, "\x1b[?25l"), "the cursor goes")
	end := all[strings.LastIndex(all, "\x1b[?25h"):]
	require.Contains(t, end, "bob got the lock", "what was there last stays")
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
		"x nonsense":               `"nonsense" is no KEY@TOKEN: copy one`,
		"x @7":                     `"@7" is no KEY@TOKEN`,
		"x " + keys[0] + "@x":      `is no KEY@TOKEN`,
		"x " + keys[0] + "@0":      `is no KEY@TOKEN`,
		"x " + keys[0] + "@999999": `is not in the queue \(any more\)`,
		"y " + entry:               `is not in the queue \(any more\)`,
		"x " + entry:               `there is nobody to ask, standard input is no terminal: say --yes`,
		"x":                        `accepts 2 arg`,
	} {
		status, out, says := ask(t, cluster, append([]string{"break"}, strings.Fields(args)...)...)
		require.Equal(t, 1, status, args)
		require.Empty(t, out)
		require.Regexp(t, `^etcdlock: [^\n]*`+want+`[^\n]*\n$`, says)
	}
	require.Len(t, waiters(t, client, "x", 2), 2, "all are still there")

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
	require.Len(t, waiters(t, client, "x", 2), 2, "all are still there")

	c = onConsole(t, cluster.Endpoints(), binary, "break", "x", entry)
	c.until(t, `\[y/N\] `)
	c.types(t, "y\r")
	c.until(t, regexp.QuoteMeta("x: "+entry+" is out of the queue"))
	require.Zero(t, c.ends(t).ExitStatus())
	require.Equal(t, 76, r.wait(t), "its command was ended")
	require.Equal(t, keys[1:], waiters(t, client, "x", 1), "the next one has it")

	status, out, _ := ask(t, cluster, "break", "--yes", "x", fmt.Sprintf("%s@%d", keys[1], revision(t, client, keys[1])))
	require.Zero(t, status)
	require.Contains(t, out, "is out of the queue")
	require.NoError(t, bob.Close())
	noKeys(t, client)
}

func revision(t *testing.T, client *clientv3.Client, key string) int64 {
	t.Helper()
	got, err := client.Get(bounded(t), key)
	require.NoError(t, err)
	require.Len(t, got.Kvs, 1)
	return got.Kvs[0].CreateRevision
}

func TestDoctor(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	client := cluster.Client(t)
	status, out, says := ask(t, cluster, "doctor", "x")
	require.Zero(t, status, says)
	require.Regexp(t, `^x: free
note +etcd 3\.\S+ \(1 of 1 members\)
ok +nothing needs attention$`, out)

	// In the queue: one without a lease, one whose lease nobody renews, one of the
	// future, one that is well; and a key that is no entry.
	ctx := bounded(t)
	put := func(key, value string, opts ...clientv3.OpOption) {
		_, err := client.Put(ctx, key, value, opts...)
		require.NoError(t, err)
	}
	put("x/abc", "")
	put("x/y/1", "")
	ahead := time.Now().Add(time.Hour).UTC().Format(time.RFC3339Nano)
	long, err := client.Grant(ctx, 3600)
	require.NoError(t, err)
	put(fmt.Sprintf("x/%x", long.ID), `{"owner":"the future","queued":"`+ahead+`"}`, clientv3.WithLease(long.ID))
	dead, err := client.Grant(ctx, 60)
	require.NoError(t, err)
	put(fmt.Sprintf("x/%x", dead.ID), `{"owner":"dead"}`, clientv3.WithLease(dead.ID))
	enqueued(t, client, "well", "x", etcdlock.WithTTL(2*time.Second))
	status, out, says = ask(t, cluster, "doctor", "x")
	require.Equal(t, 2, status, says)
	require.Empty(t, says)
	require.Regexp(t, `^x: held, 3 waiting; first is unknown
ATTENTION  x/abc@2 \(holds\) has no lease: it stays until somebody removes it, even if its owner is long gone
 +if its owner is not at work: etcdlock break x x/abc@2
note +etcd 3\.\S+ \(1 of 1 members\)
note +the clock of the future is (1h00m|59m\d\ds) ahead of this machine's; .*
(note +the future came before well, but its clock says (1h00m|59m\d\ds) later: .*
)?note +below x/ are keys that are no entries of this lock, and that it passes over: x/y/1\. .*$`, out)

	status, out, _ = ask(t, cluster, "doctor", "-o", "json", "y")
	require.Zero(t, status)
	require.JSONEq(t, `{"name":"y","revision":`+fmt.Sprint(head(t, client))+`,"attention":false,"findings":[{"attention":false,"what":"etcd `+
		regexp.MustCompile(`etcd (3\.\S+ \(1 of 1 members\))`).FindStringSubmatch(out)[1]+`"}]}`, out)
}

func head(t *testing.T, client *clientv3.Client) int64 {
	t.Helper()
	got, err := client.Get(bounded(t), "x")
	require.NoError(t, err)
	return got.Header.Revision
}

// A lease that nobody renews is seen when it should have been renewed for long.
func TestDoctor_NotRenewed(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	client := cluster.Client(t)
	lease, err := client.Grant(bounded(t), 9)
	require.NoError(t, err)
	_, err = client.Put(bounded(t), fmt.Sprintf("x/%x", lease.ID), `{"owner":"dead"}`, clientv3.WithLease(lease.ID))
	require.NoError(t, err)
	enqueued(t, client, "well", "x", etcdlock.WithTTL(9*time.Second))
	status, out, _ := ask(t, cluster, "doctor", "x")
	require.Equal(t, 2, status, out)
	require.Regexp(t, `ATTENTION  nobody renews the lease of dead \(holds\): of 9s it has [1-4]s left; its process is dead, stopped or cut off
 +nothing: its entry goes by itself in [1-4]s`, out)
	require.Equal(t, 1, strings.Count(out, "ATTENTION"), "the other one is renewed")
}

func TestDoctor_MaxHold(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	client := cluster.Client(t)
	lease, err := client.Grant(bounded(t), 120)
	require.NoError(t, err)
	ago := time.Now().Add(-2 * time.Hour).UTC().Format(time.RFC3339Nano)
	key := fmt.Sprintf("a name/%x", lease.ID)
	_, err = client.Put(bounded(t), key, `{"owner":"the slow one","queued":"`+ago+`"}`, clientv3.WithLease(lease.ID))
	require.NoError(t, err)
	status, out, _ := ask(t, cluster, "doctor", "--max-hold", "1h", "a name")
	require.Equal(t, 2, status)
	require.Regexp(t, `ATTENTION  the slow one holds the lock, and came 2h00m ago, longer than 1h0m0s
 +look at what it does\. If its owner is not at work: etcdlock break 'a name' '`+key+`@\d+'`, out)
	require.Contains(t, out, "if the slow one dies, the lock stays taken for up to 2m0s")
	status, _, _ = ask(t, cluster, "doctor", "--max-hold", "3h", "a name")
	require.Zero(t, status)
	status, _, says := ask(t, cluster, "doctor", "--max-hold=-1s", "x")
	require.Equal(t, 1, status)
	require.Contains(t, says, "it can't be negative")
}

// A member that is down, and one that is cut off from the others.
func TestDoctor_Members(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t, etcdtest.WithMembers(3))
	cluster.Member(1).Kill()
	_, err := cluster.Leader(bounded(t))
	require.NoError(t, err)
	status, out, _ := ask(t, cluster, "doctor", "x")
	require.Equal(t, 2, status)
	require.Contains(t, out, "etcd's member at "+cluster.Member(1).Endpoint()+" does not answer: ")
	require.Contains(t, out, "(2 of 3 members)")
	require.Equal(t, 1, strings.Count(out, "ATTENTION"))
}

// The shell completes names, and what may be broken.
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
	require.Equal(t, []string{":4"}, lines("show", "--endpoints=127.0.0.1:1", "jo"), "nothing is said to somebody at the tab key")
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		status, out, _ := ask(t, cluster, "completion", shell)
		require.Zero(t, status)
		require.Contains(t, out, "etcdlock")
	}
}

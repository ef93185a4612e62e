//go:build unix

package main

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
)

// A command that waits says for whom, once, also outside of a terminal.
func TestWaiting_ForWhom(t *testing.T) {
	t.Parallel()
	var leases atomic.Int64
	cluster := etcdtest.Start(t, intercepted(func(_ context.Context, req any) {
		if r, ok := req.(*pb.LeaseTimeToLiveRequest); ok && !r.Keys { // with keys, a session inspects its own
			leases.Add(1)
		}
	}))
	client := cluster.Client(t)
	ann := enqueued(t, client, "ann", "x")
	env := []string{"ETCDCTL_ENDPOINTS=" + cluster.Endpoints()[0]}
	first := merged(t, env, "run", "x", "--", "sh", "-c", "echo in; read line")
	first.until(t, `^etcdlock: x: waiting: 1 ahead, held by ann \(queued \d+s ago\)$`)
	second := merged(t, env, "elect", "x", "--", "echo", "in")
	second.until(t, `^etcdlock: x: waiting: 2 ahead, held by ann \(queued \d+s ago\)$`)
	bob := enqueued(t, client, "bob", "x") // a change of the queue is not announced
	require.NoError(t, bob.Close())
	require.Zero(t, leases.Load(), "requests for each of the waiters, by each of them")
	require.NoError(t, ann.Close())
	for _, r := range []*invocation{first, second} {
		r.until(t, `^in$`)
		r.wait(t)
		require.Equal(t, 1, strings.Count(r.output(), "etcdlock: x: waiting"), r.output())
	}
	noKeys(t, client)
}

// Commands on several machines may have one --owner. Each tells its own entry from theirs, so it says for whom it waits,
// after which it asks no more.
func TestWaiting_OneOwner(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	client := cluster.Client(t)
	env := []string{"ETCDCTL_ENDPOINTS=" + cluster.Endpoints()[0]}
	holds, end := begin(t, cluster.Endpoints(), append([]string{"x", "--owner=job", "--"}, section...)...)
	holds.inSection(t)
	first := merged(t, env, "run", "x", "--owner=job", "--", "echo", "in")
	first.until(t, `^etcdlock: x: waiting: 1 ahead, held by job \(queued \d+s ago\)$`)
	second := merged(t, env, "elect", "x", "--owner=job", "--", "echo", "in")
	second.until(t, `^etcdlock: x: waiting: 2 ahead, held by job \(queued \d+s ago\)$`)
	status, _, says := ask(t, cluster, "run", "--try", "x", "--owner=job", "--", "true")
	require.Equal(t, 75, status)
	require.Regexp(t, `^etcdlock: x: the lock is taken: held by job \(queued \d+s ago\), 2 waiting\n$`, says)
	status, _, says = ask(t, cluster, "run", "--wait=50ms", "x", "--owner=job", "--", "true")
	require.Equal(t, 75, status)
	require.Regexp(t, `^etcdlock: x: the lock was still taken after 50ms: (3 ahead, held by job \(queued \d+s ago\)|held by job \(queued \d+s ago\), 2 waiting)\n$`, says)
	end()
	for _, r := range []*invocation{holds, first, second} {
		require.Zero(t, r.wait(t))
	}
	noKeys(t, client)
}

// A name with characters that nobody sees is written as the other commands write it, wherever run and elect name it: in the
// form that a shell reads.
func TestWaiting_UnseenName(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	const name, written = "a\u00a0b\u202ec", `$'a\302\240b\342\200\256c'`
	env := []string{"ETCDCTL_ENDPOINTS=" + cluster.Endpoints()[0]}
	r, end := beginAs(t, "elect", cluster.Endpoints(), append([]string{name, "--"}, section...)...)
	r.inSection(t)
	waits := merged(t, env, "run", name, "--", "true")
	require.Contains(t, waits.until(t, `^etcdlock: (.*): waiting: 1 ahead, `), written)
	for _, limit := range []string{"--try", "--wait=50ms"} {
		status, _, says := ask(t, cluster, "run", limit, name, "--", "true")
		require.Equal(t, 75, status)
		require.Regexp(t, "^etcdlock: "+regexp.QuoteMeta(written)+": the lock (is|was still) taken", says)
	}
	end()
	require.Zero(t, r.wait(t))
	require.Regexp(t, "^etcdlock: "+regexp.QuoteMeta(written)+": leads with token ", r.stderr.String())
	require.Zero(t, waits.wait(t))
	inner := start(t, env, "run", name, "--", binary, "run", name, "--", "true")
	require.Equal(t, 125, inner.wait(t))
	require.Regexp(t, "^etcdlock: "+regexp.QuoteMeta(written)+": it would wait for itself", inner.stderr.String())
}

// An entry of the command's own, which etcd removes next, is nobody who holds the lock.
func TestHolder_Itself(t *testing.T) {
	t.Parallel()
	client := etcdtest.Start(t).Client(t)
	before := enqueued(t, client, "job", "x")
	now := enqueued(t, client, "job", "x")
	own := leases{}.with(before.Lease()).with(now.Lease())
	who, err := holder(bounded(t), client, "x", own, hang)
	require.NoError(t, err)
	require.Empty(t, who)
	require.NoError(t, before.Close())
	who, err = holder(bounded(t), client, "x", own, hang)
	require.NoError(t, err)
	require.Empty(t, who)
	enqueued(t, client, "job", "y")
	who, err = holder(bounded(t), client, "y", own, hang)
	require.NoError(t, err)
	require.Regexp(t, `^held by job `, who)
}

// A command that gets the lock soon says nothing.
func TestWaiting_NotAtAll(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	r := merged(t, []string{"ETCDCTL_ENDPOINTS=" + cluster.Endpoints()[0]}, "run", "x", "--", "echo", "in")
	require.Zero(t, r.wait(t))
	require.Equal(t, "in", r.output())
}

// When etcd goes away while a command waits, the command says so once, with the cause,
// and once more when etcd is back.
func TestWaiting_EtcdAway(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	client := cluster.Client(t)
	for _, subcommand := range []string{"run", "elect"} {
		t.Run(subcommand, func(t *testing.T) {
			t.Parallel()
			proxy := cluster.Proxy(t)
			ann := enqueued(t, client, "ann", subcommand)
			r := merged(t, []string{"ETCDCTL_ENDPOINTS=" + proxy.Endpoints()[0]}, subcommand, subcommand, "--ttl=8s", "--dial-timeout=4s", "--", "echo", "in")
			r.until(t, `waiting: 1 ahead, held by ann `)
			proxy.Blackhole(etcdtest.ToServer)
			proxy.Refuse()
			r.until(t, `^etcdlock: `+subcommand+`: waiting for etcd: no etcd answers at `+proxy.Endpoints()[0]+` within 4s \(.+\)$`)
			waiters(t, client, subcommand, 1) // its lease has ended
			proxy.Heal()
			r.until(t, `^etcdlock: `+subcommand+`: etcd answers again; waiting`)
			waiters(t, client, subcommand, 2)
			require.NoError(t, ann.Close())
			r.until(t, `^in$`)
			require.Zero(t, r.wait(t))
			require.Equal(t, 1, strings.Count(r.output(), "waiting for etcd:"), r.output())
		})
	}
}

// When etcd is full, elect waits for space and says so; run ends and says what to do.
func TestWaiting_NoSpace(t *testing.T) {
	t.Parallel()
	cluster := noSpace(t, 1) // a physical compaction waits for the member that is asked, and no other
	client := cluster.Client(t)
	env := []string{"ETCDCTL_ENDPOINTS=" + strings.Join(cluster.Endpoints(), ",")}
	r := start(t, env, "run", "a lock", "--", "true")
	require.Equal(t, 125, r.wait(t))
	require.Regexp(t, `^etcdlock: [^\n]*database space exceeded; compact [^\n]*etcdlock doctor says how\n$`, r.stderr.String())
	require.Equal(t, 1, strings.Count(r.stderr.String(), "etcdlock: "), "one prefix")

	r = merged(t, env, "elect", "svc", "--", "echo", "in")
	r.until(t, `^etcdlock: svc: waiting for etcd, which is out of space and refuses the lock: etcdlock doctor svc says what to do$`)
	got, err := client.Get(bounded(t), "filler")
	require.NoError(t, err)
	_, err = client.Compact(bounded(t), got.Header.Revision, clientv3.WithCompactPhysical())
	require.NoError(t, err)
	for _, endpoint := range cluster.Endpoints() {
		_, err := client.Defragment(bounded(t), endpoint)
		require.NoError(t, err)
	}
	_, err = client.AlarmDisarm(bounded(t), &clientv3.AlarmMember{})
	require.NoError(t, err)
	r.until(t, `^etcdlock: svc: leads with token `)
	require.Zero(t, r.wait(t))
	require.Equal(t, 1, strings.Count(r.output(), "out of space"), r.output())
	require.LessOrEqual(t, strings.Count(r.output(), "waiting"), 2, r.output()) // the other one is of a slow answer, once there is space
}

// A command that runs under a lock and takes it again would wait for itself forever.
func TestNested(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	client := cluster.Client(t)
	env := []string{"ETCDCTL_ENDPOINTS=" + cluster.Endpoints()[0]}
	const says = `^etcdlock: x: it would wait for itself: it runs under this lock already \(ETCDLOCK_NAME\)`
	for _, c := range []struct {
		status       int
		says         string
		outer, inner []string
	}{
		{125, says + "; leave the inner etcdlock out, or name another lock\n$", []string{"run"}, []string{"run"}},
		{125, says, []string{"run"}, []string{"elect"}},
		{125, says, []string{"run"}, []string{"run", "--wait=1h"}},
		{125, says + "; leave the inner etcdlock out, or name another lock\n$", []string{"run"}, []string{"run", "--read"}},
		{125, says, []string{"run", "--read"}, []string{"run"}},
		{125, `: it would wait for itself: `, []string{"elect"}, []string{"run"}},
		{75, `^etcdlock: x: the lock is taken: held by `, []string{"run"}, []string{"run", "--try"}},
		{0, `^$`, []string{"run", "--read"}, []string{"run", "--read"}},
	} {
		args := append(append(c.outer, "x", "--", binary), append(c.inner, "x", "--", "true")...)
		r := start(t, env, args...)
		require.Equal(t, c.status, r.wait(t), "%q: %s", args, r.stderr.String())
		require.Regexp(t, c.says, r.stderr.String())
	}

	// An inner reader would wait for a writer that waits for the outer reader.
	r, end := begin(t, cluster.Endpoints(), "x", "--read", "--", "sh", "-c", fmt.Sprintf("echo in; read line; exec %s run --read x -- true", binary))
	r.until(t, "^in$")
	writer := enqueued(t, client, "ann", "x")
	end()
	require.Equal(t, 125, r.wait(t))
	require.Regexp(t, says+`, and a writer waits in between; `, r.stderr.String())
	require.NoError(t, writer.Close())

	// A process that has outlived its command still has the variables, but not the lock.
	r = start(t, append(env, "ETCDLOCK_NAME=x", "ETCDLOCK_KEY=x/abc", "ETCDLOCK_TOKEN=7"), "run", "x", "--", "true")
	require.Zero(t, r.wait(t), r.stderr.String())
	// So does one whose token is that of an earlier entry with the same key.
	ann := enqueued(t, client, "ann", "x")
	env = append(env, "ETCDLOCK_NAME=x", "ETCDLOCK_KEY="+waiters(t, client, "x", 1)[0], "ETCDLOCK_TOKEN=1")
	r = start(t, env, "run", "x", "--wait=50ms", "--", "true")
	require.Equal(t, 75, r.wait(t), r.stderr.String())
	require.NoError(t, ann.Close())
	noKeys(t, client)
}

// A command that is ended while it waits says nothing more about its wait.
func TestWaiting_Ended(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	client := cluster.Client(t)
	enqueued(t, client, "ann", "x", etcdlock.WithTTL(60e9))
	for _, sig := range []os.Signal{os.Interrupt, syscall.SIGTERM} {
		r := merged(t, []string{"ETCDCTL_ENDPOINTS=" + cluster.Endpoints()[0]}, "run", "x", "--", "true")
		r.until(t, `waiting: 1 ahead, held by ann `)
		require.NoError(t, r.cmd.Process.Signal(sig))
		r.wait(t)
		require.Regexp(t, `ended by signal: [a-z]+$`, r.output())
		require.Equal(t, 2, len(r.lines), r.output())
	}
}

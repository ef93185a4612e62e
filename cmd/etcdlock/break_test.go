//go:build unix

package main

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/etcdlock/etcdlock/etcdtest"
)

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
		"x " + keys[0] + "@999999": fmt.Sprintf(`is not in the queue: that key has token %d now, so it is another entry; etcdlock show x has`, token),
		"y " + entry:               `^etcdlock: y: ` + entry + ` is not in the queue: it is no entry of this lock; copy NAME and KEY@TOKEN from the same etcdlock show\n`,
		"x " + keys[0] + "1@7":     `is not in the queue \(any more\)`,
		"x " + entry:               `standard input is not a terminal, so nobody can be asked: add --yes`,
		"x":                        `KEY@TOKEN is missing; usage: etcdlock break NAME KEY@TOKEN`,
	} {
		status, out, says := ask(t, cluster, append([]string{"break"}, strings.Fields(args)...)...)
		require.Equal(t, 1, status, args)
		require.Empty(t, out)
		require.Regexp(t, `^etcdlock: [^\n]*\n$`, says)
		require.Regexp(t, want, says)
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
	require.NoError(t, bob.Close())
	noKeys(t, client)
}

// A signal comes while etcd is asked to remove an entry. Whoever has sent it must not believe that nothing was done.
func TestBreak_Interrupted(t *testing.T) {
	t.Parallel()
	asked, end := make(chan struct{}, 10), make(chan struct{})
	defer close(end)
	cluster := etcdtest.Start(t, intercepted(func(_ context.Context, req any) {
		if txn, ok := req.(*pb.TxnRequest); ok && len(txn.Success) > 0 && txn.Success[0].GetRequestDeleteRange() != nil {
			asked <- struct{}{}
			<-end
		}
	}))
	client := cluster.Client(t)
	put, err := client.Put(bounded(t), "x/1f", `{"owner":"carl","nonce":"1f"}`)
	require.NoError(t, err)
	env := []string{"ETCDCTL_ENDPOINTS=" + cluster.Endpoints()[0]}
	entry := fmt.Sprintf("x/1f@%d", put.Header.Revision)
	r := start(t, env, "break", "x", entry, "--yes")
	<-asked
	require.NoError(t, r.cmd.Process.Signal(syscall.SIGTERM))
	require.Equal(t, 143, r.wait(t))
	require.Equal(t, "etcdlock: ended by signal: terminated; whether "+entry+" was removed is not known: etcdlock show x says it\n", r.stderr.String())
	r = start(t, env, "break", "x", entry, "--yes", "--command-timeout=5s")
	require.Equal(t, 1, r.wait(t))
	require.Equal(t, "etcdlock: --command-timeout of 5s is over; whether "+entry+" was removed is not known: etcdlock show x says it\n", r.stderr.String())
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

	// A waiter of theirs looks for its entry when its turn comes.
	require.NoError(t, m.Lock(bounded(t)))
	waiting, err := concurrency.NewSession(client)
	require.NoError(t, err)
	locked := make(chan error, 1)
	go func() { locked <- concurrency.NewMutex(waiting, "x").Lock(bounded(t)) }()
	keys := waiters(t, client, "x", 2)
	status, _, says = ask(t, cluster, "break", "--yes", "x", fmt.Sprintf("%s@%d", keys[1], revision(t, client, keys[1])))
	require.Zero(t, status)
	require.Empty(t, says)
	require.NoError(t, m.Unlock(bounded(t)))
	require.ErrorIs(t, <-locked, concurrency.ErrSessionExpired)
	require.NoError(t, waiting.Close())
	require.NoError(t, s.Close())

	// A key without a lease most likely has no process behind it.
	got, err := client.Put(bounded(t), "x/abc", "")
	require.NoError(t, err)
	status, _, says = ask(t, cluster, "break", "--yes", "x", fmt.Sprintf("x/abc@%d", got.Header.Revision), "--delete-data=x/abc")
	require.Zero(t, status)
	require.Empty(t, says)

	// A holder that hears of it is broken without a warning.
	enqueued(t, client, "ann", "x")
	keys = waiters(t, client, "x", 1)
	status, _, says = ask(t, cluster, "break", "--yes", "x", fmt.Sprintf("%s@%d", keys[0], revision(t, client, keys[0])))
	require.Zero(t, status)
	require.Empty(t, says)
}

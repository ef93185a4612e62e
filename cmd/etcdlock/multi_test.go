//go:build unix

package main

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
)

// The parts of a Multi are shown as one acquisition: with one token, and the names of the others. The doctor
// says what it waits for.
func TestMulti_ShowListDoctor(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	client := cluster.Client(t)
	enqueued(t, client, "bob", "b", etcdlock.WithTTL(time.Minute))
	s, err := etcdlock.NewSession(bounded(t), client, etcdlock.WithOwner("ann"), etcdlock.WithTTL(10*time.Minute)) // it must not look for lost keys meanwhile
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close() })
	tk, err := etcdlock.NewMulti(s, etcdlock.Write("a"), etcdlock.Write("b"), etcdlock.Read("c d"), etcdlock.Write("e"), etcdlock.Write("f")).Enqueue(bounded(t))
	require.NoError(t, err)

	status, out, says := ask(t, cluster, "show", "a")
	require.Zero(t, status, says)
	require.Regexp(t, `holds +exclusive +\d+s +≤\d+s +\d+ of 600s +ann \(with b, c d, e and 1 more\) +a/[0-9a-f]+@\d+
ann \(with b, c d, e and 1 more\) works only when it has all of its names: etcdlock doctor a says whether it has$`, out)
	r := start(t, []string{"ETCDCTL_ENDPOINTS=" + cluster.Endpoints()[0]}, "show", "a", "--watch")
	r.until(t, `^ann .* works only when it has all of its names: `)
	require.NoError(t, r.cmd.Process.Signal(os.Interrupt))
	require.Equal(t, 130, r.wait(t))
	_, shown, _ := ask(t, cluster, "show", "b")
	require.Regexp(t, `place 1 .* ann \(with a, c.*\) +b/`, shown)
	q, err := etcdlock.New(client).Inspect(bounded(t), "e")
	require.NoError(t, err)
	require.Equal(t, "a\nb\nc d\ne\nf", q.Entries[0].Names)
	require.Contains(t, out, fmt.Sprintf("@%d", q.Entries[0].Token), "one token")
	require.Contains(t, shown, fmt.Sprintf("@%d", q.Entries[0].Token), "one token")
	_, out, _ = ask(t, cluster, "show", "a", "-o", "json")
	require.Contains(t, out, `"names":["a","b"`)
	_, out, _ = ask(t, cluster, "ls")
	require.Regexp(t, `(?m)^a +ann \(with b, `, out)
	require.Regexp(t, `(?m)^e +ann \(with a, b, `, out)

	_, out, _ = ask(t, cluster, "doctor", "a")
	require.Regexp(t, `note +ann \(with .*\) is first in a, and does not work yet: it waits for b, which bob holds \(etcdlock doctor b\)`, out)
	_, out, _ = ask(t, cluster, "doctor", "b")
	require.NotContains(t, out, "first in")
	_, err = client.Delete(bounded(t), q.Entries[0].Key)
	require.NoError(t, err)
	_, out, _ = ask(t, cluster, "doctor", "a")
	require.Regexp(t, `has no entry in e any more`, out)
	require.NoError(t, tk.Cancel(bounded(t)))
}

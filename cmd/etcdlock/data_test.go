//go:build unix

package main

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/etcdtest"
)

// Data that somebody keeps under the name of a lock: whoever waits for it is told so, whoever looks sees what it is, and
// nobody destroys it by following advice.
func TestData(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	client := cluster.Client(t)
	const order = `{"owner":"ann","items":["a pen"]}`
	put, err := client.Put(bounded(t), "orders/4711", order)
	require.NoError(t, err)
	entry := fmt.Sprintf("orders/4711@%d", put.Header.Revision)
	const hint = "orders/4711 has no lease: it looks like data; keep data and lock names apart"
	const value = `"{\"owner\":\"ann\",\"items\":[\"a pen\"]}"`

	r, end := begin(t, cluster.Endpoints(), append([]string{"orders", "--owner=bob", "--"}, section...)...)
	waiters(t, client, "orders", 2)
	status, out, _ := ask(t, cluster, "doctor", "orders")
	require.Equal(t, 2, status)
	require.Contains(t, out, "ATTENTION  "+hint+" (holds, value "+value+")\n"+
		"           give the lock or the data another name; only if nobody needs the key: etcdlock break --delete-data orders/4711 orders "+entry+", which deletes it\n")
	status, out, _ = ask(t, cluster, "show", "orders")
	require.Zero(t, status)
	require.Regexp(t, `holds +exclusive +\? +\? +none +what looks like data: `+regexp.QuoteMeta(value)+` +`+entry+`\n`, out)
	require.Contains(t, out+"\n", "\n"+hint+"\n")
	status, out, _ = ask(t, cluster, "show", "-o", "json", "orders")
	require.Zero(t, status)
	require.Contains(t, out, `"data":true,"value":`+value)
	status, out, _ = ask(t, cluster, "ls")
	require.Zero(t, status)
	require.Contains(t, out, "what looks like data: "+value+" (no lease)")

	for want, args := range map[string]string{
		"To break it is to delete it; add --delete-data orders/4711 for that": "--yes",
		"--delete-data names another key: orders/":                            "--delete-data=orders/",
	} {
		status, out, says := ask(t, cluster, "break", "orders", entry, args)
		require.Equal(t, 1, status)
		require.Empty(t, out)
		require.Equal(t, "etcdlock: orders: "+hint+". Its value is "+value+". "+want+"\n", says)
	}
	for _, answer := range []string{"y\r", "yes\r", entry + "\r", "\r", ctrlD} {
		c := onConsole(t, cluster.Endpoints(), binary, "break", "--yes", "orders", entry)
		c.until(t, `To delete it for good, type its\s+key: `)
		c.types(t, answer)
		c.until(t, `etcdlock: nothing was done`)
		require.Equal(t, 1, c.ends(t).ExitStatus())
	}
	got, err := client.Get(bounded(t), "orders/4711")
	require.NoError(t, err)
	require.Equal(t, order, string(got.Kvs[0].Value), "nothing has touched it")

	c := onConsole(t, cluster.Endpoints(), binary, "break", "orders", entry)
	c.until(t, `type its\s+key: `)
	c.types(t, "orders/4711\r")
	c.until(t, entry+" is out of the queue")
	require.Zero(t, c.ends(t).ExitStatus())
	r.inSection(t)
	end()
	require.Zero(t, r.wait(t))
	require.Contains(t, r.stderr.String(), "waiting: 1 ahead, held by what looks like data: "+value+"; "+hint+"\n")

	put, err = client.Put(bounded(t), "orders/4711", strings.Repeat("é", 100))
	require.NoError(t, err)
	status, out, says := ask(t, cluster, "break", "orders", fmt.Sprintf("orders/4711@%d", put.Header.Revision), "--delete-data", "orders/4711")
	require.Zero(t, status, says)
	require.Contains(t, out, "is out of the queue")
	noKeys(t, client)
}

// A name may have characters that nobody sees. What is printed of it can be copied back.
func TestNames_CopiedBack(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	client := cluster.Client(t)
	require.Equal(t, `$'it\'s\302\240\\x'`, shown("it's\u00a0\\x"))
	require.Equal(t, "it's x", shown("it's x"))
	require.Equal(t, `'it'\''s x'`, quote("it's x"))
	require.Equal(t, `$'\xff'`, strings.ReplaceAll(shown("\xff"), `\377`, `\xff`))
	names := []string{"a\u00a0b", "it's\u200dso", "soft\u00adhyphen", "with space", "$'x'", "plain"}
	for _, name := range names {
		enqueued(t, client, "ann", name)
	}
	status, out, _ := ask(t, cluster, "ls", "-0")
	require.Zero(t, status)
	require.ElementsMatch(t, names, strings.Split(strings.TrimSuffix(out, "\x00"), "\x00"))
	status, out, _ = ask(t, cluster, "ls", "-q")
	require.Zero(t, status)
	require.ElementsMatch(t, names, strings.Split(strings.TrimSuffix(out, "\n"), "\n"), "for a program")

	status, out, _ = ask(t, cluster, "ls")
	require.Zero(t, status)
	require.NotContains(t, out, "\ufffd")
	for _, name := range names {
		// What show has at ENTRY is given to a shell as it is.
		status, out, _ := ask(t, cluster, "show", name)
		require.Zero(t, status)
		m := regexp.MustCompile(`ann +(\S.*@\d+'?)$`).FindStringSubmatch(out)
		require.NotNil(t, m, out)
		c := onConsole(t, cluster.Endpoints(), "bash", "-c", "$L break --yes "+quote(name)+" "+m[1])
		c.until(t, "is out of the queue")
		require.Zero(t, c.ends(t).ExitStatus())
	}
	got, err := client.Get(bounded(t), "", clientv3.WithFromKey(), clientv3.WithCountOnly())
	require.NoError(t, err)
	require.Zero(t, got.Count)
}

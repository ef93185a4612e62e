//go:build unix

package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/test/harness"
)

// multi puts a Multi into its queues.
func multi(t *testing.T, client *clientv3.Client, owner string, ttl time.Duration, names ...string) {
	t.Helper()
	s, err := etcdlock.NewSession(bounded(t), client, etcdlock.WithOwner(owner), etcdlock.WithTTL(ttl))
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close() })
	var parts []etcdlock.Part
	for _, name := range names {
		parts = append(parts, etcdlock.Write(name))
	}
	_, err = etcdlock.NewMulti(s, parts...).Enqueue(bounded(t))
	require.NoError(t, err)
}

// A Multi waits for data at its second name. Whatever of its names somebody asks for, or its label in metrics, doctor
// says so.
func TestDoctor_MultiStuck(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	client := cluster.Client(t)
	_, err := client.Put(bounded(t), "x/b/4711", "an order")
	require.NoError(t, err)
	_, err = client.Put(bounded(t), "x/c/def", `{"owner":"carl","nonce":"1f"}`)
	require.NoError(t, err)
	multi(t, client, "ann", time.Minute, "x/a", "x/b")
	multi(t, client, "ben", time.Minute, "x/c", "x/d")
	enqueued(t, client, "eva", "x/e", etcdlock.WithTTL(time.Minute))
	multi(t, client, "fay", time.Minute, "x/e", "x/f") // behind eva, who works

	const blocks = `ATTENTION  x/b/4711 has no lease: it looks like data; .* \(holds, value "an order"\)
 +give the lock or the data another name; only if nobody needs the key: etcdlock break --delete-data x/b/4711 x/b x/b/4711@\d+, which deletes it\n`
	const stuck = `ATTENTION  ann \(with x/b\) is first in x/a, and does not work yet: it waits for x/b, where x/b/4711 has no lease: it looks like data; keep data and lock names apart
 +etcdlock doctor x/b\n`
	for name, want := range map[string]string{
		"x/a":      `^x/a: held, nobody waits; first is ann .*\n` + stuck,
		"x/b":      `^x/b: held, 1 waiting; .*\n` + blocks,
		"x/a, x/b": `^x/a: held, nobody waits; first is ann .*\nx/b: held, 1 waiting; .*\n` + blocks + stuck,
		"x/d": `ATTENTION  ben \(with x/c\) is first in x/d, and does not work yet: it waits for x/c, where x/c/def@\d+ has no lease: it stays until somebody removes it, even when its owner has ended
 +etcdlock doctor x/c\n`,
	} {
		status, out, says := ask(t, cluster, "doctor", name)
		require.Equal(t, 2, status, out+says)
		require.Regexp(t, want, out)
		require.Equal(t, 1, strings.Count(out, "note       etcd 3."), "the members are asked once")
	}
	for _, name := range []string{"x/a, x/b", "x"} {
		status, out, _ := ask(t, cluster, "show", name)
		require.Zero(t, status)
		require.Equal(t, name+": free\nif metrics or the log call several locks so: etcdlock doctor "+quote(name)+" looks at them", out)
	}
	status, out, _ := ask(t, cluster, "doctor", "x/a, x/b", "-o", "json")
	require.Equal(t, 2, status)
	var report struct {
		Name     string
		Revision int64
	}
	require.NoError(t, json.Unmarshal([]byte(out), &report))
	require.Equal(t, "x/a, x/b", report.Name)
	require.Positive(t, report.Revision)

	status, out, _ = ask(t, cluster, "doctor", "x/e, x/f")
	require.Zero(t, status, "it waits as it must")
	require.Contains(t, out, "note       fay (with x/e) is first in x/f, and does not work yet: it waits for x/e, which eva holds (etcdlock doctor x/e)")
}

// Both queues of a Multi tell of one holder. What that needs is said once.
func TestDoctor_MultiHolds(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	multi(t, cluster.Client(t), "ann", 90*time.Second, "x/a", "x/b")
	status, out, _ := ask(t, cluster, "doctor", "x/a, x/b")
	require.Zero(t, status, out)
	require.Equal(t, 1, strings.Count(out, "note       if ann dies"), out)
	require.NotContains(t, out, "does not work yet")
}

// A Multi of somebody else has a name that this user may not read. It is no fault of etcd's.
func TestDoctor_MultiOfOtherRights(t *testing.T) {
	t.Parallel()
	own, as := harness.StartWithAuth(t)
	multi(t, as("root"), "ann", 30*time.Second, "a/1", "z")
	status, out, says := ask(t, own, "doctor", "--user=worker:secret", "a/1")
	require.Zero(t, status, out+says)
	require.Regexp(t, `^a/1: held, .*
note +(etcd 3|the members tell only a user with the role root of their state).*
note +ann \(with z\) is first in a/1, and locks z too, which this user may not read: whether it works is not known`, out)
	for _, name := range []string{"z", "a/1, z"} {
		status, _, says = ask(t, own, "doctor", "--user=worker:secret", name)
		require.Equal(t, 1, status, name)
		require.Contains(t, says, `needs read on the prefix "z/"`)
	}
}

// A user who may read the names of a Multi may have no right on its label.
func TestDoctor_LabelOfOtherRights(t *testing.T) {
	t.Parallel()
	own, as := harness.StartWithAuth(t)
	_, err := as("root").RoleGrantPermission(bounded(t), "reader", "z/", clientv3.GetPrefixRangeEnd("z/"), clientv3.PermissionType(clientv3.PermRead))
	require.NoError(t, err)
	for _, label := range []string{"a, z", "a, "} { // which nobody uses, and which is one name
		status, _, says := ask(t, own, "doctor", "--user=reader:secret", label)
		require.Equal(t, 1, status)
		require.Contains(t, says, `needs read on the prefix "`+label+`/"`)
	}
	multi(t, as("root"), "ann", 30*time.Second, "a", "z")
	status, out, says := ask(t, own, "doctor", "--user=reader:secret", "a, z")
	require.Zero(t, status, says)
	require.Regexp(t, `^a: held, .*\nz: held, `, out)
	status, _, says = ask(t, own, "doctor", "--user=reader:secret", "z, a/1")
	require.Zero(t, status, says)
	status, _, says = ask(t, own, "doctor", "--user=reader:secret", "a, y")
	require.Equal(t, 1, status)
	require.Contains(t, says, `needs read on the prefix "y/"`)
	status, _, says = ask(t, own, "doctor", "--user=reader:secret", "a/1, a/2") // which the role includes, and nobody uses
	require.Zero(t, status, says)
}

// A comma may be a part of a name, and what is no name stays a part of one.
func TestDoctor_NameWithComma(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	client := cluster.Client(t)
	enqueued(t, client, "carl", "x, y", etcdlock.WithTTL(time.Minute))
	enqueued(t, client, "carl", "x", etcdlock.WithTTL(time.Minute))
	for name, want := range map[string]string{"x, y": "x, y: held", "x, ": "x, : free", "p, q": "p, q: free"} {
		status, out, says := ask(t, cluster, "doctor", name)
		require.Zero(t, status, says)
		require.True(t, strings.HasPrefix(out, want), out)
	}
}

// longAgo puts an entry into a queue that came two hours ago.
func longAgo(t *testing.T, client *clientv3.Client, owner, name string) {
	t.Helper()
	lease, err := client.Grant(bounded(t), 600)
	require.NoError(t, err)
	ago := time.Now().Add(-2 * time.Hour).UTC().Format(time.RFC3339Nano)
	_, err = client.Put(bounded(t), fmt.Sprintf("%s/%x", name, lease.ID), `{"owner":"`+owner+`","queued":"`+ago+`"}`, clientv3.WithLease(lease.ID))
	require.NoError(t, err)
}

// One name of a Multi has a holder that works for too long.
func TestDoctor_MultiWaitsLong(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	client := cluster.Client(t)
	longAgo(t, client, "bob", "b")
	multi(t, client, "ann", time.Minute, "a", "b")
	status, out, _ := ask(t, cluster, "doctor", "a")
	require.Zero(t, status, "there is no limit")
	require.Contains(t, out, "it waits for b, which bob holds (etcdlock doctor b)")
	status, out, _ = ask(t, cluster, "doctor", "a", "--max-hold=1h")
	require.Equal(t, 2, status)
	require.Regexp(t, `ATTENTION  ann .* is first in a, .* it waits for b; bob holds that, and has been in the queue for 2h00m
 +etcdlock doctor b\n`, out)
}

// Somebody has copied the key of an entry, or of data, and takes it for the name of a lock.
func TestDoctor_NameIsAKey(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	client := cluster.Client(t)
	for _, key := range []string{"customers/42", "orders/4711", "config", "a/config", "a"} {
		_, err := client.Put(bounded(t), key, "somebody's data")
		require.NoError(t, err)
	}
	enqueued(t, client, "ann", "customers", etcdlock.WithTTL(time.Minute))
	lease := enqueued(t, client, "ben", "y", etcdlock.WithTTL(time.Minute)).Lease()
	own := fmt.Sprintf("y/%x", lease)
	for name, want := range map[string]string{
		"customers/42": `ATTENTION  customers/42 is itself a key in etcd, and blocks another lock, customers: customers/42 has no lease: it looks like data; keep data and lock names apart
           etcdlock doctor customers
`,
		"orders/4711": "note       orders/4711 is itself a key in etcd. It would block a lock of the name orders, for which nobody waits now: etcdlock doctor orders\n",
		"config":      "note       config is itself a key in etcd. It is no entry of a lock, and blocks none: etcdctl get config shows its value\n",
		"a/config":    "note       a/config is itself a key in etcd. It is no entry of a lock, and blocks none: etcdctl get a/config shows its value\n",
		own:           "note       " + own + " is itself a key in etcd: the entry of ben in the lock y (holds), which is another lock: etcdlock doctor y\n",
	} {
		status, out, says := ask(t, cluster, "doctor", name)
		require.Equal(t, name == "customers/42", status == 2, out+says)
		require.True(t, strings.HasPrefix(out, name+": free\n"), out)
		require.Contains(t, out, want)
		require.NotContains(t, out, "whether the name is right")
	}
	enqueued(t, client, "eva", "a", etcdlock.WithTTL(time.Minute))
	status, out, _ := ask(t, cluster, "doctor", "a")
	require.Zero(t, status, "a service may keep its data in a key that has the name of its lock")
	require.Contains(t, out, "a: held, nobody waits; first is eva")
}

// The role of a user has the prefix of a lock, and not the key of its name.
func TestDoctor_NameIsAKeyOfOtherRights(t *testing.T) {
	t.Parallel()
	own, as := harness.StartWithAuth(t)
	_, err := as("root").Put(bounded(t), "a", "")
	require.NoError(t, err)
	for _, name := range []string{"a", "a/1"} {
		_, err = as("root").Put(bounded(t), name, "")
		require.NoError(t, err)
		status, out, says := ask(t, own, "doctor", "--user=worker:secret", name)
		require.Zero(t, status, out+says)
		require.Equal(t, name == "a/1", strings.Contains(out, "a/1 is itself a key in etcd"), out)
	}
}

// WithName calls many locks by their prefix: doctor looks at the locks below it.
func TestDoctor_MappedName(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	client := cluster.Client(t)
	enqueued(t, client, "ann", "customers/1", etcdlock.WithTTL(time.Minute))
	_, err := client.Put(bounded(t), "customers/2/abc", "data of somebody, and no lock")
	require.NoError(t, err)
	status, out, _ := ask(t, cluster, "doctor", "customers")
	require.Zero(t, status, out)
	require.Regexp(t, `^customers: free
note +etcd .*
note +nobody uses customers itself\. Metrics may call all locks below it so \(WithName\): 1 lock \(etcdlock ls customers/\)
ok `, out)

	longAgo(t, client, "amy", "customers/2w") // nobody waits for it
	longAgo(t, client, "bob", "customers/2x")
	longAgo(t, client, "zoe", "customers/2x")
	enqueued(t, client, "bob", "customers/1", etcdlock.WithTTL(time.Minute)) // waits, and came just now
	status, out, _ = ask(t, cluster, "doctor", "customers/")                 // as ls wants it
	require.Zero(t, status, out)
	require.Contains(t, out, "3 locks (etcdlock ls customers/); the longest wait is for customers/2x, for 2h00m (etcdlock doctor customers/2x)")
	status, out, _ = ask(t, cluster, "doctor", "customers", "--max-hold=1h")
	require.Equal(t, 2, status, out)
	require.Contains(t, out, `ATTENTION  customers/2x: held, 1 waiting; bob holds it, and has been in the queue for 2h00m
           etcdlock doctor customers/2x
`)
	require.Equal(t, 1, strings.Count(out, "ATTENTION"), out)

	for i := range 5 {
		_, err := client.Put(bounded(t), fmt.Sprintf("customers/%d/4711", i+3), "x")
		require.NoError(t, err)
		enqueued(t, client, "bob", fmt.Sprintf("customers/%d", i+3), etcdlock.WithTTL(time.Minute))
	}
	status, out, _ = ask(t, cluster, "doctor", "customers")
	require.Equal(t, 2, status, out)
	require.Contains(t, out, `ATTENTION  customers/3: held, 1 waiting; customers/3/4711 has no lease: it looks like data; keep data and lock names apart
           etcdlock doctor customers/3
`)
	require.Contains(t, out, `ATTENTION  2 locks more below customers/ wait for an entry that has no lease or is too old
           etcdlock ls customers/
`)
	require.Equal(t, 4, strings.Count(out, "ATTENTION"), out)
}

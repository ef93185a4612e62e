//go:build unix

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/cmd/etcdlock/internal/connect"
	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/test/harness"
)

func TestDoctor(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	client := cluster.Client(t)
	status, out, says := ask(t, cluster, "doctor", "x")
	require.Zero(t, status, says)
	require.Regexp(t, `^x: free
note +etcd 3\.\S+ \(1 of 1 members\)
note +nobody holds or waits for x now. If somebody should, see whether the name is right: etcdlock ls
ok +nothing needs attention$`, out)
	_, out, _ = ask(t, cluster, "doctor", "the jobs/x") // a wrong name is the likeliest cause of that
	require.Contains(t, out, "nobody holds or waits for the jobs/x now. If somebody should, see whether the name is right: etcdlock ls 'the jobs/'\n")

	// In the queue: an entry without a lease, one whose lease nobody renews, one whose
	// clock is ahead, one that is well; and a key that is not an entry.
	ctx := bounded(t)
	put := func(key, value string, opts ...clientv3.OpOption) {
		_, err := client.Put(ctx, key, value, opts...)
		require.NoError(t, err)
	}
	put("x/abc", "")
	put("x/def", `{"owner":"carl","nonce":"1f"}`)
	put("x/y/1", "")
	ahead := time.Now().Add(time.Hour).UTC().Format(time.RFC3339Nano)
	long, err := client.Grant(ctx, 3600)
	require.NoError(t, err)
	put(fmt.Sprintf("x/%x", long.ID), `{"owner":"the future","queued":"`+ahead+`"}`, clientv3.WithLease(long.ID))
	dead, err := client.Grant(ctx, 60)
	require.NoError(t, err)
	put(fmt.Sprintf("x/%x", dead.ID), `{"owner":"dead"}`, clientv3.WithLease(dead.ID))
	renewedOften(t, enqueued(t, client, "well", "x", etcdlock.WithTTL(9*time.Second)))
	status, out, says = ask(t, cluster, "doctor", "x")
	require.Equal(t, 2, status, says)
	require.Regexp(t, `^etcdlock: looking for \d+s whether the leases are renewed\.\.\.\n$`, says, "it takes seconds, and somebody waits")
	require.Regexp(t, `^x: held, 4 waiting; first is what looks like data: ""
ATTENTION  x/abc has no lease: it looks like data; keep data and lock names apart \(holds, value ""\)
 +give the lock or the data another name; only if nobody needs the key: etcdlock break --delete-data x/abc x x/abc@2, which deletes it
ATTENTION  x/def@3 \(place 1\) has no lease: it stays until somebody removes it, even when its owner has ended
 +if its owner does not run: etcdlock break x x/def@3
note +etcd 3\.\S+ \(1 of 1 members\)
note +the clock of the future is (1h00m|59m\d\ds) ahead of this machine's.*
(note +the future came before well, but its clock was (1h00m|59m\d\ds) ahead.*
)?note +below x/ are keys that are not entries, and this lock ignores them: x/y/1\. .*$`, out)

	status, out, _ = ask(t, cluster, "doctor", "-o", "json", "y")
	require.Zero(t, status)
	require.JSONEq(t, `{"name":"y","revision":`+fmt.Sprint(head(t, client))+`,"attention":false,"findings":[{"attention":false,"what":"etcd `+
		regexp.MustCompile(`etcd (3\.\S+ \(1 of 1 members\))`).FindStringSubmatch(out)[1]+`"},{"attention":false,"what":"nobody holds or waits for y now. If somebody should, see whether the name is right: etcdlock ls"}]}`, out)
}

func head(t *testing.T, client *clientv3.Client) int64 {
	t.Helper()
	got, err := client.Get(bounded(t), "x")
	require.NoError(t, err)
	return got.Header.Revision
}

// renewedOften renews a session's lease all the time, until the test ends. Doctor would find a renewal overdue that comes a second
// too late, as on a machine that stalls.
func renewedOften(t *testing.T, s *etcdlock.Session) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		for s.Refresh(ctx) == nil {
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
	}()
	t.Cleanup(func() { cancel(); <-ended })
}

// doctor finds a lease that nobody renews once its renewal is overdue.
func TestDoctor_NotRenewed(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	client := cluster.Client(t)
	lease, err := client.Grant(bounded(t), 15) // so long that it is there yet when doctor has looked
	require.NoError(t, err)
	_, err = client.Put(bounded(t), fmt.Sprintf("x/%x", lease.ID), `{"owner":"dead"}`, clientv3.WithLease(lease.ID))
	require.NoError(t, err)
	renewedOften(t, enqueued(t, client, "well", "x", etcdlock.WithTTL(15*time.Second)))
	require.Eventually(t, func() bool { // the next renewal is due within the time that doctor takes
		left, err := client.TimeToLive(bounded(t), lease.ID)
		require.NoError(t, err)
		return left.TTL <= 13
	}, hang, 50*time.Millisecond)
	status, out, _ := ask(t, cluster, "doctor", "x")
	require.Equal(t, 2, status, out)
	require.Regexp(t, `ATTENTION  nobody renews the lease of dead \(holds\): of 15s it has [1-9]s left; its process has ended, is stopped, can't reach etcd, or is refused by etcd
 +wait: etcd removes its entry in [1-9]s`, out)
	require.Equal(t, 1, strings.Count(out, "ATTENTION"), "the other lease is renewed")
	require.Regexp(t, `^x: held, 1 waiting; first is dead, whose lease nobody renews\n`, out, "the head line is of the same look")
}

// While doctor looks at the leases, the holder leaves: the head line and the findings are of what is there then.
func TestDoctor_LeavesMeanwhile(t *testing.T) {
	t.Parallel()
	looked := make(chan struct{}, 100)
	cluster := etcdtest.Start(t, intercepted(func(_ context.Context, req any) {
		if _, ok := req.(*pb.MemberListRequest); ok { // comes after the first look
			looked <- struct{}{}
		}
	}))
	client := cluster.Client(t)
	first := enqueued(t, client, "ann", "x", etcdlock.WithTTL(9*time.Second))
	renewedOften(t, enqueued(t, client, "ben", "x", etcdlock.WithTTL(9*time.Second)))
	r := start(t, []string{"ETCDCTL_ENDPOINTS=" + strings.Join(cluster.Endpoints(), ",")}, "doctor", "x")
	<-looked
	require.NoError(t, first.Close())
	require.Zero(t, r.wait(t), r.output())
	require.Regexp(t, `^x: held, nobody waits; first is ben \(queued `, r.output())
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
	require.Regexp(t, `ATTENTION  the slow one holds the lock, and has been in the queue for 2h00m, longer than 1h0m0s
 +find out what it does; if its owner does not run: etcdlock break 'a name' '`+key+`@\d+'`, out)
	require.Contains(t, out, "if the slow one dies, the lock stays taken for up to 2m0s, the TTL of its lease")
	status, _, _ = ask(t, cluster, "doctor", "--max-hold", "3h", "a name")
	require.Zero(t, status)
	status, _, says := ask(t, cluster, "doctor", "--max-hold=-1s", "x")
	require.Equal(t, 1, status)
	require.Contains(t, says, "it can't be negative")
}

// One of three members is down. A member that is asked knows the others.
func TestDoctor_MemberDown(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t, etcdtest.WithMembers(3))
	cluster.Member(1).Kill()
	_, err := cluster.Leader(bounded(t))
	require.NoError(t, err)
	status, out, _ := ask(t, cluster, "doctor", "x")
	require.Equal(t, 2, status)
	require.Regexp(t, "ATTENTION  etcd's member m1 at "+cluster.Member(1).Endpoint()+" does not answer: .*connection refused", out)
	require.Contains(t, out, "(2 of 3 members)")
	require.Equal(t, 1, strings.Count(out, "ATTENTION"))
	require.NotContains(t, out, "hangs", "it is down")

	r := start(t, []string{"ETCDCTL_ENDPOINTS=" + cluster.Member(0).Endpoint()}, "doctor", "x")
	require.Zero(t, r.wait(t), "locks work, and --endpoints does not name that member")
	require.Regexp(t, "note +etcd's member m1 at "+cluster.Member(1).Endpoint()+" can't be reached from here, and --endpoints does not name it: ", r.output())
	require.Contains(t, r.output(), "(2 of 3 members)")
}

// Without a quorum doctor says how many members answer, and the others what to run.
func TestDoctor_NoQuorum(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t, etcdtest.WithMembers(3))
	for i := range 2 {
		cluster.Member(i).Kill()
	}
	left := cluster.Member(2).Endpoint()
	for _, endpoints := range []string{strings.Join(cluster.Endpoints(), ","), left} {
		r := start(t, []string{"ETCDCTL_ENDPOINTS=" + endpoints}, "doctor", "x", "--dial-timeout=2s")
		require.Equal(t, 2, r.wait(t), r.stderr.String())
		require.Empty(t, r.stderr.String())
		require.Regexp(t, `^x: unknown, because etcd does not answer
ATTENTION  1 of 3 members answers, no quorum: locks can neither be taken nor renewed
           2 of 3 are needed: start the others, or mend the network between them and from here
ATTENTION  etcd's member (m0 )?at `+cluster.Member(0).Endpoint()+` does not answer.*: dial tcp .*connection refused
           .*
ATTENTION  etcd's member (m1 )?at `+cluster.Member(1).Endpoint()+` does not answer.*: dial tcp .*connection refused
           .*
note       etcd 3\.\S+ \(1 of 3 members\)$`, r.output())
	}
	status, out, _ := ask(t, cluster, "doctor", "x", "-o", "json", "--dial-timeout=1s")
	require.Equal(t, 2, status)
	var report struct {
		Name      string
		Attention bool
		Findings  []finding
	}
	require.NoError(t, json.Unmarshal([]byte(out), &report))
	require.Equal(t, "x", report.Name)
	require.True(t, report.Attention)
	require.Equal(t, "1 of 3 members answers, no quorum: locks can neither be taken nor renewed", report.Findings[0].What)

	status, _, says := ask(t, cluster, "show", "x", "--dial-timeout=1s")
	require.Equal(t, 1, status)
	require.Regexp(t, `^etcdlock: no etcd answers at \S+, \S+, \S+ within 1s \(connected to `+left+`, but there was no answer.*; dial tcp .*connection refused.*\): more than half of etcd's members must run`, says)

	cluster.Member(2).Kill()
	status, out, says = ask(t, cluster, "doctor", "x", "--dial-timeout=300ms")
	require.Equal(t, 1, status, "etcd may be at another address")
	require.Empty(t, out)
	require.Regexp(t, `^etcdlock: no etcd answers at .* is it running, and is this its address\?`, says)
}

// Ctrl-C while doctor looks at the leases, or at the members, says nothing of etcd.
func TestDoctor_Interrupted(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	enqueued(t, cluster.Client(t), "ann", "x", etcdlock.WithTTL(9*time.Second))
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer silent.Close()
	for _, endpoints := range [][]string{cluster.Endpoints(), {silent.Addr().String()}} {
		c := onConsole(t, endpoints, binary, "doctor", "x")
		if endpoints[0] != silent.Addr().String() {
			c.until(t, "looking for")
		} else {
			_, err := silent.Accept()
			require.NoError(t, err)
		}
		c.types(t, ctrlC)
		c.until(t, "etcdlock: ended by signal: interrupt")
		require.Equal(t, 130, c.ends(t).ExitStatus())
	}
}

// Etcd loses its quorum between the two looks at the leases: what doctor has found
// before is not true any more.
func TestDoctor_QuorumLost(t *testing.T) {
	t.Parallel()
	looked := make(chan struct{}, 100)
	cluster := etcdtest.Start(t, etcdtest.WithMembers(3), intercepted(func(_ context.Context, req any) {
		if _, ok := req.(*pb.MemberListRequest); ok { // comes after the first look
			looked <- struct{}{}
		}
	}))
	client := cluster.Client(t)
	lease, err := client.Grant(bounded(t), 9)
	require.NoError(t, err)
	_, err = client.Put(bounded(t), fmt.Sprintf("x/%x", lease.ID), "", clientv3.WithLease(lease.ID))
	require.NoError(t, err)
	r := start(t, []string{"ETCDCTL_ENDPOINTS=" + strings.Join(cluster.Endpoints(), ",")}, "doctor", "x")
	<-looked
	for i := range 2 {
		cluster.Member(i).Kill()
	}
	require.Equal(t, 2, r.wait(t), r.stderr.String())
	require.Regexp(t, `^x: unknown, because etcd does not answer
ATTENTION  1 of 3 members answers, no quorum: `, r.output())
	require.Equal(t, 3, strings.Count(r.output(), "ATTENTION"), r.output())
	require.Equal(t, 1, strings.Count(r.output(), "note "), r.output())
}

func TestDoctor_Quorum(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		n, of int
		want  bool
	}{{0, 1, false}, {1, 1, true}, {1, 2, false}, {1, 3, false}, {2, 3, true}, {2, 4, false}, {3, 5, true}} {
		require.Equal(t, c.want, quorum(c.n, c.of), c)
	}
}

// Every member reports the alarms of all. doctor says each once.
func TestDoctor_Alarms(t *testing.T) {
	t.Parallel()
	status := func(revision int64, errors ...string) member {
		return member{status: &clientv3.StatusResponse{Header: &pb.ResponseHeader{Revision: revision}, Errors: errors}}
	}
	alarms := []string{"memberID:1 alarm:NOSPACE ", "memberID:2 alarm:NOSPACE ", "memberID:2 alarm:CORRUPT ", "etcdserver: no leader"}
	d := &doctor{}
	d.alarms([]member{status(7, alarms...), status(9, alarms...), {}})
	require.Len(t, d.findings, 2)
	require.Contains(t, d.findings[0].What, "out of space")
	require.Contains(t, d.findings[0].Do, "etcdctl compact --physical 9;")
	require.Contains(t, d.findings[1].What, "a member of etcd has other data than the rest (memberID:2 alarm:CORRUPT)")
}

// A member may advertise an address at which, from here, another etcd answers.
func TestDoctor_OtherEtcd(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	d := &doctor{client: cluster.Client(t), etcd: &connect.Config{}}
	members := []member{{id: 7, at: cluster.Endpoints()[0]}, {at: cluster.Endpoints()[0]}}
	d.askEach(bounded(t), members)
	require.False(t, members[0].answers())
	require.ErrorContains(t, members[0].err, "another etcd answers there")
	require.True(t, members[1].answers())
}

// Where etcd is full, doctor lists every step that helps.
func TestDoctor_NoSpace(t *testing.T) {
	t.Parallel()
	cluster := noSpace(t, 3)
	status, out, _ := ask(t, cluster, "doctor", "x", "--command-timeout=30s")
	require.Equal(t, 2, status)
	require.Regexp(t, `ATTENTION  etcd is out of space \(alarm NOSPACE; \d\.\d MiB of 1\.0 are in use\): it refuses every attempt to take a lock
           free space, then lift the alarm: etcdctl compact --physical \d+; etcdctl defrag for one member after the other; etcdctl alarm disarm\..* start the members with a larger --quota-backend-bytes\n`, out)
	require.Equal(t, 1, strings.Count(out, "out of space"), "every member reports it")
	require.NotContains(t, out, "has used", "that its file is large goes without saying")
}

// noSpace starts an etcd whose quota is used up.
func noSpace(t *testing.T, members int) *etcdtest.Cluster {
	t.Helper()
	cluster := etcdtest.Start(t, etcdtest.WithMembers(members), etcdtest.WithConfig(func(c *embed.Config) { c.QuotaBackendBytes = 1 << 20 }))
	client := cluster.Client(t)
	value := strings.Repeat("x", 256<<10)
	for {
		if _, err := client.Put(bounded(t), "filler", value); err != nil {
			require.ErrorContains(t, err, "space exceeded")
			require.Eventually(t, func() bool { // a member that finds it out as it writes raises the alarm a moment later
				alarms, err := client.AlarmList(bounded(t))
				require.NoError(t, err)
				return len(alarms.Alarms) > 0
			}, hang, 5*time.Millisecond)
			return cluster
		}
	}
}

// One session with a password that holds many locks makes etcd slow.
func TestDoctor_ManyKeysOfAUser(t *testing.T) {
	t.Parallel()
	own, as := harness.StartWithAuth(t)
	client := as("worker")
	for i, keys := range []int{manyKeys - 2, manyKeys} {
		name := fmt.Sprintf("a/%d", i)
		lease, err := client.Grant(bounded(t), 600)
		require.NoError(t, err)
		_, err = client.Put(bounded(t), fmt.Sprintf("%s/%x", name, lease.ID), `{"owner":"it"}`, clientv3.WithLease(lease.ID))
		require.NoError(t, err)
		ops := make([]clientv3.Op, 0, keys)
		for k := range keys {
			ops = append(ops, clientv3.OpPut(fmt.Sprintf("a/%d.%d", i, k), "", clientv3.WithLease(lease.ID)))
		}
		for some := range slices.Chunk(ops, 10) { // each of them is checked against all keys of the lease
			_, err := client.Txn(bounded(t)).Then(some...).Commit()
			require.NoError(t, err)
		}
		_, out, _ := ask(t, own, "doctor", "--user=worker:secret", name)
		require.Equal(t, keys >= manyKeys, strings.Contains(out, fmt.Sprintf("note       the session of it has %d keys", keys+1)), out)
	}
}

// What doctor says of an etcd that does not answer "within 5s" it says within 5 s.
func TestDoctor_Patience(t *testing.T) {
	t.Parallel()
	for dial, look := range map[time.Duration]time.Duration{5 * time.Second: 3 * time.Second, time.Second: time.Second / 2} {
		d := &doctor{etcd: &connect.Config{DialTimeout: dial}}
		require.Equal(t, look, d.lookTimeout())
		d.etcd.CommandTimeout = time.Minute
		require.Equal(t, time.Minute, d.lookTimeout())
	}
}

// A queue of many sessions takes many requests: a look at it may take as long as answers come, and ends when none comes.
func TestDoctor_LongLook(t *testing.T) {
	t.Parallel()
	var hangs atomic.Bool
	cluster := etcdtest.Start(t, intercepted(func(ctx context.Context, req any) {
		if _, ok := req.(*pb.LeaseTimeToLiveRequest); !ok {
			return
		}
		wait := time.After(400 * time.Millisecond) // etcd is far away
		if hangs.Load() {
			wait = nil
		}
		select {
		case <-wait:
		case <-ctx.Done():
		}
	}))
	client := cluster.Client(t)
	for range 56 { // eight are asked for at a time
		lease, err := client.Grant(bounded(t), 600)
		require.NoError(t, err)
		require.NoError(t, second(client.Put(bounded(t), fmt.Sprintf("x/%x", int64(lease.ID)), "", clientv3.WithLease(lease.ID))))
	}
	status, out, says := ask(t, cluster, "doctor", "x", "--dial-timeout=4s") // 2 s without an answer
	require.Zero(t, status, out)
	require.Contains(t, out, "ok         nothing needs attention")
	require.Empty(t, says)

	hangs.Store(true)
	status, out, _ = ask(t, cluster, "doctor", "x", "--dial-timeout=1s")
	require.Equal(t, 2, status)
	require.Regexp(t, `^x: unknown, because etcd does not answer\nATTENTION  the queue can't be read: .*no answer within 500ms\n`, out)
}

// A member that hangs keeps what clients have sent to it: doctor says to stop it.
func TestDoctor_MemberHangs(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts connections and says nothing
	require.NoError(t, err)
	defer silent.Close()
	r := start(t, []string{"ETCDCTL_ENDPOINTS=" + cluster.Endpoints()[0] + "," + silent.Addr().String()}, "doctor", "x")
	require.Equal(t, 2, r.wait(t), r.stderr.String())
	require.Regexp(t, `does not answer: .*
           stop it if it hangs \(kill -9\): until then what clients have sent to it has no answer`, r.output())
	// If no member answers, doctor does not send its reader to doctor.
	_, _, says := askAt(t, silent.Addr().String(), "doctor", "x", "--dial-timeout=300ms")
	require.Contains(t, says, ", but there was no answer): stop those that hang (kill -9), and start them again; more than half")
	require.NotContains(t, says, "etcdlock doctor")
	const others = "name all members with --endpoints (or ETCDCTL_ENDPOINTS): the others may be well"
	require.Contains(t, says, others)
	_, _, says = askAt(t, silent.Addr().String()+",127.0.0.1:1", "doctor", "x", "--dial-timeout=300ms")
	require.NotContains(t, says, others)
	_, _, says = askAt(t, silent.Addr().String(), "show", "x", "--dial-timeout=300ms")
	require.Contains(t, says, "etcdlock doctor says which of them answer")
}

// What answers there is no etcd, or not at its port for clients: nobody must stop it.
func TestDoctor_OtherPort(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	other := httptest.NewServer(http.NotFoundHandler()) // etcd's ports for members and for metrics are such
	defer other.Close()
	at := other.Listener.Addr().String()
	r := start(t, []string{"ETCDCTL_ENDPOINTS=" + cluster.Endpoints()[0] + "," + at}, "doctor", "x")
	require.Equal(t, 2, r.wait(t), r.stderr.String())
	require.Contains(t, r.output(), "ATTENTION  etcd's member at "+at+" does not answer: "+at+` answers in HTTP/1, as no etcd does at its port for clients
           name that port, 2379 by default, with --endpoints (or ETCDCTL_ENDPOINTS)
`)
	for _, command := range []string{"doctor", "show"} {
		status, out, says := askAt(t, at, command, "x", "--dial-timeout=300ms")
		require.Equal(t, 1, status, out)
		require.Equal(t, "etcdlock: no etcd answers at "+at+" within 300ms ("+at+" answers in HTTP/1, as no etcd does at its port for clients): name that port, 2379 by default, with --endpoints (or ETCDCTL_ENDPOINTS)\n", says)
	}
}

// How full etcd is: where compaction frees nothing, the numbers show it. A member before etcd 3.6 does not tell its quota.
func TestDoctor_InUse(t *testing.T) {
	t.Parallel()
	status := &clientv3.StatusResponse{Header: &pb.ResponseHeader{Revision: 7}, Leader: 1, DbSize: 20 << 20, DbSizeInUse: 18 << 20, DbSizeQuota: 20_000_000}
	d := &doctor{}
	d.member(member{name: "m0", at: "here", status: status}, nil, false, true)
	require.Len(t, d.findings, 1)
	require.Equal(t, "etcd's member m0 at here has used 20.0 MiB of 19.1, and 18.0 of it hold keys and their history", d.findings[0].What)
	old := &clientv3.StatusResponse{DbSizeInUse: 1 << 20}
	require.Equal(t, "18.0 MiB of 19.1 are in use", inUse([]member{{}, {status: status}, {status: old}}), "of the fullest")
	require.Equal(t, "1.0 MiB are in use", inUse([]member{{status: old}}))
}

// That a member knows no leader is said also if the queue could not be read, and another member knows one.
func TestDoctor_CutOff(t *testing.T) {
	t.Parallel()
	alone := member{name: "m0", at: "here", status: &clientv3.StatusResponse{Header: &pb.ResponseHeader{}}}
	for _, c := range []struct {
		unread error
		led    bool
		want   int
	}{{nil, true, 1}, {context.DeadlineExceeded, true, 1}, {context.DeadlineExceeded, false, 0}} {
		d := &doctor{}
		d.member(alone, c.unread, false, c.led)
		require.Len(t, d.findings, c.want)
		for _, f := range d.findings {
			require.Equal(t, finding{true, "etcd's member m0 at here knows no leader", "it does not see the other members: look at its network and log"}, f)
		}
	}
}

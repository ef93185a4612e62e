//go:build unix

package main

import (
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/cmd/etcdlock/internal/connect"
	"github.com/etcdlock/etcdlock/etcdtest"
)

// A command that gets too few arguments, or too many, says how it is used.
func TestArgs_Usage(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"show"}, `the name of a lock is missing; usage: etcdlock show NAME [flags]`},
		{[]string{"show", "a", "b"}, `"b" is one argument too many; usage: etcdlock show NAME [flags]`},
		{[]string{"doctor"}, `the name of a lock is missing; usage: etcdlock doctor NAME [flags]`},
		{[]string{"break"}, `the name of a lock is missing; usage: etcdlock break NAME KEY@TOKEN [flags]`},
		{[]string{"break", "a"}, `KEY@TOKEN is missing; usage: etcdlock break NAME KEY@TOKEN [flags]`},
		{[]string{"ls", "a", "b"}, `"b" is one argument too many; usage: etcdlock ls [PREFIX] [flags]`},
		{[]string{"show", "--patience"}, `unknown flag: --patience; etcdlock show --help lists the flags`},
	} {
		r := start(t, nil, c.args...)
		require.Equal(t, 1, r.wait(t), c.args)
		require.Equal(t, "etcdlock: "+c.says+"\n", r.stderr.String())
	}
}

func TestArgs_Version(t *testing.T) {
	t.Parallel()
	r := start(t, nil, "--version")
	require.Zero(t, r.wait(t), r.stderr.String())
	require.Regexp(t, `^etcdlock version \S+.* \(etcd client v3\.\S+, `+runtime.Version()+`.*\)$`, r.output())
}

// A duration without a unit is in seconds, as etcdctl's --ttl is.
func TestArgs_Seconds(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	client := cluster.Client(t)
	r, end := begin(t, cluster.Endpoints(), "x", "--ttl", "7", "--grace=2", "--wait=30", "--dial-timeout=5", "--", "sh", "-c", "echo in; read line; true")
	r.until(t, "^in$")
	got, err := client.Get(bounded(t), waiters(t, client, "x", 1)[0])
	require.NoError(t, err)
	lease, err := client.TimeToLive(bounded(t), clientv3.LeaseID(got.Kvs[0].Lease))
	require.NoError(t, err)
	require.Equal(t, 7*time.Second, time.Duration(lease.GrantedTTL)*time.Second)
	end()
	require.Zero(t, r.wait(t), r.stderr.String())

	r = start(t, nil, "run", "x", "--ttl", "soon", "--", "true")
	require.Equal(t, 125, r.wait(t))
	require.Regexp(t, `^etcdlock: invalid argument "soon" for "--ttl" flag: use a number of seconds, or [^\n]*\n$`, r.stderr.String())
}

// The name of a lock may begin with "-", as that of a flag.
func TestArgs_NameWithADash(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	for _, command := range []string{"run", "elect"} {
		status, out, says := ask(t, cluster, command, "--ttl=30s", "--", "-x", "--", "sh", "-c", "echo $ETCDLOCK_NAME $0", "--")
		require.Zero(t, status, says)
		require.Equal(t, "-x --", out)
		for _, args := range [][]string{{"-x", "--", "true"}, {"-x", "true"}} {
			status, _, says = ask(t, cluster, append([]string{command}, args...)...)
			require.Equal(t, 125, status)
			require.Equal(t, "etcdlock: unknown shorthand flag: 'x' in -x; a NAME that begins with - stands after --; etcdlock "+command+" --help lists the flags\n", says)
		}
		status, _, says = ask(t, cluster, command, "--", "-x", "--")
		require.Equal(t, 125, status)
		require.Contains(t, says, "CMD is missing after --")
	}
	status, out, says := ask(t, cluster, "show", "--", "-x")
	require.Zero(t, status, says)
	require.Equal(t, "-x: free", out)
}

// Anybody may write a name that looks like a flag. What the command advises, and the example of ls, take it for a name.
func TestArgs_AdviceForANameLikeAFlag(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	client := cluster.Client(t)
	const name = "--endpoints=127.0.0.1:1"
	_, err := client.Put(bounded(t), name+"/4711", "data")
	require.NoError(t, err)
	enqueued(t, client, "ann", name, etcdlock.WithTTL(time.Minute))
	shell := func(line string) (status int, out, says string) {
		r := command(t, []string{"ETCDCTL_ENDPOINTS=" + cluster.Endpoints()[0], "PATH=" + filepath.Dir(binary) + ":" + os.Getenv("PATH")})
		r.cmd.Path, r.cmd.Args = "/bin/sh", []string{"sh", "-c", line}
		r.launch(t)
		return r.wait(t), r.output(), r.stderr.String()
	}
	examples := strings.Split(listCommand(&connect.Config{}).Example, "\n")
	_, out, says := shell(examples[len(examples)-1]) // the status is xargs' own
	require.Contains(t, out, name+": held, 1 waiting", says)
	advice := regexp.MustCompile(`(etcdlock break .*), which deletes it`).FindStringSubmatch(out)
	require.NotNil(t, advice, out)
	status, _, says := shell(advice[1])
	require.Zero(t, status, says)
	status, out, says = shell("etcdlock doctor -- " + name)
	require.Zero(t, status, says)
	require.Contains(t, out, name+": held, nobody waits")
	_, err = client.Put(bounded(t), name, "data")
	require.NoError(t, err)
	_, out, says = shell("etcdlock doctor -- " + name)
	require.Contains(t, out, name+" is itself a key in etcd. It is no entry of a lock, and blocks none: etcdctl get -- "+name+" shows its value", says)

	require.Equal(t, "etcdlock doctor -- "+name+" says what to do", doctorHint(name))
	require.Equal(t, "if its owner does not run: etcdlock break -- "+name+" "+name+"/1@7", breakHint(etcdlock.Entry{Name: name, Key: name + "/1", Token: 7}))
}

// -w is etcdctl's --write-out.
func TestArgs_WriteOut(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	enqueued(t, cluster.Client(t), "ann", "x", etcdlock.WithTTL(time.Minute)) // so doctor has no renewal to watch
	for _, args := range [][]string{{"show", "x"}, {"ls"}, {"doctor", "x"}} {
		for _, flag := range []string{"-w=json", "--write-out=json", "-o=json"} {
			status, out, says := ask(t, cluster, append(args, flag)...)
			require.Zero(t, status, says)
			require.Regexp(t, `^\{"name":"x",.*\}$`, out)
		}
	}
	status, _, says := ask(t, cluster, "show", "-w", "xml", "x")
	require.Equal(t, 1, status)
	require.Contains(t, says, `invalid argument "xml" for "-w, --write-out" flag: use table or json`)
}

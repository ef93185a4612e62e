//go:build unix

package main

import (
	"bytes"
	"io"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
)

// Nobody reads standard error, and its pipe is full. That keeps nobody from the lock: CMD begins when the lock is there, and
// is asked to end as soon as somebody takes the lock away.
func TestRun_StderrIsBlocked(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	client := cluster.Client(t)
	locks := etcdlock.New(client)
	defer func() { _ = locks.Close() }()
	h, err := locks.Mutex("x").Lock(bounded(t))
	require.NoError(t, err)

	read, full, err := os.Pipe()
	require.NoError(t, err)
	defer read.Close()
	require.NoError(t, full.SetWriteDeadline(time.Now().Add(100*time.Millisecond)))
	filled, err := full.Write(bytes.Repeat([]byte("."), 1<<20))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)

	r := command(t, []string{"ETCDCTL_ENDPOINTS=" + cluster.Endpoints()[0]}, "run", "x", "--ttl=100s", "--grace=30s", "--",
		"sh", "-c", `exec 2>/dev/null; trap "echo TERM; exit 0" TERM; echo ready; while :; do sleep 0.01; done`)
	r.cmd.Stderr = full
	r.launch(t)
	require.NoError(t, full.Close())
	waiters(t, client, "x", 2)
	<-time.After(4 * tellAfter) // it says who has the lock
	require.NoError(t, h.Unlock(bounded(t)))
	r.until(t, "^ready$")
	_, err = client.Delete(bounded(t), waiters(t, client, "x", 1)[0])
	require.NoError(t, err)
	r.until(t, "^TERM$")

	said := make(chan string, 1)
	go func() { // ends with the command
		got, _ := io.ReadAll(read)
		said <- string(got[filled:])
	}()
	require.Equal(t, 76, r.wait(t))
	require.Regexp(t, `^etcdlock: x: waiting: .*\n(?s:.*)gets SIGTERM, and SIGKILL in .*\netcdlock: x: the lock was not held all the time`, <-said)
}

// A line that is written late, because the machine is busy, comes before what happens next all the same. Only a reader that
// does not read is not waited for, nor a write that hangs otherwise.
func TestSay_Late(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		writes time.Duration
		full   bool
		waits  time.Duration
	}{
		{10 * time.Millisecond, false, 10 * time.Millisecond},
		{700 * time.Millisecond, false, 700 * time.Millisecond},
		{time.Hour, true, sayFor},
		{time.Hour, false, sayAsks * sayFor},
	} {
		synctest.Test(t, func(t *testing.T) {
			written := make(chan struct{})
			time.AfterFunc(c.writes, func() { close(written) })
			began := time.Now()
			awaitWrite(written, func() bool { return c.full })
			require.Equal(t, c.waits, time.Since(began))
			<-written
		})
	}
}

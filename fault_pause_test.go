//go:build unix

package etcdlock

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"github.com/etcdlock/etcdlock/etcdtest"
)

// Rows F4 and F12: a process that is paused, the holder's and etcd's. Both are
// this test binary, run again as a helper.

const helperEnv = "ETCDLOCK_TEST_HELPER"

// helpers are what a helper process can be. It ends with its stdin.
var helpers = map[string]func(arg string, in *bufio.Reader) error{"holder": holderProcess, "etcd": etcdProcess}

// init runs a helper, before TestMain would start a cluster.
func init() {
	name, arg, _ := strings.Cut(os.Getenv(helperEnv), " ")
	if name == "" {
		return
	}
	if err := helpers[name](arg, bufio.NewReader(os.Stdin)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// A process is a helper that runs.
type process struct {
	cmd *exec.Cmd
	in  io.Writer
	out *bufio.Reader
}

func startHelper(t *testing.T, name string, arg any) *process {
	t.Helper()
	a, err := json.Marshal(arg)
	require.NoError(t, err)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), helperEnv+"="+name+" "+string(a))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return &process{cmd, in, bufio.NewReader(out)}
}

func (p *process) signal(t *testing.T, s os.Signal) {
	t.Helper()
	require.NoError(t, p.cmd.Process.Signal(s))
}

// read reads a line of the helper into v.
func (p *process) read(t *testing.T, v any) {
	t.Helper()
	line, err := p.out.ReadBytes('\n')
	require.NoError(t, err, "the helper has ended")
	require.NoError(t, json.Unmarshal(line, v))
}

type holderArg struct {
	Endpoints []string
	Name      string
	First     string // what it does first on waking
}

// holderProcess takes a lock, and is paused with it. When it wakes it tells
// what each call gives, beginning with arg.First.
func holderProcess(arg string, in *bufio.Reader) error {
	var a holderArg
	if err := json.Unmarshal([]byte(arg), &a); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*hang)
	defer cancel()
	c, err := clientv3.New(clientv3.Config{Endpoints: a.Endpoints, Logger: zap.NewNop()})
	if err != nil {
		return err
	}
	s, err := NewSession(ctx, c, WithTTL(2*time.Second))
	if err != nil {
		return err
	}
	h, err := NewMutex(s, a.Name).Lock(ctx)
	if err != nil {
		return err
	}
	done := h.Done()
	out := json.NewEncoder(os.Stdout)
	if err := out.Encode(h.Token()); err != nil {
		return err
	}
	if _, err := in.ReadString('\n'); err != nil { // it is paused in here
		return err
	}
	calls := map[string]func() error{
		"Valid": func() error {
			if !h.Valid() {
				return ErrLost
			}
			return nil
		},
		"Err":   h.Err,
		"Check": func() error { return h.Check(ctx) },
		"Txn": func() error {
			_, err := h.Txn(ctx).Then(clientv3.OpPut(a.Name+".guarded", "stale")).Commit()
			return err
		},
		"Unlock": func() error { return h.Unlock(ctx) },
	}
	said := map[string]string{}
	for _, call := range []string{a.First, "Valid", "Err", "Check", "Txn", "Unlock"} {
		if said[call] == "" {
			said[call] = "went through"
			if err := calls[call](); errors.Is(err, ErrLost) {
				said[call] = "lost"
			} else if err != nil {
				said[call] = err.Error()
			}
		}
	}
	<-done
	said["the store"] = "went through"
	if ok, err := storeWrite(ctx, c, a.Name+".store", "stale", h.Token()); err != nil {
		return err
	} else if !ok {
		said["the store"] = "refused"
	}
	return out.Encode(said)
}

// storeWrite writes to a store that knows nothing of locks, but refuses tokens
// lower than the highest that it has seen.
func storeWrite(ctx context.Context, c *clientv3.Client, key, value string, token int64) (bool, error) {
	seen := fmt.Sprintf("%020d", token)
	resp, err := c.Txn(ctx).If(clientv3.Compare(clientv3.Value(key+".token"), ">", seen)).
		Else(clientv3.OpPut(key, value), clientv3.OpPut(key+".token", seen)).Commit()
	if err != nil {
		return false, err
	}
	return !resp.Succeeded, nil
}

// A holder is stopped for twice its TTL, and its lock goes to the next one.
// Whatever it does first when it wakes, it finds the lock lost.
func TestFault_F4_HolderPaused(t *testing.T) {
	own := etcdtest.Start(t)
	c := own.Client(t)
	s := newTestSession(t, c)
	firsts := []string{"Valid", "Err", "Check", "Txn", "Unlock"}
	holders := map[string]*process{}
	for _, first := range firsts {
		holders[first] = startHelper(t, "holder", holderArg{own.Endpoints(), first, first})
	}
	tokens, next := map[string]int64{}, map[string]*Ticket{}
	for _, first := range firsts {
		var token int64
		holders[first].read(t, &token)
		tokens[first] = token
		tk, err := NewMutex(s, first).Enqueue(testCtx(t))
		require.NoError(t, err)
		notGranted(t, tk, 1)
		next[first] = tk
	}
	paused := time.NewTimer(4 * time.Second)
	for _, p := range holders {
		p.signal(t, syscall.SIGSTOP)
	}
	for _, first := range firsts {
		h, err := next[first].Wait(testCtx(t))
		require.NoError(t, err)
		require.Greater(t, h.Token(), tokens[first])
		ok, err := storeWrite(testCtx(t), c, first+".store", "new", h.Token())
		require.NoError(t, err)
		require.True(t, ok)
	}
	<-paused.C
	for _, p := range holders {
		_, err := io.WriteString(p.in, "wake\n")
		require.NoError(t, err)
		p.signal(t, syscall.SIGCONT)
	}
	for _, first := range firsts {
		said := map[string]string{}
		holders[first].read(t, &said)
		require.Equal(t, map[string]string{
			"Valid": "lost", "Err": "lost", "Check": "lost", "Txn": "lost", "Unlock": "lost", "the store": "refused",
		}, said, "first "+first)
		h, err := next[first].Wait(testCtx(t))
		require.NoError(t, err)
		require.NoError(t, h.Check(testCtx(t)))
		got, err := c.Get(testCtx(t), first+".", clientv3.WithPrefix())
		require.NoError(t, err)
		for _, kv := range got.Kvs {
			require.NotEqual(t, "stale", string(kv.Value), string(kv.Key))
		}
		require.NoError(t, h.Unlock(testCtx(t)))
	}
}

// etcdArg is a member of a cluster of processes.
type etcdArg struct{ Name, Dir, Client, Peer, Cluster string }

// etcdProcess serves until its stdin ends.
func etcdProcess(arg string, in *bufio.Reader) error {
	var a etcdArg
	if err := json.Unmarshal([]byte(arg), &a); err != nil {
		return err
	}
	one := func(s string) []url.URL {
		u, err := url.Parse(s)
		if err != nil {
			panic(err)
		}
		return []url.URL{*u}
	}
	cfg := embed.NewConfig()
	cfg.Name, cfg.Dir, cfg.InitialCluster = a.Name, a.Dir, a.Cluster
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = one(a.Client), one(a.Client)
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = one(a.Peer), one(a.Peer)
	cfg.TickMs, cfg.ElectionMs = 50, 500
	cfg.UnsafeNoFsync, cfg.LogLevel = true, "fatal"
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		return err
	}
	select {
	case <-e.Server.ReadyNotify():
	case err := <-e.Err():
		return err
	}
	fmt.Println("true")
	_, _ = in.ReadString('\n')
	return nil
}

// startProcesses starts a cluster of three etcd processes.
func startProcesses(t *testing.T) (members []*process, endpoints []string) {
	t.Helper()
	var urls []string
	for range 6 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer l.Close() // once all are found
		urls = append(urls, "http://"+l.Addr().String())
		require.NoError(t, l.Close())
	}
	var initial []string
	for i := range 3 {
		initial = append(initial, fmt.Sprintf("m%d=%s", i, urls[3+i]))
	}
	for i := range 3 {
		members = append(members, startHelper(t, "etcd", etcdArg{fmt.Sprintf("m%d", i), t.TempDir(), urls[i], urls[3+i], strings.Join(initial, ",")}))
	}
	for _, m := range members {
		var ready bool
		m.read(t, &ready)
	}
	return members, urls[:3]
}

// A member is stopped with its connections open. No session is lost, no waiter
// fails, and locks go from hand to hand meanwhile.
func TestFault_F12_MemberPaused(t *testing.T) {
	members, endpoints := startProcesses(t)
	dial := func() *clientv3.Client {
		c, err := clientv3.New(clientv3.Config{Endpoints: endpoints, Logger: zap.NewNop()})
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	leader := func() int {
		for i, e := range endpoints {
			st, err := dial().Status(testCtx(t), e)
			require.NoError(t, err)
			if st.Header.MemberId == st.Leader {
				return i
			}
		}
		t.Fatal("no leader")
		return 0
	}
	const sessions = 6
	ttl := 3 * time.Second
	for _, paused := range []string{"leader", "follower"} {
		at := leader()
		if paused == "follower" {
			at = (at + 1) % 3
		}
		var all []*Session
		var tickets []*Ticket
		var dones []<-chan struct{}
		for i := range sessions {
			s := newTestSession(t, dial(), WithTTL(ttl))
			all = append(all, s)
			tk, err := NewMutex(s, "shared").Enqueue(testCtx(t))
			require.NoError(t, err)
			tickets = append(tickets, tk)
			own, err := NewMutex(s, fmt.Sprint("own", i)).Lock(testCtx(t))
			require.NoError(t, err)
			dones = append(dones, own.Done())
		}
		members[at].signal(t, syscall.SIGSTOP)
		began := time.Now()
		var wg sync.WaitGroup
		for _, s := range all {
			wg.Go(func() { // more than a TTL without that member
				for was := s.Deadline(); s.Err() == nil && s.Deadline().Sub(was) < ttl*3/2; {
					_ = pause(testCtx(t), tick)
				}
			})
		}
		var slowest time.Duration
		for _, tk := range tickets {
			step := time.Now()
			h, err := tk.Wait(testCtx(t))
			require.NoError(t, err, paused)
			require.NoError(t, h.Check(testCtx(t)))
			require.NoError(t, h.Unlock(testCtx(t)))
			slowest = max(slowest, time.Since(step))
		}
		handed := time.Since(began)
		wg.Wait()
		members[at].signal(t, syscall.SIGCONT)
		for i, s := range all {
			require.NoError(t, s.Err(), paused)
			select {
			case <-dones[i]:
				t.Error("a hold is lost")
			default:
			}
			require.NoError(t, s.Close(testCtx(t)))
		}
		t.Logf("%s paused for %v: %d locks went on in %v, the slowest in %v", paused, time.Since(began).Round(time.Millisecond),
			len(tickets), handed.Round(time.Millisecond), slowest.Round(time.Millisecond))
	}
}

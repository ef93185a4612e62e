package faults

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/test/harness"
	"github.com/etcdlock/etcdlock/internal/test/loopback"
)

// addLearner adds a member to the cluster that does not vote yet.
func addLearner(t *testing.T, own *etcdtest.Cluster, c *clientv3.Client) (id uint64, endpoint string) {
	t.Helper()
	var urls []url.URL
	addrs, err := loopback.FreeAddrs(2)
	require.NoError(t, err)
	for _, addr := range addrs {
		urls = append(urls, url.URL{Scheme: "http", Host: addr})
	}
	added, err := c.MemberAddAsLearner(harness.Ctx(t), []string{urls[0].String()})
	require.NoError(t, err)
	as, cfg := own.Member(0).Etcd().Config(), embed.NewConfig()
	cfg.TickMs, cfg.ElectionMs, cfg.UnsafeNoFsync, cfg.LogLevel = as.TickMs, as.ElectionMs, true, "fatal"
	cfg.InitialClusterToken = as.InitialClusterToken
	cfg.Name, cfg.Dir, cfg.ClusterState = "learner", t.TempDir(), embed.ClusterStateFlagExisting
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = urls[:1], urls[:1]
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = urls[1:], urls[1:]
	cfg.InitialCluster = "learner=" + urls[0].String()
	for _, m := range added.Members {
		if m.Name != "" {
			cfg.InitialCluster += "," + m.Name + "=" + strings.Join(m.PeerURLs, ",")
		}
	}
	learner, err := embed.StartEtcd(cfg)
	require.NoError(t, err)
	t.Cleanup(learner.Close)
	<-learner.Server.ReadyNotify()
	return added.Member.ID, urls[1].String()
}

// A learner joins and is promoted, and the leader is removed, while locks are held, waited
// for and handed over.
func TestFault_C1_MembersComeAndGo(t *testing.T) {
	t.Parallel()
	own := etcdtest.Start(t, etcdtest.WithMembers(3), etcdtest.WithConfig(func(c *embed.Config) {
		c.StrictReconfigCheck = false // it would require members that have been up for 5 s
	}))
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	var clients []*clientv3.Client
	var holds []*etcdlock.Held
	var waiting []*etcdlock.Ticket
	var cycles atomic.Int64
	for i := range 4 {
		c := own.Client(t)
		s := newSession(t, c, etcdlock.WithTTL(time.Minute))
		h, err := etcdlock.NewMutex(s, fmt.Sprint("own", i)).Lock(harness.Ctx(t))
		require.NoError(t, err)
		h.Done()
		tk, err := etcdlock.NewMutex(s, "waited for").Enqueue(harness.Ctx(t))
		require.NoError(t, err)
		clients, holds, waiting = append(clients, c), append(holds, h), append(waiting, tk)
		lock := []func(context.Context) (*etcdlock.Held, error){etcdlock.NewMutex(s, "a").Lock, etcdlock.NewRWMutex(s, "a").RLock}[i%2]
		wg.Go(func() {
			for ; ctx.Err() == nil; cycles.Add(1) {
				h, err := lock(harness.Ctx(t))
				if err == nil {
					err = h.Unlock(harness.Ctx(t))
				}
				if err != nil {
					t.Error(err)
					return
				}
				rest()
			}
		})
	}
	goesOn := func(what string) {
		t.Helper()
		from := cycles.Load()
		require.Eventually(t, func() bool { return cycles.Load() > from+20 || t.Failed() }, harness.Hang, harness.Tick, what)
	}
	goesOn("at first")
	admin := own.Client(t)
	id, endpoint := addLearner(t, own, admin)
	for _, c := range clients {
		c.SetEndpoints(append(own.Endpoints(), endpoint)...)
	}
	goesOn("with a learner, which refuses all requests")
	for {
		_, err := admin.MemberPromote(harness.Ctx(t), id)
		if err == nil {
			break
		}
		require.True(t, errors.Is(err, rpctypes.ErrMemberLearnerNotReady) || !etcd.Refused(err), err)
		require.NoError(t, etcd.Sleep(harness.Ctx(t), harness.Tick))
	}
	goesOn("with four members")
	leader, err := own.Leader(harness.Ctx(t))
	require.NoError(t, err)
	removed := leader.Etcd().Server
	// Ask another member: the leader may stop before it has answered.
	other := own.Client(t, etcdtest.WithClientConfig(func(cfg *clientv3.Config) {
		cfg.Endpoints = []string{own.Member((leader.Index() + 1) % 3).Endpoint()}
	}))
	_, err = other.MemberRemove(harness.Ctx(t), uint64(removed.MemberID()))
	require.NoError(t, err)
	<-removed.StopNotify()
	leader.Kill() // a removed member's process ends
	goesOn("with its leader removed")
	for i, c := range clients {
		if i%2 == 0 { // the other clients still try to reach it
			c.SetEndpoints(endpoint, own.Member((leader.Index()+1)%3).Endpoint(), own.Member((leader.Index()+2)%3).Endpoint())
		}
	}
	goesOn("in the end")
	cancel()
	wg.Wait()
	for i, tk := range waiting {
		require.NoError(t, holds[i].Check(harness.Ctx(t)))
		select {
		case <-holds[i].Done():
			t.Error(holds[i].Err())
		default:
		}
		h, err := tk.Wait(harness.Ctx(t))
		require.NoError(t, err)
		require.NoError(t, h.Unlock(harness.Ctx(t)))
		require.NoError(t, h.Session().Close())
		require.NoError(t, clients[i].Close()) // the learner would wait until the client disconnects
	}
}

// A client of a member that is cut off gets no answer, and never an old one.
func TestFault_C8_NoOldAnswers(t *testing.T) {
	t.Parallel()
	own := etcdtest.Start(t, etcdtest.WithMembers(3))
	leader, err := own.Leader(harness.Ctx(t))
	require.NoError(t, err)
	x := own.Member((leader.Index() + 1) % 3)
	c := own.Client(t)
	s := newSession(t, c, etcdlock.WithTTL(time.Minute)) // without an answer for some time
	h, err := etcdlock.NewMutex(s, "a").Lock(harness.Ctx(t))
	require.NoError(t, err)
	tk, err := etcdlock.NewMutex(s, "a").Enqueue(harness.Ctx(t))
	require.NoError(t, err)
	harness.NotGranted(t, tk, 1)
	c.SetEndpoints(x.Endpoint())
	require.NoError(t, h.Check(harness.Ctx(t)))
	x.Isolate()
	other := own.Client(t, etcdtest.WithClientConfig(func(cfg *clientv3.Config) { cfg.Endpoints = []string{leader.Endpoint()} }))
	_, err = other.Delete(harness.Ctx(t), "a/", clientv3.WithPrefix())
	require.NoError(t, err)
	for what, ask := range map[string]func(ctx context.Context) error{
		"Check":   h.Check,
		"Ahead":   func(ctx context.Context) error { _, err := tk.Ahead(ctx); return err },
		"TryLock": func(ctx context.Context) error { _, err := etcdlock.NewMutex(s, "a").TryLock(ctx); return err },
	} {
		err := returnsWithCtx(t, time.Second, ask)
		// An earlier watch may be on another member and report the loss.
		require.True(t, errors.Is(err, context.DeadlineExceeded) || errors.Is(err, etcdlock.ErrLost), "%s: %v", what, err)
	}
	x.Heal()
	require.ErrorIs(t, h.Check(harness.Ctx(t)), etcdlock.ErrLost)
	_, err = tk.Wait(harness.Ctx(t))
	require.ErrorIs(t, err, etcdlock.ErrLost)
	require.NoError(t, s.Err())
}

// What stands between leads a client to a learner, and to no other member. The learner refuses all requests until it is promoted, or
// the client is led to another member. A wait and a Lock go on then.
func TestFault_C1_OnlyALearner(t *testing.T) {
	t.Parallel()
	own := etcdtest.Start(t, etcdtest.WithConfig(func(c *embed.Config) { c.StrictReconfigCheck = false }))
	proxy, tap, admin := own.Proxy(t, 0), etcdtest.NewTap(), own.Client(t)
	c := own.Client(t, tap, proxy)
	s, others := newSession(t, c, etcdlock.WithTTL(time.Minute)), newSession(t, admin, etcdlock.WithTTL(time.Minute))
	holder := mustLock(t, others, "a")
	waits, err := etcdlock.NewMutex(s, "a").Enqueue(harness.Ctx(t))
	require.NoError(t, err)
	_, endpoint := addLearner(t, own, admin)
	var seen atomic.Int32
	tap.Every("Txn", func(ctx context.Context, call *etcdtest.Call) error {
		err := call.Send(ctx)
		if err != nil && strings.Contains(err.Error(), "learner") {
			seen.Add(1)
		}
		return err
	})
	refused := func(n int32) {
		t.Helper()
		n += seen.Load()
		require.Eventually(t, func() bool { return seen.Load() >= n }, harness.Hang, harness.Tick)
	}
	c.SetEndpoints(endpoint)
	proxy.Refuse()
	proxy.Reset() // and with it the watch of the wait
	refused(2)
	locked := make(chan error)
	go func() {
		h, err := etcdlock.NewMutex(s, "b").Lock(harness.Ctx(t))
		if err == nil {
			err = h.Unlock(harness.Ctx(t))
		}
		locked <- err
	}()
	refused(5)
	proxy.Accept()
	c.SetEndpoints(proxy.Endpoints()...)
	require.NoError(t, <-locked)
	require.NoError(t, holder.Unlock(harness.Ctx(t)))
	<-waits.Done()
	h, err := waits.Wait(harness.Ctx(t))
	require.NoError(t, err)
	require.NoError(t, h.Unlock(harness.Ctx(t)))
	require.NoError(t, s.Close())
	require.NoError(t, c.Close()) // the learner would wait until the client disconnects
}

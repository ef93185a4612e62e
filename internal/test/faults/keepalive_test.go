package faults

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/test/harness"
	"github.com/etcdlock/etcdlock/internal/test/sample"
)

// Rows J1 and J5: the streams on which a session's lease is renewed.

// renewals is an option that tells of each renewal that etcd has confirmed.
func renewals() (<-chan etcdlock.RenewedInfo, etcdlock.Option) {
	renewed := make(chan etcdlock.RenewedInfo, 1000)
	return renewed, etcdlock.WithHooks(&etcdlock.Hooks{Renewed: func(i etcdlock.RenewedInfo) {
		if i.Err == nil {
			renewed <- i
		}
	}})
}

// awaitAlive waits for an event, such as a renewal, of a session that must live until then.
func awaitAlive[I any](t *testing.T, s *etcdlock.Session, event <-chan I) {
	t.Helper()
	select {
	case <-event:
	case <-s.Done():
		t.Fatal(s.Err())
	}
}

// lateRenewals is an option that counts the renewals that have no answer within a sixth of the TTL, as on a machine that
// stalls: each is sent again, on another stream.
func lateRenewals() (*atomic.Int32, etcdlock.Option) {
	n := new(atomic.Int32)
	return n, etcdlock.WithHooks(&etcdlock.Hooks{Renewed: func(i etcdlock.RenewedInfo) {
		if i.Err != nil {
			n.Add(1)
		}
	}})
}

// `etcd grpc-proxy` gives one reply of etcd to all renewals of a lease that wait for one. So the answer to the second
// attempt to renew may be the answer to the first one, and counts from when that was sent.
func TestFault_J1_OneReplyForSeveralRenewals(t *testing.T) {
	t.Parallel()
	oneReply(t, false)
}

// The first attempt has failed meanwhile.
func TestFault_J1_OneReplyAfterTheFirstBreaks(t *testing.T) {
	t.Parallel()
	oneReply(t, true)
}

func oneReply(t *testing.T, breaks bool) {
	t.Helper()
	up, tap := etcdtest.NewTap(), etcdtest.NewTap()
	var mu sync.Mutex
	var sent []time.Time
	asked, several, reply := make(chan struct{}), make(chan struct{}), make(chan struct{})
	up.OnKeepAliveRequest(func(context.Context, *pb.LeaseKeepAliveRequest) error {
		select {
		case <-asked: // the proxy asks once: etcd can't be reached after that
			return etcdtest.ErrDrop
		default:
			close(asked)
			return nil
		}
	})
	up.OnKeepAliveResponse(func(ctx context.Context, _ *pb.LeaseKeepAliveResponse) error {
		select {
		case <-reply:
		case <-ctx.Done():
		}
		return nil
	})
	tap.OnKeepAliveRequest(func(context.Context, *pb.LeaseKeepAliveRequest) error {
		mu.Lock()
		defer mu.Unlock()
		if sent = append(sent, time.Now()); len(sent) == 3 { // so the second one has come to the proxy
			close(several)
		}
		return nil
	})
	behind := etcdtest.Attach(harness.GRPCProxy(t, cluster.Client(t, up)))
	link := behind.Proxy(t)
	renewed, hooks := renewals()
	s := newSession(t, behind.Client(t, tap, link), etcdlock.WithTTL(12*time.Second), hooks)
	if breaks {
		<-asked
		link.Reset()
	}
	awaitAlive(t, s, several)
	close(reply)
	<-renewed
	<-s.Done()
	mu.Lock()
	defer mu.Unlock()
	require.LessOrEqual(t, s.Deadline().Sub(sent[0]), s.TTL()*9/10, "it counts from before etcd was asked, less the margin")
}

// A session asks for one password check in its life, as long as etcd answers: that of its stream.
func TestFault_J5_OnePasswordCheck(t *testing.T) {
	t.Parallel()
	// A token lasts as long as the session, which uses it in each third of that.
	_, as := harness.StartWithAuth(t, etcdtest.WithConfig(func(c *embed.Config) { c.AuthTokenTTL = 8 }))
	tap := etcdtest.NewTap()
	c := as("worker", tap)
	blocking, err := etcdlock.NewMutex(newSession(t, as("worker")), "a/busy").Lock(harness.Ctx(t))
	require.NoError(t, err)
	renewed, hooks := renewals()
	late, counts := lateRenewals()
	s := newSession(t, c, etcdlock.WithTTL(8*time.Second), hooks, counts)
	h, err := etcdlock.NewMutex(s, "a/1").Lock(harness.Ctx(t))
	require.NoError(t, err)
	done := h.Done()
	waiting, err := etcdlock.NewMutex(s, "a/busy").Enqueue(harness.Ctx(t))
	require.NoError(t, err)
	require.Eventually(t, func() bool { return len(tap.WatchCreates()) >= 2 }, harness.Hang, harness.Tick)
	awaitAlive(t, s, renewed)
	checks := tap.Calls("Authenticate")
	for range sample.Rounds(t, 3, 6) {
		awaitAlive(t, s, renewed)
	}
	require.LessOrEqual(t, tap.Calls("Authenticate"), checks+int(late.Load()), "password checks at rest")
	require.LessOrEqual(t, tap.Calls("LeaseKeepAlive"), 1+int(late.Load()), "streams")
	select {
	case <-done:
		t.Fatal(h.Err())
	default:
	}
	require.NoError(t, blocking.Unlock(harness.Ctx(t)))
	next, err := waiting.Wait(harness.Ctx(t))
	require.NoError(t, err)
	require.NoError(t, next.Unlock(harness.Ctx(t)))
}

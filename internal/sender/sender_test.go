package sender

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/test/fakeetcd"
)

var errLost = status.Error(codes.Unavailable, "transport is closing") // as of a reply that was lost

// A post is a Sender in front of a fake etcd, which holds requests back, refuses them, and loses replies.
type post struct {
	pb.KVClient
	*testing.T
	*Sender
	f     *fakeetcd.Server
	end   context.CancelFunc // of the lease
	close context.CancelFunc // of the client

	mu     sync.Mutex
	held   chan struct{}                                     // holds back what comes
	before func(ctx context.Context, r *pb.TxnRequest) error // it is carried out
	after  func(ctx context.Context, r *pb.TxnRequest) error // it was
	sent   []string                                          // the keys of each request
	calls  sync.WaitGroup                                    // of the test
	got    map[string]Reply                                  // by key
	doubt  map[string]bool                                   // ambiguous
	errs   map[string]error
}

func onPost(t *testing.T, play func(p *post)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p := &post{T: t, f: fakeetcd.New(), got: map[string]Reply{}, doubt: map[string]bool{}, errs: map[string]error{}}
		ctx, stop := context.WithCancel(context.Background())
		client := clientv3.NewCtxClient(ctx)
		client.KV, p.close = clientv3.NewKVFromKVClient(p, client), stop
		lease, end := context.WithCancel(context.Background())
		p.end = end
		p.Sender = New(etcd.NewClient(client), func(f func(ctx context.Context)) bool {
			if lease.Err() != nil || ctx.Err() != nil {
				return false
			}
			go func() {
				bound, unbind := etcd.Bind(lease, ctx)
				defer unbind()
				f(bound)
			}()
			return true
		})
		play(p)
		p.calls.Wait()
		synctest.Wait()
		p.Sender.mu.Lock()
		require.Zero(t, p.seats)
		require.Zero(t, p.aboard)
		require.Empty(t, p.flying)
		require.Zero(t, p.queue.len())
		require.Empty(t, p.offers)
		p.Sender.mu.Unlock()
		end()
		stop()
	})
}

// Txn is the fake's, with what the test does to it.
func (p *post) Txn(ctx context.Context, r *pb.TxnRequest, opts ...grpc.CallOption) (*pb.TxnResponse, error) {
	p.mu.Lock()
	p.sent = append(p.sent, strings.Join(keysOf(r), " "))
	held := p.held
	p.mu.Unlock()
	if held != nil {
		select {
		case <-held:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-p.etcd.Ctx().Done(): // the connection ends
			return nil, errLost
		}
	}
	p.mu.Lock()
	before, after := p.before, p.after
	p.mu.Unlock()
	if before != nil {
		if err := before(ctx, r); err != nil {
			return nil, err
		}
	}
	resp, err := p.f.Txn(ctx, r, opts...)
	if err == nil && after != nil {
		err = after(ctx, r)
	}
	return resp, err
}

// keysOf are the keys that a request puts or deletes, those of a command that is nested in parentheses.
func keysOf(r *pb.TxnRequest) (keys []string) {
	for _, op := range r.Success {
		switch {
		case op.GetRequestPut() != nil:
			keys = append(keys, string(op.GetRequestPut().Key))
		case op.GetRequestDeleteRange() != nil:
			keys = append(keys, "-"+string(op.GetRequestDeleteRange().Key))
		case op.GetRequestTxn() != nil:
			keys = append(keys, "("+strings.Join(keysOf(op.GetRequestTxn()), " ")+")")
		}
	}
	return keys
}

// put is an enqueue of the names before the slashes in these keys.
func put(keys ...string) *Command {
	c := &Command{}
	for _, key := range keys {
		name, _, _ := strings.Cut(key, "/")
		c.Names = append(c.Names, name)
		c.Cmps = append(c.Cmps, clientv3.Compare(clientv3.CreateRevision(key), "=", 0))
		c.Then = append(c.Then, clientv3.OpGet(name+"/", clientv3.WithPrefix(), clientv3.WithKeysOnly()))
	}
	for _, key := range keys {
		c.Then = append(c.Then, clientv3.OpPut(key, ""))
	}
	return c
}

func remove(key string, rev int64) *Command {
	name, _, _ := strings.Cut(key, "/")
	return &Command{
		Names: []string{name}, Cmps: []clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(key), "=", rev)}, Then: []clientv3.Op{clientv3.OpDelete(key)},
		Did: func(r Reply) bool { return r.Succeeded },
	}
}

// send has a goroutine send a command, and waits until all are at rest.
func (p *post) send(ctx context.Context, label string, c *Command) {
	p.calls.Go(func() {
		r, ambiguous, err := p.Do(ctx, nil, c)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.got[label], p.doubt[label], p.errs[label] = r, ambiguous, err
	})
	synctest.Wait()
}

func (p *post) put(keys ...string) { p.send(p.Context(), keys[0], put(keys...)) }

func (p *post) set(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
}

// holdBack holds back what comes, until it is called with the release.
func (p *post) holdBack() (goOn func()) {
	held := make(chan struct{})
	p.set(func() { p.held = held })
	return func() {
		p.set(func() { p.held = nil })
		close(held)
		synctest.Wait()
	}
}

// fill takes all seats.
func (p *post) fill() {
	for i := range minSeats {
		p.put(fmt.Sprintf("filler%d/1", i))
	}
}

func (p *post) requests() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	sent := p.sent
	p.sent = nil
	return sent
}

func (p *post) keys() (keys []string) {
	for _, kv := range p.f.Keys("") {
		keys = append(keys, string(kv.Key))
	}
	return keys
}

// requireAll requires of commands that they were carried out.
func (p *post) requireAll(ambiguous bool, labels ...string) {
	p.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, label := range labels {
		require.NoError(p, p.errs[label], label)
		require.True(p, p.got[label].Succeeded, label)
		require.Equal(p, ambiguous, p.doubt[label], label)
	}
}

func TestSender_ByItselfAtOnce(t *testing.T) {
	onPost(t, func(p *post) {
		p.put("a/1")
		p.put("b/1")
		p.send(p.Context(), "gone", remove("a/1", p.got["a/1"].At))
		require.Equal(t, []string{"a/1", "b/1", "-a/1"}, p.requests())
		p.requireAll(false, "a/1", "b/1", "gone")
		requests, packed := p.Sent()
		require.Equal(t, []int{3, 0}, []int{requests, packed})
	})
}

// What comes while the seats are taken goes together, removals first, and each has its own reply.
func TestSender_Together(t *testing.T) {
	onPost(t, func(p *post) {
		p.put("a/1")
		p.put("b/1")
		p.requests()
		goOn := p.holdBack()
		p.fill()
		p.put("c/1")
		p.put("a/2")
		p.send(p.Context(), "gone", remove("a/1", p.got["a/1"].At))
		p.send(p.Context(), "not there", remove("b/1", 100))
		p.put("b/1")
		p.put("d/1", "e/1")
		goOn()
		require.Equal(t, []string{"filler0/1", "filler1/1", "filler2/1", "(-a/1) (-b/1) (c/1) (a/2) (b/1) (d/1 e/1)"}, p.requests())
		p.requireAll(false, "c/1", "a/2", "gone", "d/1")
		require.False(t, p.got["not there"].Succeeded || p.doubt["not there"])
		require.False(t, p.got["b/1"].Succeeded)
		require.Empty(t, p.got["a/2"].Responses[0].GetResponseRange().Kvs, "it is listed behind the removal")
		require.Equal(t, p.got["c/1"].At, p.got["d/1"].At)
	})
}

// A command of a name that has one on its way goes at once, and so does what waits if it has one of the name of the next
// enqueue: neither would find company by waiting. The order of a name stays.
func TestSender_OneEnqueueOfAName(t *testing.T) {
	onPost(t, func(p *post) {
		goOn := p.holdBack()
		p.fill()
		p.put("filler0/2")
		p.put("a/1")
		p.put("b/1")
		p.send(p.Context(), "gone", remove("c/1", 1))
		p.put("a/2")
		p.put("d/1")
		p.put("a/3", "d/2")
		require.ElementsMatch(t, []string{"filler0/1", "filler1/1", "filler2/1", "filler0/2", "(-c/1) (a/1) (b/1)", "a/2", "d/1", "a/3 d/2"}, p.requests())
		goOn()
	})
}

// Nothing waits long for requests that hang.
func TestSender_SeatsThatHang(t *testing.T) {
	for _, latency := range []time.Duration{0, 3 * time.Millisecond} {
		onPost(t, func(p *post) {
			p.etcd.NeverHedge()
			p.pace.latency = latency
			goOn := p.holdBack()
			for i := range p.pace.seats(maxCommands) {
				p.put(fmt.Sprintf("filler%d/1", i))
			}
			p.requests()
			for i := range 100 {
				p.put(fmt.Sprintf("%d/1", i))
			}
			require.Empty(t, p.requests())
			<-time.After(p.pace.patience())
			synctest.Wait()
			require.Len(t, p.requests(), 2)
			p.put("a/1")
			p.put("b/1")
			<-time.After(p.pace.patience())
			synctest.Wait()
			require.Equal(t, []string{"(a/1) (b/1)"}, p.requests())
			goOn()
		})
	}
}

// A reply that is lost makes all commands of the request ambiguous, and not a removal that is seen to be the first one
// that was carried out. Each is carried out once.
func TestSender_AReplyIsLost(t *testing.T) {
	onPost(t, func(p *post) {
		p.put("a/1")
		p.put("b/1")
		for _, lose := range []string{"before", "after"} {
			goOn := p.holdBack()
			p.fill()
			p.put(lose + "/1")
			p.put(lose + "2/1")
			p.send(p.Context(), lose, remove(map[string]string{"before": "a/1", "after": "b/1"}[lose], p.got[map[string]string{"before": "a/1", "after": "b/1"}[lose]].At))
			var once sync.Once
			f := func(_ context.Context, r *pb.TxnRequest) (err error) {
				if len(r.Success) > 2 {
					once.Do(func() { err = errLost })
				}
				return err
			}
			p.set(func() {
				if lose == "before" {
					p.before = f
				} else {
					p.after, p.before = f, nil
				}
			})
			goOn()
			<-time.After(time.Second)
			synctest.Wait()
			require.NoError(t, errors.Join(p.errs[lose+"/1"], p.errs[lose+"2/1"], p.errs[lose]))
			require.True(t, p.doubt[lose+"/1"] && p.doubt[lose+"2/1"], "one of two attempts has no answer")
			require.Equal(t, lose == "before", p.got[lose].Succeeded)
			require.Equal(t, lose == "after", p.doubt[lose], "of the removal that found its key nothing is in doubt")
			for i := range minSeats {
				p.f.Remove(fmt.Sprintf("filler%d/1", i))
			}
		}
		require.Equal(t, []string{"after/1", "after2/1", "before/1", "before2/1"}, p.keys())
	})
}

// Of attempts beside each other the reply counts that says of a removal that it has removed something, whichever comes
// first. If none does and all have answered, nothing is in doubt.
func TestSender_Hedged(t *testing.T) {
	for _, late := range []int{1, 2} { // which attempt is answered last; the first one is carried out first
		onPost(t, func(p *post) {
			p.put("a/1")
			p.put("b/1")
			goOn := p.holdBack()
			p.fill()
			p.put("c/1")
			p.send(p.Context(), "a", remove("a/1", p.got["a/1"].At))
			p.send(p.Context(), "b", remove("b/1", p.got["b/1"].At))
			p.send(p.Context(), "d", remove("d/1", 1))
			n := 0
			second := make(chan struct{})
			p.set(func() {
				p.after = func(ctx context.Context, r *pb.TxnRequest) error {
					if len(r.Success) < 3 {
						return nil
					}
					p.mu.Lock()
					n++
					me := n
					p.mu.Unlock()
					if me == 2 {
						close(second)
					} else {
						<-second
					}
					if me == late {
						return etcd.Sleep(ctx, 10*time.Millisecond)
					}
					return nil
				}
			})
			goOn()
			<-time.After(time.Second)
			synctest.Wait()
			require.Equal(t, 2, n)
			require.True(t, p.got["a"].Succeeded && p.got["b"].Succeeded && !p.got["d"].Succeeded)
			require.False(t, p.doubt["a"] || p.doubt["b"] || p.doubt["d"], "both attempts have answered")
			require.True(t, p.doubt["c/1"], "another one may have been carried out")
		})
	}
}

// An enqueue does not pass one of its name that waits, though another one of its names is on its way.
func TestSender_Behind(t *testing.T) {
	onPost(t, func(p *post) {
		hang := make(chan struct{})
		p.set(func() {
			p.before = func(_ context.Context, r *pb.TxnRequest) error {
				if key := keysOf(r)[0]; key != "filler0/1" && key != "filler1/1" {
					<-hang
				}
				return nil
			}
		})
		goOn := p.holdBack()
		p.fill()
		for i := range maxCommands + 1 {
			p.put(fmt.Sprintf("n%d/1", i))
		}
		p.requests()
		p.put("n0/2", fmt.Sprintf("n%d/2", maxCommands))
		require.Len(t, p.requests(), 1, "of those that came before")
		goOn() // two of four requests are answered, which makes room for one, and the other one follows it at once
		require.ElementsMatch(t, []string{fmt.Sprintf("n%d/1", maxCommands), fmt.Sprintf("n0/2 n%d/2", maxCommands)}, p.requests())
		close(hang)
		synctest.Wait()
		require.Empty(t, p.requests(), "each was sent once")
	})
}

// refuseIf has etcd refuse requests.
func (p *post) refuseIf(refused func(r *pb.TxnRequest) error) {
	p.set(func() { p.before = func(_ context.Context, r *pb.TxnRequest) error { return refused(r) } })
}

// A command that etcd refuses harms no other. Its name stays by itself for a while, so that the others stay together.
func TestSender_OneIsRefused(t *testing.T) {
	onPost(t, func(p *post) {
		p.refuseIf(func(r *pb.TxnRequest) error {
			if slices.ContainsFunc(keysOf(r), func(k string) bool { return strings.Contains(k, "secret") }) {
				return rpctypes.ErrGRPCPermissionDenied
			}
			return nil
		})
		round := func(n int) {
			goOn := p.holdBack()
			p.fill()
			for _, name := range []string{"a", "secret", "b", "c"} {
				p.put(fmt.Sprintf("%s/%d", name, n))
			}
			goOn()
			p.requireAll(false, fmt.Sprintf("a/%d", n), fmt.Sprintf("b/%d", n), fmt.Sprintf("c/%d", n))
			require.ErrorIs(t, p.errs[fmt.Sprintf("secret/%d", n)], rpctypes.ErrPermissionDenied)
			require.False(t, p.doubt[fmt.Sprintf("secret/%d", n)])
			for i := range minSeats {
				p.f.Remove(fmt.Sprintf("filler%d/1", i))
			}
		}
		round(1)
		require.ElementsMatch(t, []string{"filler0/1", "filler1/1", "filler2/1", "(a/1) (secret/1) (b/1) (c/1)", "a/1", "secret/1", "b/1", "c/1"}, p.requests())
		round(2)
		require.ElementsMatch(t, []string{"filler0/1", "filler1/1", "filler2/1", "secret/2", "(a/2) (b/2) (c/2)"}, p.requests())
		<-time.After(refusedFor)
		round(3)
		require.Contains(t, p.requests(), "(a/3) (secret/3) (b/3) (c/3)", "the refusal may have passed")
	})
}

// A name stays by itself too if its command was refused that shared no request.
func TestSender_OneIsRefusedByItself(t *testing.T) {
	onPost(t, func(p *post) {
		p.refuseIf(func(r *pb.TxnRequest) error {
			if strings.Contains(strings.Join(keysOf(r), ""), "secret") {
				return rpctypes.ErrGRPCPermissionDenied
			}
			return nil
		})
		p.put("secret/1")
		goOn := p.holdBack()
		p.fill()
		for _, key := range []string{"a/1", "secret/2", "b/1"} {
			p.put(key)
		}
		goOn()
		p.requireAll(false, "a/1", "b/1")
		require.ErrorIs(t, p.errs["secret/2"], rpctypes.ErrPermissionDenied)
		require.ElementsMatch(t, []string{"secret/1", "filler0/1", "filler1/1", "filler2/1", "secret/2", "(a/1) (b/1)"}, p.requests())
	})
}

// A session that has met a limit keeps below it, and sends no less at once for that.
func TestSender_EtcdAllowsLess(t *testing.T) {
	for _, refusal := range []error{rpctypes.ErrGRPCTooManyOps, rpctypes.ErrGRPCRequestTooLarge} {
		for _, allowed := range []int{16, 6} {
			onPost(t, func(p *post) {
				p.etcd.NeverHedge()
				refusals := 0 // in this round
				p.refuseIf(func(r *pb.TxnRequest) error {
					p.mu.Lock()
					defer p.mu.Unlock()
					if len(r.Success) > allowed && r.Success[0].GetRequestTxn() != nil {
						refusals++
						return refusal
					}
					return nil
				})
				for round := range 12 {
					refusals = 0
					goOn := p.holdBack()
					p.fill()
					var labels []string
					for i := range 60 {
						labels = append(labels, fmt.Sprintf("%d/%d", i, round))
						p.put(labels[i])
					}
					<-time.After(patienceNear)
					synctest.Wait()
					goOn()
					p.requireAll(false, labels...)
					for i := range minSeats {
						p.f.Remove(fmt.Sprintf("filler%d/1", i))
					}
				}
				require.Zero(t, refusals)
				require.Greater(t, p.limits.most, allowed/4)
				require.Empty(t, p.limits.refused.until)
			})
		}
	}
}

// A command that puts more than etcd allows harms no other: it goes by itself, and requests stay as large as before.
func TestSender_OneIsTooLarge(t *testing.T) {
	onPost(t, func(p *post) {
		p.refuseIf(func(r *pb.TxnRequest) error {
			if len(r.String()) > 6*maxBytes {
				return rpctypes.ErrGRPCRequestTooLarge
			}
			return nil
		})
		p.put("gone/1")
		large := put("large/1")
		large.Then[1] = clientv3.OpPut("large/1", strings.Repeat("x", 6*maxBytes))
		p.requests()
		goOn := p.holdBack()
		p.fill()
		p.send(p.Context(), "gone", remove("gone/1", p.got["gone/1"].At))
		p.send(p.Context(), "large/1", large)
		p.put("a/1")
		p.put("b/1")
		goOn()
		p.requireAll(false, "gone", "a/1", "b/1")
		require.ErrorIs(t, p.errs["large/1"], rpctypes.ErrRequestTooLarge)
		require.Equal(t, maxCommands, p.limits.most)
		require.ElementsMatch(t, []string{"filler0/1", "filler1/1", "filler2/1", "large/1", "(-gone/1) (a/1) (b/1)"}, p.requests())
	})
}

// Etcd takes less than a request of several commands may put. So requests put less from then on, and a command that puts much goes by
// itself. The number of commands in a request stays as it was.
func TestSender_EtcdTakesLess(t *testing.T) {
	onPost(t, func(p *post) {
		p.refuseIf(func(r *pb.TxnRequest) error {
			if len(r.String()) > maxBytes/4 {
				return rpctypes.ErrGRPCRequestTooLarge
			}
			return nil
		})
		value := func(key string, bytes int) *Command {
			c := put(key)
			c.Then[1] = clientv3.OpPut(key, strings.Repeat("x", bytes))
			return c
		}
		for _, round := range []string{"1", "2"} {
			goOn := p.holdBack()
			p.fill()
			p.requests()
			p.send(p.Context(), "large/"+round, value("large/"+round, maxBytes/4-2000))
			p.send(p.Context(), "small/"+round, value("small/"+round, 2000))
			p.put("a/" + round)
			p.put("b/" + round)
			goOn()
			p.requireAll(false, "large/"+round, "small/"+round, "a/"+round, "b/"+round)
			require.Equal(t, maxCommands, p.limits.most)
		}
		require.ElementsMatch(t, []string{"large/2", "(small/2) (a/2) (b/2)"}, p.requests())
	})
}

// The request by which etcd becomes full is refused, and carried out. So all that were in it are in doubt.
func TestSender_EtcdIsFull(t *testing.T) {
	onPost(t, func(p *post) {
		p.put("r/1")
		goOn := p.holdBack()
		p.fill()
		p.put("a/1")
		p.put("b/1")
		p.send(p.Context(), "gone", remove("r/1", p.got["r/1"].At))
		p.set(func() {
			p.after = func(_ context.Context, r *pb.TxnRequest) error {
				if keys := strings.Join(keysOf(r), " "); strings.Contains(keys, "a/1") || strings.Contains(keys, "b/1") {
					return rpctypes.ErrGRPCNoSpace
				}
				return nil
			}
		})
		goOn()
		for _, label := range []string{"a/1", "b/1"} {
			require.ErrorIs(t, p.errs[label], rpctypes.ErrNoSpace)
			require.True(t, p.doubt[label])
		}
		require.NoError(t, p.errs["gone"])
		require.True(t, p.doubt["gone"])
		require.Empty(t, p.limits.refused.until, "it says nothing of these names")
	})
}

// A caller that leaves while its command waits leaves nothing to doubt. One that leaves while it is on its way gives it
// up: no attempt that begins later has it. With the last one the request ends.
func TestSender_CallersLeave(t *testing.T) {
	onPost(t, func(p *post) {
		early, leaveEarly := context.WithCancel(p.Context())
		late, leaveLate := context.WithCancel(p.Context())
		last, leaveLast := context.WithCancel(p.Context())
		goOn := p.holdBack()
		p.fill()
		p.send(early, "a/1", put("a/1"))
		p.send(late, "b/1", put("b/1"))
		p.send(last, "c/1", put("c/1"))
		leaveEarly()
		synctest.Wait()
		require.ErrorIs(t, p.errs["a/1"], context.Canceled)
		require.False(t, p.doubt["a/1"], "it was never sent")
		hang := make(chan struct{})
		var hanging atomic.Int32 // requests with c/1
		p.set(func() {
			p.before = func(ctx context.Context, r *pb.TxnRequest) error {
				if strings.Contains(strings.Join(keysOf(r), " "), "c/1") {
					hanging.Add(1)
					defer hanging.Add(-1)
				}
				select {
				case <-hang:
				case <-ctx.Done():
				}
				return ctx.Err()
			}
		})
		requests := func() []string { // but for those that hang from the start, which may be sent again
			return slices.DeleteFunc(p.requests(), func(s string) bool { return strings.HasPrefix(s, "filler") })
		}
		requests()
		goOn()
		require.Empty(t, requests())
		<-time.After(patienceNear)
		synctest.Wait()
		require.Equal(t, []string{"(b/1) (c/1)"}, requests())
		leaveLate()
		synctest.Wait()
		require.ErrorIs(t, p.errs["b/1"], context.Canceled)
		require.True(t, p.doubt["b/1"])
		<-time.After(etcd.HedgeMin - 50*time.Millisecond)
		requests()
		<-time.After(700 * time.Millisecond)
		synctest.Wait()
		again := requests()
		require.NotEmpty(t, again)
		for _, r := range again {
			require.Equal(t, "c/1", r)
		}
		leaveLast()
		synctest.Wait()
		require.ErrorIs(t, p.errs["c/1"], context.Canceled)
		require.Zero(t, hanging.Load(), "nobody needs them")
		<-time.After(time.Minute)
		require.NotContains(t, strings.Join(p.requests(), " "), "c/1")
		close(hang)
		synctest.Wait()
		require.Equal(t, []string{"filler0/1", "filler1/1", "filler2/1"}, p.keys())
	})
}

// All calls end with the session, the client, or what they were told ends them.
func TestSender_Ends(t *testing.T) {
	over := errors.New("over")
	for name, tc := range map[string]struct {
		end  func(p *post, life context.CancelCauseFunc)
		want error
	}{
		"life":   {func(_ *post, life context.CancelCauseFunc) { life(over) }, over},
		"client": {func(p *post, _ context.CancelCauseFunc) { p.close() }, etcd.ErrClientClosed},
		"lease":  {func(p *post, life context.CancelCauseFunc) { p.end(); life(over) }, over},
	} {
		t.Run(name, func(t *testing.T) {
			onPost(t, func(p *post) {
				life, end := context.WithCancelCause(context.Background())
				p.set(func() { p.held = make(chan struct{}) })
				for i := range 20 {
					p.calls.Go(func() {
						_, _, err := p.Do(context.Background(), life, put(fmt.Sprintf("%d/1", i)))
						assert.ErrorIs(t, err, tc.want)
					})
					if i == 10 {
						<-time.After(patienceNear)
					}
				}
				synctest.Wait()
				tc.end(p, end)
				<-time.After(10 * time.Second)
				end(over)
			})
		})
	}
}

// Thousands of commands at once: each is carried out, by few requests, in the order of each name.
func TestSender_Burst(t *testing.T) {
	onPost(t, func(p *post) {
		goOn := p.holdBack()
		p.fill()
		var all sync.WaitGroup
		for i := range 500 {
			all.Go(func() {
				r, ambiguous, err := p.Do(p.Context(), nil, put(fmt.Sprintf("n%d/1", i)))
				assert.NoError(t, err)
				assert.True(t, r.Succeeded && !ambiguous)
			})
		}
		synctest.Wait()
		goOn()
		all.Wait()
		require.Len(t, p.keys(), 500+minSeats)
		requests, _ := p.Sent()
		require.LessOrEqual(t, requests, 500/maxCommands+minSeats+5)
	})
}

package sender

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// A removal is one that was offered, and what became of it.
type removal struct {
	*Command
	told   []bool  // what it was told as an Owner: whether it is ambiguous
	failed []error // of later
}

// An owner is an Owner that is a function.
type owner func(r Reply, ambiguous bool)

func (f owner) Answered(r Reply, ambiguous bool) { f(r, ambiguous) }

// offer offers the removal of a key that is there.
func (p *post) offer(patient bool, key string) *removal {
	rev := int64(0)
	for _, kv := range p.f.Keys(key) {
		rev = kv.CreateRevision
	}
	r := &removal{Command: remove(key, rev)}
	r.Patient = patient
	r.Owner = owner(func(_ Reply, ambiguous bool) { p.set(func() { r.told = append(r.told, ambiguous) }) })
	p.Offer(r.Command)
	return r
}

// await has a goroutine await a removal, under the label of its key.
func (p *post) await(ctx context.Context, r *removal) {
	p.calls.Go(func() {
		key := string(r.Then[0].KeyBytes())
		reply, ambiguous, err := p.Await(ctx, context.Background(), r.Command)
		p.set(func() {
			p.got["-"+key], p.doubt["-"+key], p.errs["-"+key] = reply, ambiguous, err
			if err == nil && len(r.told) != 1 {
				p.Errorf("the Owner was told %v before Await returned", r.told)
			}
		})
	})
	synctest.Wait()
}

// later awaits a removal in the background.
func (p *post) later(r *removal) {
	p.background(func(ctx context.Context) {
		if _, _, err := p.Await(ctx, ctx, r.Command); err != nil {
			p.set(func() { r.failed = append(r.failed, err) })
		}
	})
	synctest.Wait()
}

// enter has these keys in etcd.
func (p *post) enter(keys ...string) {
	for _, key := range keys {
		p.put(key)
	}
	p.requests()
}

// The next request of its name takes a removal along, whoever sends it: an enqueue or another removal, at once or after a
// wait. The enqueue is listed behind the removal. A request of another name does not.
func TestOffer_GoesAlong(t *testing.T) {
	onPost(t, func(p *post) {
		p.enter("a/1", "b/1", "c/1", "d/1", "d/2")
		a, b, c, d := p.offer(true, "a/1"), p.offer(false, "b/1"), p.offer(true, "c/1"), p.offer(true, "d/1")
		p.put("e/1")
		p.put("a/2")
		p.put("x/1", "b/2")
		p.send(p.Context(), "gone", remove("d/2", p.got["d/2"].At))
		require.Equal(t, []string{"e/1", "(-a/1) (a/2)", "(-b/1) (x/1 b/2)", "(-d/1) (-d/2)"}, p.requests())
		p.requireAll(false, "a/2", "x/1", "gone")
		require.Empty(t, p.got["a/2"].Responses[0].GetResponseRange().Kvs, "it is listed behind the removal")
		goOn := p.holdBack()
		p.fill()
		p.put("c/2")
		require.Len(t, p.requests(), minSeats)
		goOn()
		require.Equal(t, []string{"(-c/1) (c/2)"}, p.requests())
		for _, r := range []*removal{a, b, c, d} {
			require.Equal(t, []bool{false}, r.told)
			p.await(p.Context(), r)
			p.later(r)
			require.Empty(t, r.failed)
		}
		require.Empty(t, p.requests())
		p.requireAll(false, "-a/1", "-b/1", "-c/1", "-d/1")
		require.Equal(t, p.got["a/2"].At, p.got["-a/1"].At)
	})
}

// A removal that nobody takes along is sent by its caller, or in the background.
func TestOffer_Alone(t *testing.T) {
	onPost(t, func(p *post) {
		p.enter("a/1", "b/1", "c/1", "d/1")
		p.await(p.Context(), p.offer(true, "a/1"))
		b := p.offer(true, "b/1")
		p.later(b)
		require.Equal(t, []string{"-a/1", "-b/1"}, p.requests())
		p.requireAll(false, "-a/1")
		require.Equal(t, []bool{false}, b.told)
		c, d := p.offer(true, "c/1"), p.offer(true, "d/1")
		goOn := p.holdBack()
		p.fill()
		p.await(p.Context(), c)
		p.later(d)
		require.Len(t, p.requests(), minSeats, "all seats are taken")
		goOn()
		require.Equal(t, []string{"(-c/1) (-d/1)"}, p.requests())
		require.Equal(t, []bool{false}, c.told)
		require.Equal(t, []bool{false}, d.told)
	})
}

// A patient removal waits for the reply to the request of its name that is on its way, one that insists does not, and takes
// along what waits. With the last reply of the name what waits is sent at once, together.
func TestOffer_Patient(t *testing.T) {
	onPost(t, func(p *post) {
		p.enter("a/1", "a/2", "a/3", "a/4", "a/5")
		first, second := make(chan struct{}), make(chan struct{})
		p.set(func() {
			p.before = func(_ context.Context, r *pb.TxnRequest) error {
				switch keys := strings.Join(keysOf(r), " "); {
				case strings.Contains(keys, "a/6"):
					<-first
				case strings.Contains(keys, "a/7"):
					<-second
				}
				return nil
			}
		})
		p.put("a/6")
		p.put("a/7")
		p.later(p.offer(true, "a/1"))
		p.await(p.Context(), p.offer(true, "a/2"))
		require.Equal(t, []string{"a/6", "a/7"}, p.requests())
		p.await(p.Context(), p.offer(false, "a/3"))
		require.Equal(t, []string{"(-a/1) (-a/2) (-a/3)"}, p.requests())
		p.requireAll(false, "-a/2", "-a/3")
		p.later(p.offer(true, "a/4"))
		p.await(p.Context(), p.offer(true, "a/5"))
		close(first)
		synctest.Wait()
		require.Empty(t, p.requests(), "another one is on its way")
		close(second)
		synctest.Wait()
		require.Equal(t, []string{"(-a/4) (-a/5)"}, p.requests())
		p.requireAll(false, "-a/5")
	})
	onPost(t, func(p *post) {
		p.enter("a/1", "a/2")
		a := p.offer(true, "a/1")
		p.later(p.offer(true, "a/2"))
		require.Equal(t, []string{"(-a/1) (-a/2)"}, p.requests())
		require.Equal(t, []bool{false}, a.told)
	})
}

// One of many operations, or of a name that etcd refuses, goes by itself. It waits for no other of its name, since there may
// be one at each moment. Nor do those wait for ever that it could not take along.
func TestOffer_ByItself(t *testing.T) {
	onPost(t, func(p *post) {
		p.enter("a/1")
		goOn := p.holdBack()
		p.put("a/3")
		large := p.offer(true, "a/1")
		for i := range maxOps {
			large.Then = append(large.Then, clientv3.OpGet(fmt.Sprint("a/", i)))
		}
		p.put("a/4")
		p.later(large)
		require.Equal(t, []string{"a/3", "a/4", "-a/1"}, p.requests())
		goOn()
		require.NotContains(t, p.keys(), "a/1")
	})
	onPost(t, func(p *post) {
		p.enter("a/1")
		goOn := p.holdBack()
		p.put("a/2")
		p.limits.refused.Add([]string{"a"}, refusedFor)
		p.later(p.offer(true, "a/1"))
		require.Equal(t, []string{"a/2", "-a/1"}, p.requests())
		goOn()
	})
	onPost(t, func(p *post) {
		p.enter("a/1")
		goOn := p.holdBack()
		p.put("a/2")
		p.set(func() { p.held = nil })
		p.later(p.offer(true, "a/1"))
		require.Equal(t, []string{"a/2"}, p.requests())
		c := put("a/3")
		for i := range maxOps {
			c.Then = append(c.Then, clientv3.OpGet(fmt.Sprint("a/", i)))
		}
		p.send(p.Context(), "a/3", c)
		require.Equal(t, []string{"a/3", "-a/1"}, p.requests())
		goOn()
	})
}

// A request has no more commands than etcd allows, with those that go along.
func TestOffer_Many(t *testing.T) {
	onPost(t, func(p *post) {
		p.enter("a/1", "a/2", "a/3", "a/4", "a/5")
		p.limits.most = 3
		var all []*removal
		for i := range 5 {
			all = append(all, p.offer(true, fmt.Sprintf("a/%d", i+1)))
		}
		p.put("a/6")
		require.Equal(t, []string{"(-a/1) (-a/2) (a/6)", "(-a/3) (-a/4) (-a/5)"}, p.requests(), "the reply has the rest sent")
		for _, r := range all {
			require.Equal(t, []bool{false}, r.told)
		}
	})
}

// Removals go along with one enqueue of their name. The next one, which may not go with that, finds none.
func TestOffer_OneEnqueueOfAName(t *testing.T) {
	onPost(t, func(p *post) {
		p.enter("a/1")
		a := p.offer(true, "a/1")
		goOn := p.holdBack()
		p.fill()
		p.put("a/2")
		p.put("a/3")
		goOn()
		require.ElementsMatch(t, []string{"filler0/1", "filler1/1", "filler2/1", "(-a/1) (a/2)", "a/3"}, p.requests())
		require.Equal(t, []bool{false}, a.told)
		require.NotEqual(t, p.got["a/2"].At, p.got["a/3"].At)
	})
}

// A request that etcd refuses is taken apart: what it may do, it does. Who awaits a removal is told that it was refused, also
// if that was before. What has come meanwhile goes when the reply is there.
func TestOffer_Refused(t *testing.T) {
	onPost(t, func(p *post) {
		p.enter("a/1", "a/2", "a/3")
		var hang chan struct{} // the second time a/1 is removed
		n := 0
		p.refuseIf(func(r *pb.TxnRequest) error {
			if !strings.Contains(strings.Join(keysOf(r), " "), "a/1") {
				return nil
			}
			if n++; n == 2 {
				<-hang
			}
			return rpctypes.ErrGRPCPermissionDenied
		})
		hang = make(chan struct{})
		one, two := p.offer(true, "a/1"), p.offer(true, "a/2")
		p.put("a/4")
		sent := p.requests()
		require.Equal(t, "(-a/1) (-a/2) (a/4)", sent[0])
		require.ElementsMatch(t, []string{"-a/1", "-a/2", "a/4"}, sent[1:])
		p.requireAll(false, "a/4")
		require.Equal(t, []bool{false}, two.told)
		p.limits.refused.Forget([]string{"a"})
		three := p.offer(true, "a/3")
		p.later(three)
		require.Empty(t, p.requests())
		close(hang)
		synctest.Wait()
		require.Equal(t, []string{"-a/3"}, p.requests())
		require.Equal(t, []bool{false}, three.told)
		require.Empty(t, one.failed)
		p.later(one)
		require.Len(t, one.failed, 1)
		require.ErrorIs(t, one.failed[0], rpctypes.ErrPermissionDenied)
		require.Empty(t, one.told)

		one = p.offer(true, "a/1")
		p.later(one)
		require.Len(t, one.failed, 1)
		require.ErrorIs(t, one.failed[0], rpctypes.ErrPermissionDenied)
		one = p.offer(true, "a/1")
		p.await(p.Context(), one)
		require.ErrorIs(t, p.errs["-a/1"], rpctypes.ErrPermissionDenied)
		require.Empty(t, one.told)
		require.Empty(t, one.failed)
	})
}

// The caller leaves whose enqueue has taken removals along. Its request ends with it, and the removals are sent anew. They
// may have been carried out.
func TestOffer_TheEnqueueIsGivenUp(t *testing.T) {
	for _, carriedOut := range []bool{false, true} {
		onPost(t, func(p *post) {
			p.enter("a/0", "a/1", "a/2")
			given, a, b := p.offer(true, "a/0"), p.offer(true, "a/1"), p.offer(true, "a/2")
			ctx, leave := context.WithCancel(p.Context())
			early, leaveEarly := context.WithCancel(p.Context())
			hang := func(ctx context.Context, r *pb.TxnRequest) error {
				if len(r.Success) == 4 {
					<-ctx.Done()
				}
				return ctx.Err()
			}
			p.set(func() {
				if p.before = hang; carriedOut {
					p.before, p.after = nil, hang
				}
			})
			p.send(ctx, "a/3", put("a/3"))
			p.await(early, given)
			p.later(a)
			p.await(p.Context(), b)
			leaveEarly()
			synctest.Wait()
			require.True(t, p.doubt["-a/0"])
			leave()
			synctest.Wait()
			require.ErrorIs(t, p.errs["a/3"], context.Canceled)
			require.True(t, p.doubt["a/3"])
			require.Equal(t, []string{"(-a/0) (-a/1) (-a/2) (a/3)", "(-a/1) (-a/2)"}, p.requests())
			require.NoError(t, p.errs["-a/2"])
			require.Equal(t, !carriedOut, p.got["-a/2"].Succeeded)
			require.Equal(t, carriedOut, p.doubt["-a/2"])
			require.Equal(t, []bool{carriedOut}, a.told)
			require.Empty(t, a.failed)
		})
	}
}

// The same while all seats are taken: the removals are sent anew at once.
func TestOffer_TheEnqueueIsGivenUpBesideOthers(t *testing.T) {
	onPost(t, func(p *post) {
		p.enter("a/1")
		p.etcd.NeverHedge()
		goOn := p.holdBack()
		gone := p.offer(true, "a/1")
		ctx, leave := context.WithCancel(p.Context())
		p.send(ctx, "a/2", put("a/2"))
		for i := range minSeats + 1 {
			p.put(fmt.Sprintf("n/%d", i))
		}
		p.later(gone)
		p.requests()
		leave()
		synctest.Wait()
		require.Equal(t, []string{"-a/1"}, p.requests())
		goOn()
		require.Equal(t, []bool{false}, gone.told)
	})
}

// The caller of a removal leaves. If the removal waits, nobody sends it; if another's request has it, that goes on without it.
func TestOffer_TheRemovalIsGivenUp(t *testing.T) {
	onPost(t, func(p *post) {
		p.enter("a/1", "a/2")
		ctx, leave := context.WithCancel(p.Context())
		goOn := p.holdBack()
		p.put("a/3")
		p.await(ctx, p.offer(true, "a/1")) // for the reply
		leave()
		synctest.Wait()
		require.ErrorIs(t, p.errs["-a/1"], context.Canceled)
		require.False(t, p.doubt["-a/1"], "it was never sent")
		goOn()
		require.Equal(t, []string{"a/3"}, p.requests())

		ctx, leave = context.WithCancel(p.Context())
		goOn = p.holdBack()
		p.fill()
		p.await(ctx, p.offer(true, "b/1")) // for a seat
		leave()
		synctest.Wait()
		require.ErrorIs(t, p.errs["-b/1"], context.Canceled)
		require.False(t, p.doubt["-b/1"])
		goOn()
		require.Len(t, p.requests(), minSeats)

		ctx, leave = context.WithCancel(p.Context())
		goOn = p.holdBack()
		a := p.offer(true, "a/2")
		p.put("a/4")
		p.await(ctx, a)
		leave()
		synctest.Wait()
		require.ErrorIs(t, p.errs["-a/2"], context.Canceled)
		require.True(t, p.doubt["-a/2"])
		lost := false
		p.set(func() {
			p.before = func(context.Context, *pb.TxnRequest) error {
				if lost {
					return nil
				}
				lost = true
				return errLost
			}
		})
		goOn()
		<-time.After(time.Second)
		synctest.Wait()
		require.Equal(t, []string{"(-a/2) (a/4)", "a/4"}, p.requests())
		require.NoError(t, p.errs["a/4"])
		require.Empty(t, a.told)
	})
}

// Who leaves while the Owner is told of the reply waits for that, and has the reply.
func TestOffer_LeavesWhileItsOwnerIsTold(t *testing.T) {
	onPost(t, func(p *post) {
		p.enter("a/1")
		a, goOn := p.offer(true, "a/1"), make(chan struct{})
		told := a.Owner
		a.Owner = owner(func(r Reply, ambiguous bool) {
			<-goOn
			told.Answered(r, ambiguous)
		})
		p.put("a/2")
		ctx, leave := context.WithCancel(p.Context())
		p.await(ctx, a)
		leave()
		synctest.Wait()
		require.NotContains(t, p.errs, "-a/1")
		close(goOn)
		synctest.Wait()
		p.requireAll(false, "-a/1", "a/2")
	})
}

// A copy of an enqueue's request is late. The removal in it has found its key: nothing of that is in doubt, though a copy is
// not answered, and the Owner is told once.
func TestOffer_ALateCopy(t *testing.T) {
	onPost(t, func(p *post) {
		p.enter("a/1", "b/1")
		var copies atomic.Int32
		p.set(func() {
			p.after = func(ctx context.Context, r *pb.TxnRequest) error {
				if len(r.Success) != 2 || copies.Add(1) > 1 {
					return nil
				}
				<-time.After(400 * time.Millisecond) // until there is another copy
				return ctx.Err()
			}
		})
		a := p.offer(true, "a/1")
		p.put("a/2")
		<-time.After(time.Second)
		synctest.Wait()
		require.Equal(t, []string{"(-a/1) (a/2)", "(-a/1) (a/2)"}, p.requests())
		require.NoError(t, p.errs["a/2"])
		require.True(t, p.doubt["a/2"])
		require.Equal(t, []bool{false}, a.told)
	})
}

// The session's end, or the client's, ends the wait for a removal wherever it is.
func TestOffer_Ends(t *testing.T) {
	over := errors.New("over")
	onPost(t, func(p *post) {
		p.enter("a/1", "a/2", "a/3", "a/4")
		held := make(chan struct{})
		p.set(func() { p.held = held })
		life, end := context.WithCancelCause(context.Background())
		var all []*removal
		for i, patient := range []bool{false, true, true, false} { // on its way; waits; was not sent yet
			all = append(all, p.offer(patient, fmt.Sprintf("a/%d", i+1)))
			if i < 2 {
				p.calls.Go(func() {
					_, _, err := p.Await(context.Background(), life, all[i].Command)
					p.set(func() { p.errs[fmt.Sprint(i)] = err })
				})
				synctest.Wait()
			}
		}
		p.end()
		end(over)
		synctest.Wait()
		require.ErrorIs(t, p.errs["0"], over)
		require.ErrorIs(t, p.errs["1"], over)
		p.later(all[2])
		_, _, err := p.Await(context.Background(), life, all[3].Command)
		require.ErrorIs(t, err, over)
		p.close()
		for _, r := range all {
			require.Empty(t, r.told)
			require.Empty(t, r.failed)
		}
	})
}

// The lease is found to be gone by a request that takes a removal along. Whoever sends the request is told of the end of the
// session too, though nobody can send its command by itself any more.
func TestOffer_EndsWithARefusal(t *testing.T) {
	over := errors.New("over")
	onPost(t, func(p *post) {
		p.enter("a/1")
		gone := p.offer(true, "a/1")
		life, end := context.WithCancelCause(context.Background())
		p.set(func() {
			p.before = func(context.Context, *pb.TxnRequest) error {
				p.end()
				end(over)
				return rpctypes.ErrGRPCLeaseNotFound
			}
		})
		_, ambiguous, err := p.Do(context.Background(), life, put("a/2"))
		require.ErrorIs(t, err, over)
		require.False(t, ambiguous, "it was refused, and not sent again")
		require.Equal(t, []string{"(-a/1) (a/2)"}, p.requests())
		_, ambiguous, err = p.Await(context.Background(), life, gone.Command)
		require.ErrorIs(t, err, over)
		require.False(t, ambiguous, "it was refused, and not sent again")
	})
}

package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"

	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/keyspace"
	"github.com/etcdlock/etcdlock/internal/test/harness"
	"github.com/etcdlock/etcdlock/internal/waitlist"
)

// What each operation costs, in requests on the wire, exactly.

// unhedged is a session that sends no request again because etcd is slow to answer, and none because
// it looks after its entries several times in a TTL: the machine may stall.
func unhedged(t *testing.T, c *clientv3.Client) *Session {
	t.Helper()
	s := newTestSession(t, c, WithTTL(10*time.Minute))
	s.etcd.NeverHedge()
	s.waits.WatchOwnAfter = hang
	return s
}

func TestRequests_Uncontended(t *testing.T) {
	c, w := wiredClient(t, cluster)
	s := unhedged(t, c)
	of := lockName(t)
	for name, lock := range lockFuncs(s, of) {
		t.Run(name, func(t *testing.T) {
			w.Reset()
			h, err := lock(testCtx(t))
			require.NoError(t, err)
			require.True(t, h.Valid())
			require.NoError(t, h.Err())
			require.NoError(t, h.Unlock(testCtx(t)))
			w.Require(t, map[string]int{"Txn": 2}, 0)
			require.Empty(t, entries(t, c, of), "Unlock returns when etcd has removed the entry")
		})
	}
}

// mutexOf and rwMutexOf are the locks of a Session or a Client.
func mutexOf(from source, name string) *Mutex     { return &Mutex{newLock(from, name, writing)} }
func rwMutexOf(from source, name string) *RWMutex { return newRWMutex(from, name) }

// lockFuncs are the ways to take a lock of this name.
func lockFuncs(s source, name string) map[string]func(context.Context) (*Held, error) {
	return harness.Ways(mutexOf(s, name), rwMutexOf(s, name))
}

func TestRequests_TryOnAHeldLock(t *testing.T) {
	c, w := wiredClient(t, cluster)
	s := unhedged(t, c)
	name := lockName(t)
	h, err := NewRWMutex(newTestSession(t, cluster.Client(t)), name).Lock(testCtx(t))
	require.NoError(t, err)
	before := entries(t, c, name)
	for i, try := range []func(context.Context) (*Held, error){NewMutex(s, name).TryLock, NewRWMutex(s, name).TryLock, NewRWMutex(s, name).TryRLock} {
		rev := revision(t, cluster.Client(t))
		w.Reset()
		_, err := try(testCtx(t))
		require.ErrorIs(t, err, ErrLocked)
		w.Require(t, map[string]int{[]string{"Txn", "Range", "Range"}[i]: 1}, 0)
		require.Equal(t, rev, revision(t, cluster.Client(t)), "it writes nothing")
	}
	require.Equal(t, before, entries(t, cluster.Client(t), name))
	require.NoError(t, h.Unlock(testCtx(t)))
}

func TestRequests_ContendedFirstInLine(t *testing.T) {
	for _, busy := range []bool{false, true} {
		t.Run(map[bool]string{false: "quiet cluster", true: "busy cluster"}[busy], func(t *testing.T) {
			for _, kind := range []string{"Mutex", "RWMutex", "RWMutex read"} {
				t.Run(kind, func(t *testing.T) {
					name := lockName(t)
					other := newTestSession(t, cluster.Client(t))
					h, err := NewRWMutex(other, name).Lock(testCtx(t))
					require.NoError(t, err)
					c, w := wiredClient(t, cluster)
					s := unhedged(t, c)
					w.Reset()
					if busy {
						defer keepBusy(t)()
					}
					granted := inBackground(t, lockFuncs(s, name)[kind])
					w.WaitFor(t, 0, 1)
					require.NoError(t, h.Unlock(testCtx(t)))
					h2 := <-granted
					require.NotNil(t, h2)
					require.NoError(t, h2.Unlock(testCtx(t)))
					calls, created := w.Counts()
					require.Equal(t, 2, calls["Txn"])
					require.LessOrEqual(t, calls["Range"], 1)
					require.Len(t, created, 1)
					harness.RequireFromNow(t, created)
				})
			}
		})
	}
}

// A Mutex behind a Mutex, the most frequent case: one watch, and no read after
// the holder has left.
func TestRequests_MutexBehindMutex(t *testing.T) {
	name := lockName(t)
	h, err := NewMutex(newTestSession(t, cluster.Client(t)), name).Lock(testCtx(t))
	require.NoError(t, err)
	c, w := wiredClient(t, cluster)
	s := unhedged(t, c)
	defer writeBetween(t, w)()
	w.Reset()
	tk, err := NewMutex(s, name).Enqueue(testCtx(t))
	require.NoError(t, err)
	w.WaitFor(t, 1, 1) // it sees that both are there
	require.NoError(t, h.Unlock(testCtx(t)))
	h, err = tk.Wait(testCtx(t))
	require.NoError(t, err)
	require.NoError(t, h.Unlock(testCtx(t)))
	w.Require(t, map[string]int{"Txn": 2, "Range": 1}, 1)
}

// Beside keys of locks whose names are nested in this one, a free lock costs at most two requests more, however many
// they are, and however busy.
func TestRequests_BesideNestedNames(t *testing.T) {
	for _, nested := range []int{1, tryReadLimit, tryReadLimit + 1, enqueueReadLimit, enqueueReadLimit + 1, 300} {
		for _, busy := range []bool{false, true} {
			name := lockName(t)
			putNested(t, name, nested)
			c, w := wiredClient(t, cluster)
			s := unhedged(t, c)
			if busy {
				other, n := cluster.Client(t), nested
				w.OnUnary(func(ctx context.Context, _ string, _ any, send func(context.Context) error) error {
					_, err := other.Txn(ctx).Then(clientv3.OpDelete(fmt.Sprintf("%s/%d/5", name, n)), clientv3.OpPut(fmt.Sprintf("%s/%d/5", name, n+1), "")).Commit()
					n++
					return errors.Join(err, send(ctx))
				})
			}
			for kind, lock := range lockFuncs(s, name) {
				t.Run(fmt.Sprintf("%s beside %d, busy %t", kind, nested, busy), func(t *testing.T) {
					// The busy key is one more. The keys of nested names begin with digits here, so a reader lists them too.
					keys, want := nested, map[string]int{"Txn": 2}
					if busy {
						keys++
					}
					shown := enqueueReadLimit
					if try := strings.HasPrefix(kind, "Try"); try {
						want["Txn"], shown = 3, tryReadLimit
					}
					if keys > shown {
						want["Range"] = 1
					}
					w.Reset()
					h, err := lock(testCtx(t))
					require.NoError(t, err)
					require.NoError(t, h.Unlock(testCtx(t)))
					w.Require(t, want, 0)
				})
			}
			w.OnUnary(nil)
		}
	}
}

// A TryLock beside nested names finds a holder that its first reply does not show, and writes nothing then.
func TestRequests_TryOnAHeldLockBesideNestedNames(t *testing.T) {
	name := lockName(t)
	putNested(t, name, 300)
	h := mustLock(t, newTestSession(t, cluster.Client(t)), name)
	c, w := wiredClient(t, cluster)
	s := unhedged(t, c)
	for _, try := range []func(context.Context) (*Held, error){NewMutex(s, name).TryLock, NewRWMutex(s, name).TryLock, NewRWMutex(s, name).TryRLock} {
		rev := revision(t, cluster.Client(t))
		w.Reset()
		_, err := try(testCtx(t))
		require.ErrorIs(t, err, ErrLocked)
		calls, _ := w.Counts()
		require.Equal(t, 2, calls["Txn"]+calls["Range"], calls)
		require.Equal(t, rev, revision(t, cluster.Client(t)), "it writes nothing")
	}
	require.NoError(t, h.Unlock(testCtx(t)))
}

// A Try that is refused again and again is an entry in no member's raft log. One of a lock that has become free costs one
// request more, once.
func TestRequests_TryAgain(t *testing.T) {
	own := etcdtest.Start(t)
	name := lockName(t)
	for kind, busy := range map[string]func(*Session) func(context.Context) (*Held, error){
		"Mutex":  func(s *Session) func(context.Context) (*Held, error) { return NewMutex(s, name).TryLock },
		"reader": func(s *Session) func(context.Context) (*Held, error) { return NewRWMutex(s, name).TryRLock },
		"Multi": func(s *Session) func(context.Context) (*Held, error) {
			return NewMulti(s, Write("a"), Read(name), Write("b")).TryLock
		},
	} {
		for _, nested := range []int{0, 1} {
			t.Run(fmt.Sprintf("%s beside %d", kind, nested), func(t *testing.T) {
				onlooker := own.Client(t)
				for range nested {
					_, err := onlooker.Put(testCtx(t), name+"/1/5", "")
					require.NoError(t, err)
				}
				c, w := wiredClient(t, own)
				s := unhedged(t, c)
				try := busy(s)
				h := mustLock(t, newTestSession(t, own.Client(t)), name)
				index := func() uint64 {
					status, err := onlooker.Status(testCtx(t), onlooker.Endpoints()[0])
					require.NoError(t, err)
					return status.RaftIndex
				}
				refused := func() {
					_, err := try(testCtx(t))
					require.ErrorIs(t, err, ErrLocked)
				}
				refused()
				w.Reset()
				before := index()
				for range 40 {
					refused()
				}
				require.LessOrEqual(t, index()-before, uint64(2), "what etcd does by itself")
				w.Require(t, map[string]int{"Range": 40}, 0)
				require.NoError(t, h.Unlock(testCtx(t)))
				for _, want := range []map[string]int{{"Range": 1, "Txn": 1}, {"Txn": 1 + nested}} {
					w.Reset()
					h, err := try(testCtx(t))
					require.NoError(t, err)
					w.Require(t, want, 0)
					require.NoError(t, h.Unlock(testCtx(t)))
				}
				_, err := onlooker.Delete(testCtx(t), name+"/1/5")
				require.NoError(t, err)
			})
		}
	}
}

// A Try that reads first, and that another entry overtakes then, writes nothing either.
func TestRequests_TryAgainIsOvertaken(t *testing.T) {
	name := lockName(t)
	other := newTestSession(t, cluster.Client(t))
	c, w := wiredClient(t, cluster)
	m := NewMutex(unhedged(t, c), name)
	h := mustLock(t, other, name)
	_, err := m.TryLock(testCtx(t))
	require.ErrorIs(t, err, ErrLocked)
	require.NoError(t, h.Unlock(testCtx(t)))
	w.Reset()
	w.OnUnary(func(ctx context.Context, method string, _ any, send func(context.Context) error) error {
		if method == "Txn" {
			h = mustLock(t, other, name)
		}
		return send(ctx)
	})
	_, err = m.TryLock(testCtx(t))
	w.OnUnary(nil)
	require.ErrorIs(t, err, ErrLocked)
	w.Require(t, map[string]int{"Range": 1, "Txn": 1}, 0) // none for a removal
	require.NoError(t, h.Unlock(testCtx(t)))
}

// An entry that comes while a TryLock beside nested names looks for one is before it. The TryLock does not wait for it,
// and leaves nothing behind. If that entry leaves before the TryLock has looked again, the lock is free.
func TestTryLock_OvertakenBesideNestedNames(t *testing.T) {
	for _, leaves := range []bool{false, true} {
		for _, nested := range []int{1, 300} {
			t.Run(fmt.Sprintf("%d, the other leaves %t", nested, leaves), func(t *testing.T) {
				name := lockName(t)
				putNested(t, name, nested)
				other := newTestSession(t, cluster.Client(t))
				c, w := wiredClient(t, cluster)
				s := unhedged(t, c)
				var h *Held
				txns := 0
				w.Reset()
				w.OnUnary(func(ctx context.Context, method string, _ any, send func(context.Context) error) error {
					if method == "Txn" {
						txns++
					}
					if method == "Txn" && txns == 2 {
						h = mustLock(t, other, name)
						err := send(ctx)
						if leaves {
							err = errors.Join(err, h.Unlock(ctx))
						}
						return err
					}
					return send(ctx)
				})
				got, err := NewMutex(s, name).TryLock(testCtx(t))
				w.OnUnary(nil)
				if leaves {
					require.NoError(t, err)
					require.Greater(t, got.Token(), h.Token())
					require.NoError(t, got.Unlock(testCtx(t)))
				} else {
					require.ErrorIs(t, err, ErrLocked)
					require.NoError(t, h.Check(testCtx(t)))
					require.NoError(t, h.Unlock(testCtx(t)))
				}
				onlooker := cluster.Client(t)
				require.Eventually(t, func() bool { return len(entries(t, onlooker, name)) == nested }, hang, 10*time.Millisecond)
				calls, created := w.Counts()
				require.Equal(t, 3, calls["Txn"], "one for the removal")
				require.LessOrEqual(t, calls["Range"], 3) // one fewer beside few names, and if the other stays
				require.LessOrEqual(t, len(created), 1)   // none if the other stays
			})
		}
	}
}

// putNested puts n keys of locks whose names are nested in name. They sort before the key of any lease, which never begins
// with a 0, so a limited listing shows them first.
func putNested(t *testing.T, name string, n int) {
	t.Helper()
	c := cluster.Client(t)
	for i := range n {
		_, err := c.Put(testCtx(t), fmt.Sprintf("%s/0%d/5", name, i), "")
		require.NoError(t, err)
	}
}

func enqueueMany(t *testing.T, n int, how func(i int) func(context.Context) (*Ticket, error)) (tickets []*Ticket) {
	t.Helper()
	for i := range n {
		tk, err := how(i)(testCtx(t))
		require.NoError(t, err)
		tickets = append(tickets, tk)
	}
	return tickets
}

// Near the front, or in a queue of few, a watch on all that is left below, and one read that sees it all
// there. Deeper in a queue of many first a watch on the last but two. No read is
// needed when the last one leaves.
func TestRequests_ContendedDeeper(t *testing.T) {
	for _, below := range []int{waitlist.Lookahead, waitlist.ManyShare, waitlist.ManyShare + 1, enqueueReadLimit + 2} {
		for i, kind := range []string{"Mutex", "RWMutex", "RWMutex read", "Mutex", "RWMutex", "RWMutex read"} {
			writers := i >= 3
			t.Run(fmt.Sprintf("%s behind %d, write locks %t", kind, below, writers), func(t *testing.T) {
				name := lockName(t)
				others := []*Session{newTestSession(t, cluster.Client(t)), newTestSession(t, cluster.Client(t))}
				tickets := enqueueMany(t, below, func(i int) func(context.Context) (*Ticket, error) {
					if writers {
						return NewRWMutex(others[i%2], name).Enqueue // no two of one session follow each other
					}
					return NewMutex(others[i%2], name).Enqueue
				})
				c, w := wiredClient(t, cluster)
				s := unhedged(t, c)
				defer writeBetween(t, w)()
				w.Reset()
				granted := inBackground(t, lockFuncs(s, name)[kind])
				// A write lock has two keys in the queue. The txn of a reader shows one of them, and does not tell how many keys
				// there are.
				shown, share := below, waitlist.ManyShare
				switch {
				case kind == "RWMutex read":
					share = 0
				case writers:
					shown *= 2
				}
				if kind == "RWMutex" {
					share *= 2
				}
				deep := below > waitlist.Lookahead && shown > share
				reads, watches := 1, 1 // to see that those it waits for were there behind the watch
				if shown > enqueueReadLimit {
					reads++ // to find them
				}
				w.WaitForAnswers(t, reads, watches)
				for i, tk := range tickets {
					h, err := tk.Wait(testCtx(t))
					require.NoError(t, err)
					if i == len(tickets)-waitlist.Lookahead && deep {
						reads, watches = reads+1, watches+1 // it is seen that these are all
						w.WaitForAnswers(t, reads, watches)
					}
					require.NoError(t, h.Unlock(testCtx(t)))
				}
				h2 := <-granted
				require.NotNil(t, h2)
				require.NoError(t, h2.Unlock(testCtx(t)))
				w.Require(t, map[string]int{"Txn": 2, "Range": reads}, watches)
			})
		}
	}
}

// Entries of one session that follow each other count as one: its session may remove them together, so a waiter
// behind them watches all of them at once. The queue is longer than a session of one key watches whole.
func TestRequests_BehindARun(t *testing.T) {
	name := lockName(t)
	other := newTestSession(t, cluster.Client(t))
	tickets := enqueueMany(t, enqueueReadLimit-2, func(int) func(context.Context) (*Ticket, error) {
		return NewMutex(other, name).Enqueue
	})
	c, w := wiredClient(t, cluster)
	s := unhedged(t, c)
	defer writeBetween(t, w)()
	w.Reset()
	granted := inBackground(t, NewMutex(s, name).Lock)
	w.WaitFor(t, 1, 1)
	for _, tk := range tickets {
		h, err := tk.Wait(testCtx(t))
		require.NoError(t, err)
		require.NoError(t, h.Unlock(testCtx(t)))
	}
	h := <-granted
	require.NotNil(t, h)
	require.NoError(t, h.Unlock(testCtx(t)))
	w.Require(t, map[string]int{"Txn": 2, "Range": 1}, 1)
}

// Of the waiters of a session the first one watches what is before it, and looks behind the watch. The
// others ask nothing, and get the lock from the one before: their txn has shown them all of the queue.
// Behind more than the txn shows, one reading serves those that it shows.
func TestRequests_WaitersOfOneSession(t *testing.T) {
	for _, waiters := range []int{1, 2, enqueueReadLimit, 5 * enqueueReadLimit} {
		t.Run(fmt.Sprint(waiters), func(t *testing.T) {
			name := lockName(t)
			h, err := NewMutex(newTestSession(t, cluster.Client(t)), name).Lock(testCtx(t))
			require.NoError(t, err)
			c, w := wiredClient(t, cluster)
			s := unhedged(t, c)
			m := NewMutex(s, name)
			defer writeBetween(t, w)()
			w.Reset()
			var tickets []*Ticket
			for range waiters {
				tk, err := m.Enqueue(testCtx(t))
				require.NoError(t, err)
				tickets = append(tickets, tk)
				w.WaitFor(t, 1, 1)
			}
			for _, tk := range tickets {
				require.NoError(t, h.Unlock(testCtx(t)))
				h, err = tk.Wait(testCtx(t))
				require.NoError(t, err)
			}
			require.NoError(t, h.Unlock(testCtx(t)))
			calls, created := w.Counts()
			require.Len(t, created, 1)
			harness.RequireFromNow(t, created)
			require.Equal(t, 2*waiters, calls["Txn"])
			if waiters <= enqueueReadLimit {
				require.Equal(t, 1, calls["Range"])
			}
			require.LessOrEqual(t, calls["Range"], 1+waiters/enqueueReadLimit)
		})
	}
}

// An entry behind more of its own session than its txn would list lists nothing: etcd would count the whole
// queue for it, where it carries out all writes. (For other sessions' entries see waitlist.TestBehindMore.)
func TestRequests_EnqueueFarBehind(t *testing.T) {
	name := lockName(t)
	c, w := wiredClient(t, cluster)
	var lists []bool
	w.OnUnary(func(ctx context.Context, _ string, req any, send func(context.Context) error) error {
		if txn, ok := req.(*pb.TxnRequest); ok && len(txn.Compare) > 0 {
			lists = append(lists, txn.Success[0].GetRequestRange() != nil)
		}
		return send(ctx)
	})
	mutexes, readers := unhedged(t, c), unhedged(t, c)
	for i := range enqueueReadLimit + 3 {
		lists = nil
		_, err := NewMutex(mutexes, name).Enqueue(testCtx(t))
		require.NoError(t, err)
		_, err = NewRWMutex(readers, name+"2").REnqueue(testCtx(t))
		require.NoError(t, err)
		require.Equal(t, []bool{i <= enqueueReadLimit, true}, lists, "behind %d; readers do not block each other", i)
	}
	w.OnUnary(nil) // what the end of the sessions sends comes from many goroutines
}

// A few waiters of a session in a long queue: two of them ask, and the others begin to when it is their
// turn to be next but one.
func TestRequests_FewOfMany(t *testing.T) {
	const own = 5
	for _, below := range []int{waitlist.ManyShare + 1, enqueueReadLimit + 1} {
		t.Run(fmt.Sprint(below), func(t *testing.T) {
			name := lockName(t)
			other := NewMutex(newTestSession(t, cluster.Client(t)), name)
			enqueue := func(m *Mutex, n int) (tickets []*Ticket) {
				for range n {
					tk, err := m.Enqueue(testCtx(t))
					require.NoError(t, err)
					tickets = append(tickets, tk)
				}
				return tickets
			}
			before := enqueue(other, below)
			c, w := wiredClient(t, cluster)
			s := unhedged(t, c)
			w.Reset()
			var mine, between []*Ticket
			for range own {
				mine = append(mine, enqueue(NewMutex(s, name), 1)...)
				between = append(between, enqueue(other, enqueueReadLimit)...)
			}
			w.WaitFor(t, 0, 1) // that both in front use
			pass := func(tickets []*Ticket) {
				for _, tk := range tickets {
					h, err := tk.Wait(testCtx(t))
					require.NoError(t, err)
					require.NoError(t, h.Unlock(testCtx(t)))
				}
			}
			pass(before)
			for i := range mine {
				_, created := w.Counts()
				require.LessOrEqual(t, len(created), 2*(i+3), "of those behind the next but one none asks")
				pass(mine[i : i+1])
				pass(between[i*enqueueReadLimit : (i+1)*enqueueReadLimit])
			}
			calls, created := w.Counts()
			require.LessOrEqual(t, len(created), 2*own)
			require.LessOrEqual(t, calls["Range"], 4*own)
			harness.RequireFromNow(t, created)
		})
	}
}

// Every watch of waiters and holds ends when its member is cut off from the others.
func TestRequests_WatchesRequireLeader(t *testing.T) {
	name := lockName(t)
	other := mustLock(t, newTestSession(t, cluster.Client(t)), name)
	for what, wait := range map[string]func(*Session){
		"for others": func(s *Session) { _, _ = NewMutex(s, name).Enqueue(testCtx(t)) },
		"to read":    func(s *Session) { _, _ = NewRWMutex(s, name).REnqueue(testCtx(t)) },
		"for its own session": func(s *Session) {
			mustLock(t, s, name+"2")
			_, _ = NewMutex(s, name+"2").Enqueue(testCtx(t))
		},
		"a hold": func(s *Session) { mustLock(t, s, name+"3").Done() },
	} {
		t.Run(what, func(t *testing.T) {
			c, w := wiredClient(t, cluster)
			required := make(chan []string, 8)
			w.OnStream(func(ctx context.Context, method string) error {
				if method == "Watch" {
					md, _ := metadata.FromOutgoingContext(ctx)
					required <- md.Get(rpctypes.MetadataRequireLeaderKey)
				}
				return nil
			})
			s := newTestSession(t, c)
			wait(s)
			require.Equal(t, []string{rpctypes.MetadataHasLeader}, <-required)
			require.NoError(t, s.Close())
		})
	}
	require.NoError(t, other.Unlock(testCtx(t)))
}

// Readers of one session that wait for the same writer have one watch. Only the first
// one looks behind it.
func TestRequests_ReadersOfOneSession(t *testing.T) {
	const readers = 130
	for _, sessions := range []int{1, 4} {
		for _, atOnce := range []bool{false, true} { // before the watch is open, or behind each other
			t.Run(fmt.Sprintf("%d sessions, at once %t", sessions, atOnce), func(t *testing.T) {
				t.Parallel() // only with each other
				name := lockName(t)
				h, err := NewRWMutex(newTestSession(t, cluster.Client(t)), name).Lock(testCtx(t))
				require.NoError(t, err)
				c, w := wiredClient(t, cluster)
				var ss []*Session
				for range sessions {
					ss = append(ss, unhedged(t, c))
				}
				defer writeBetween(t, w)()
				opened := make(chan struct{})
				if !atOnce {
					close(opened)
				}
				w.OnRecv(func(method string, _ any) (bool, error) {
					if method == "Watch" {
						<-opened
					}
					return true, nil
				})
				w.Reset()
				tickets := make([]*Ticket, readers)
				var wg sync.WaitGroup
				for i := range tickets {
					enqueue := func() {
						var err error
						tickets[i], err = NewRWMutex(ss[i%sessions], name).REnqueue(testCtx(t))
						assert.NoError(t, err)
					}
					if atOnce && i >= sessions { // the first of each is the first in line
						wg.Go(enqueue) // all in less time than the opening of a watch may take
						continue
					}
					enqueue()
					if atOnce {
						continue
					}
					w.WaitFor(t, min(i+1, sessions), min(i+1, sessions))
				}
				wg.Wait()
				if atOnce {
					close(opened)
					w.WaitFor(t, sessions, sessions)
				}
				require.NoError(t, h.Unlock(testCtx(t)))
				for _, tk := range tickets {
					h, err := tk.Wait(testCtx(t))
					require.NoError(t, err)
					require.NoError(t, h.Unlock(testCtx(t)))
				}
				calls, created := w.Counts()
				reads, watches := calls["Range"], len(created)
				require.LessOrEqual(t, watches, 3*sessions) // one that is late is asked for twice
				if !atOnce {                                // else one for the first, and one on all of the queue when there are many
					require.LessOrEqual(t, len(harness.Watched(created)), sessions)
				}
				require.LessOrEqual(t, reads, 10*sessions) // far fewer than readers: one that is late is made twice
				w.Require(t, map[string]int{"Txn": 2 * readers, "Range": max(sessions, reads)}, watches)
			})
		}
	}
}

// writeBetween writes something else after each request, so that every watch begins
// behind what was read before it. A request waits for its answer, however long a machine
// that stalls takes: it would be repeated otherwise.
func writeBetween(t *testing.T, w *harness.Wire) (stop func()) {
	other := cluster.Client(t)
	w.OnUnary(func(ctx context.Context, _ string, _ any, send func(context.Context) error) error {
		ctx = context.WithoutCancel(ctx)
		if err := send(ctx); err != nil {
			return err
		}
		_, err := other.Put(ctx, "test/busy", "")
		return err
	})
	return func() { w.OnUnary(nil) }
}

// A writer behind R readers that leave in any order: neither reads nor watches
// depend on R.
func TestRequests_WriterBehindReaders(t *testing.T) {
	var costs []map[string]int
	for _, readers := range []int{enqueueReadLimit + 1, 60} {
		name := lockName(t)
		rw := NewRWMutex(newTestSession(t, cluster.Client(t)), name)
		var holds []*Held
		for range readers {
			h, err := rw.RLock(testCtx(t))
			require.NoError(t, err)
			holds = append(holds, h)
		}
		c, w := wiredClient(t, cluster)
		s := unhedged(t, c)
		stop := writeBetween(t, w)
		w.Reset()
		granted := inBackground(t, NewRWMutex(s, name).Lock)
		w.WaitFor(t, 2, 1) // it lists them, and sees that they are there behind the watch
		for _, i := range permutation(readers) {
			require.NoError(t, holds[i].Unlock(testCtx(t)))
		}
		h := <-granted
		require.NotNil(t, h)
		require.NoError(t, h.Unlock(testCtx(t)))
		stop()
		calls, created := w.Counts()
		require.Len(t, created, 1)
		harness.RequireFromNow(t, created)
		delete(calls, "Whom")
		costs = append(costs, calls)
	}
	require.Equal(t, costs[0], costs[1])
	require.Equal(t, map[string]int{"Txn": 2, "Range": 3}, costs[0])
}

func TestRequests_HoldContext(t *testing.T) {
	c, w := wiredClient(t, cluster)
	s := unhedged(t, c)
	m := NewMutex(s, lockName(t))
	require.NoError(t, m.Do(testCtx(t), func(ctx context.Context, h *Held) error {
		w.WaitFor(t, 0, 1)
		return h.Context().Err()
	}))
	calls, created := w.Counts()
	require.Len(t, created, 1)
	require.Equal(t, 2, calls["Txn"])
	require.LessOrEqual(t, calls["Range"], 1)
}

// Waits that last cost one read more, for all of a session's for a name. It is no part of how a queue is judged:
// any member answers it as it is.
func TestRequests_Whom(t *testing.T) {
	t.Parallel()
	name := lockName(t)
	h := mustLock(t, newTestSession(t, cluster.Client(t), WithOwner("web1 report[4242]")), name)
	c, w := wiredClient(t, cluster)
	s := unhedged(t, c)
	w.Reset()
	ctx, cancel := context.WithCancel(testCtx(t))
	var left []<-chan error
	for range 3 {
		left = append(left, async(func() error { _, err := NewMutex(s, name).Lock(ctx); return err }))
	}
	require.Eventually(t, func() bool { calls, _ := w.Counts(); return calls["Whom"] > 0 }, hang, tick)
	require.Eventually(t, func() bool { return len(entries(t, c, name)) == 4 }, hang, tick)
	hangs(t, async(func() error { <-ctx.Done(); return nil }), 300*time.Millisecond)
	cancel()
	for _, ch := range left {
		require.ErrorIs(t, result(t, ch), context.Canceled)
	}
	calls, _ := w.Counts()
	require.Equal(t, 1, calls["Whom"])
	require.NoError(t, h.Unlock(testCtx(t)))
}

// A Lock that ends with its ctx says whom it waited for, in one line.
func TestLock_SaysWhomItWaitedFor(t *testing.T) {
	t.Parallel()
	other := newTestSession(t, cluster.Client(t), WithOwner("web1 report[4242]"))
	c, w := wiredClient(t, cluster)
	locks := newTestClient(t, c)
	for op, lock := range map[string]func(ctx context.Context, name string) error{
		"lock":  func(ctx context.Context, name string) error { _, err := locks.Mutex(name).Lock(ctx); return err },
		"rlock": func(ctx context.Context, name string) error { _, err := locks.RWMutex(name).RLock(ctx); return err },
		"do": func(ctx context.Context, name string) error {
			return locks.Mutex(name).Do(ctx, func(context.Context, *Held) error { return nil })
		},
	} {
		name := lockName(t)
		h := mustLock(t, other, name)
		for range 2 {
			_, err := NewMutex(other, name).Enqueue(testCtx(t))
			require.NoError(t, err)
		}
		w.Reset()
		ctx, cancel := context.WithCancelCause(testCtx(t))
		left := async(func() error { return lock(ctx, name) })
		awaitWhom(t, locks, name, h.rev+3)
		require.Eventually(t, func() bool {
			_, watches := w.Counts()
			return len(watches) > 0 && locks.config.outages.Why() == nil
		}, hang, tick, "on a machine that stalls, a watch that is late is an outage of its own")
		why := errors.New("the caller has gone")
		cancel(why)
		err := result(t, left)
		require.EqualError(t, err, fmt.Sprintf("etcdlock: %s %q: 3 ahead, held by web1 report[4242] (token %d): context canceled: the caller has gone", op, name, h.Token()))
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, err, why)
		var wait *WaitError
		require.ErrorAs(t, err, &wait)
		require.Equal(t, WaitError{3, "web1 report[4242]", h.Token(), wait.text, wait.err}, *wait)
	}
}

// awaitWhom waits until the session knows whom the entry of that revision waits for. A session asks once for all waits of a
// name, and not again if etcd takes a second to answer, unless another wait begins: so one does then.
func awaitWhom(t *testing.T, locks *Client, name string, rev int64) {
	t.Helper()
	asked := time.Now()
	require.Eventually(t, func() bool {
		s := locks.liveSession()
		if s == nil {
			return false
		}
		_, ok := s.blockers.Of(name, keyspace.Exclusive, rev)
		if !ok && time.Since(asked) > 3*time.Second {
			asked = time.Now()
			s.blockers.Enter(testCtx(t), name, rev)
			t.Cleanup(func() { s.blockers.Leave(name) })
		}
		return ok
	}, hang, tick)
}

// Of sessions that take a lock in turn, few are told of each release: up to about eight watch all of the queue, and of more
// each only what is next to it.
func TestRequests_EventsOfATurn(t *testing.T) {
	const turns = 20
	for sessions, atMost := range map[int]int64{4: 4, 16: 6} {
		t.Run(fmt.Sprint(sessions), func(t *testing.T) {
			name := lockName(t)
			var events atomic.Int64
			var locks []*Mutex
			for range sessions {
				c, w := wiredClient(t, cluster)
				w.OnRecv(func(_ string, msg any) (bool, error) {
					if wr, ok := msg.(*pb.WatchResponse); ok {
						events.Add(int64(len(wr.Events)))
					}
					return true, nil
				})
				locks = append(locks, NewMutex(unhedged(t, c), name))
			}
			var wg sync.WaitGroup
			for _, m := range locks {
				wg.Go(func() {
					for range turns {
						h, err := m.Lock(testCtx(t))
						if !assert.NoError(t, err) || !assert.NoError(t, h.Unlock(testCtx(t))) {
							return
						}
					}
				})
			}
			wg.Wait()
			require.LessOrEqual(t, events.Load(), atMost*turns*int64(sessions))
			t.Logf("%.1f events a turn", float64(events.Load())/float64(turns*sessions))
		})
	}
}

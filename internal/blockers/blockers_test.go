package blockers

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/keyspace"
	"github.com/etcdlock/etcdlock/internal/queue"
)

// queueOf is a KV with a queue in it: each read shows its keys, at its revision.
type queueOf struct {
	clientv3.KV // what is not faked panics
	rev         int64
	kvs         []*mvccpb.KeyValue
	err         error
	hangs       bool
	gate        chan struct{} // of each read, if not nil
	reads       int
	mu          sync.Mutex // for the race detector
}

func (f *queueOf) Txn(ctx context.Context) clientv3.Txn {
	return etcd.Build(func(t *etcd.Txn) (*clientv3.TxnResponse, error) { return f.read(ctx, t.Then[0]) })
}

func (f *queueOf) read(ctx context.Context, op clientv3.Op) (*clientv3.TxnResponse, error) {
	f.mu.Lock()
	f.reads++
	f.mu.Unlock()
	if !op.IsSerializable() {
		panic("not serializable")
	}
	if f.hangs {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if f.gate != nil {
		<-f.gate
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	kvs := f.kvs[:min(limit, len(f.kvs))]
	front := &pb.ResponseOp_ResponseRange{ResponseRange: &pb.RangeResponse{Kvs: kvs, More: len(kvs) < len(f.kvs)}}
	return &clientv3.TxnResponse{Header: &pb.ResponseHeader{Revision: f.rev}, Responses: []*pb.ResponseOp{{Response: front}}}, f.err
}

// put adds an entry. An empty owner leaves the value empty.
func (f *queueOf) put(key, owner string) int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rev++
	kv := &mvccpb.KeyValue{Key: []byte("a/" + key), CreateRevision: f.rev, Lease: 1}
	if owner != "" {
		kv.Value = fmt.Appendf(nil, `{"owner":%q}`, owner)
	}
	f.kvs = append(f.kvs, kv)
	return f.rev
}

func (f *queueOf) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.reads
}

func newWaits(f *queueOf) *Waits {
	return &Waits{KV: f, Go: func(run func(context.Context)) bool { go run(context.Background()); return true }}
}

// loggingWaits are newWaits that write their log.
func loggingWaits(f *queueOf) (*Waits, *bytes.Buffer) {
	w, log := newWaits(f), &bytes.Buffer{}
	w.Log = slog.New(slog.NewTextHandler(log, nil))
	return w, log
}

// text is what an error says of whom an entry in the queue "a" waits for.
func (w *Waits) text(kind keyspace.Kind, rev int64) string {
	b, _ := w.Of("a", kind, rev)
	return b.Text
}

// sleep lets time pass in the bubble, and all that happens in it.
func sleep(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func TestWaits_Reads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &queueOf{}
		w := newWaits(f)
		f.put("1", "holder")
		for range 10 { // short ones
			w.Enter(t.Context(), "a", f.put("2", ""))
			sleep(after - 1)
			w.Leave("a")
		}
		sleep(time.Hour)
		require.Zero(t, f.count())

		var revs []int64
		for range 1000 {
			revs = append(revs, f.put("2", ""))
			w.Enter(t.Context(), "a", revs[len(revs)-1])
		}
		sleep(after - 1)
		require.Zero(t, f.count())
		sleep(time.Hour)
		require.Equal(t, 1, f.count(), "one for all, and none at rest")
		w.Enter(t.Context(), "a", f.put("3", ""))
		sleep(time.Hour)
		require.Equal(t, 2, f.count(), "one for who came later")
		w.Enter(t.Context(), "b", f.put("4", ""))
		sleep(time.Hour)
		require.Equal(t, 3, f.count(), "another name")
		for range 1001 {
			w.Leave("a")
		}
		w.Leave("b")
		require.Empty(t, w.names)
		require.Empty(t, w.text(keyspace.Exclusive, revs[5]))
	})
}

// A wait whose ctx ends soon has the read made before that, whenever others came.
func TestWaits_ReadsBeforeTheDeadline(t *testing.T) {
	for timeout, due := range map[time.Duration]time.Duration{
		soon:                      soon,
		soon + before:             soon,
		time.Second:               time.Second - before,
		before + after - soon + 1: after - soon + 1,
		after + before:            after,
		after + before + 1:        after,
		time.Hour:                 after,
	} {
		for _, others := range []bool{false, true} { // which have no deadline
			synctest.Test(t, func(t *testing.T) {
				f := &queueOf{}
				w := newWaits(f)
				ctx, cancel := context.WithTimeout(t.Context(), timeout)
				defer cancel()
				if others {
					w.Enter(t.Context(), "a", f.put("1", ""))
				}
				w.Enter(ctx, "a", f.put("2", ""))
				if others {
					w.Enter(t.Context(), "a", f.put("3", ""))
				}
				sleep(due - 1)
				require.Zero(t, f.count(), timeout)
				sleep(1)
				require.Equal(t, 1, f.count(), timeout)
				sleep(time.Hour)
				require.Equal(t, 1, f.count(), "it was for all of them")
			})
		}
	}
}

// A wait that begins while the queue is being read has it read again, in its own time, if that has not shown it.
func TestWaits_EnterWhileRead(t *testing.T) {
	for what, tc := range map[string]struct {
		lags  int64
		err   error
		again int
	}{"shown": {}, "not shown": {lags: 1, again: 1}, "failed": {err: errors.New("no leader"), again: 1}} {
		synctest.Test(t, func(t *testing.T) {
			f := &queueOf{gate: make(chan struct{}), err: tc.err}
			w := newWaits(f)
			w.Enter(t.Context(), "a", f.put("1", ""))
			sleep(after)
			require.Equal(t, 1, f.count())
			w.Enter(t.Context(), "a", f.put("2", "")+tc.lags)
			sleep(after / 4)
			close(f.gate)
			sleep(3*after/4 - 1)
			require.Equal(t, 1, f.count(), what)
			sleep(time.Hour)
			require.Equal(t, 1+tc.again, f.count(), what)
			w.Enter(t.Context(), "a", f.put("3", ""))
			sleep(time.Hour)
			require.Equal(t, 2+tc.again, f.count(), "%s: the next one has its own", what)
		})
	}
}

// A wait that has begun and ended during a read starts nothing.
func TestWaits_EnterAndLeaveWhileRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &queueOf{gate: make(chan struct{})}
		w := newWaits(f)
		begun := 0
		start := w.Go
		w.Go = func(run func(context.Context)) bool { begun++; return start(run) }
		w.Enter(t.Context(), "a", f.put("1", ""))
		sleep(after)
		w.Enter(t.Context(), "a", f.put("2", "")+1)
		w.Leave("a")
		w.Leave("a")
		close(f.gate)
		sleep(time.Hour)
		require.Equal(t, 1, begun)
	})
}

// A member that lags, or an error, is not asked again and again.
func TestWaits_NoPolling(t *testing.T) {
	for what, f := range map[string]*queueOf{"lags": {}, "error": {err: errors.New("no leader")}, "hangs": {hangs: true}} {
		synctest.Test(t, func(t *testing.T) {
			w := newWaits(f)
			w.Enter(t.Context(), "a", 10)
			sleep(time.Hour)
			require.Equal(t, 1, f.count(), what)
			require.Empty(t, w.text(keyspace.Exclusive, 10))
			w.Leave("a")
		})
	}
}

// The end of the last wait ends the read.
func TestWaits_LeaveEndsTheRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &queueOf{hangs: true}
		ended := make(chan struct{})
		w := &Waits{KV: f, Go: func(run func(context.Context)) bool {
			go func() { defer close(ended); run(context.Background()) }()
			return true
		}}
		w.Enter(t.Context(), "a", 1)
		sleep(after)
		require.Equal(t, 1, f.count())
		began := time.Now()
		w.Leave("a")
		<-ended
		require.Zero(t, time.Since(began))
	})
}

func TestWaits_Text(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &queueOf{rev: 811}
		w := newWaits(f)
		f.put("1", "web1 report[4242]")
		f.put("x/77", "of a nested lock")
		f.put("2", "web2")
		f.put("r3", "")
		own := f.put("4", "")
		reader := f.put("r5", "")
		later := f.put("6", "")
		w.Enter(t.Context(), "a", reader)
		sleep(after)
		say := func(kind keyspace.Kind, rev int64) string { return w.text(kind, rev) }
		require.Equal(t, "3 ahead, held by web1 report[4242] (token 812)", say(keyspace.Exclusive, own))
		require.Equal(t, "3 ahead, held by web1 report[4242] (token 812)", say(keyspace.Shared, reader), "two writers and itself are before it")
		require.Equal(t, "5 ahead, held by web1 report[4242] (token 812)", say(keyspace.Exclusive, later))
		require.Empty(t, say(keyspace.Exclusive, 812), "nobody is")
		require.Empty(t, say(keyspace.Exclusive, later+1), "it came later")
		sleep(5*time.Minute - time.Nanosecond)
		require.Equal(t, "3 ahead, held by web1 report[4242] (token 812), as seen 5m0s ago", say(keyspace.Exclusive, own))
		w.Leave("a")

		// Readers that hold together; an owner who says nothing; more than are read.
		f.kvs = slices.Clone(f.kvs[:0])
		f.put("r7", "")
		f.put("r8", "web3")
		for i := range limit {
			own = f.put(fmt.Sprint("9-", i+1), "")
		}
		w.Enter(t.Context(), "a", own)
		sleep(after)
		require.Equal(t, fmt.Sprintf("at least %d ahead, held by a/r7 (token %d) and 1 more", limit, f.kvs[0].CreateRevision), say(keyspace.Exclusive, own))
		w.Leave("a")
	})
}

// A read that was about to begin when the last wait ended is not made.
func TestWaits_LeaveBeforeTheRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &queueOf{}
		began := make(chan func(context.Context), 1)
		w := &Waits{KV: f, Go: func(run func(context.Context)) bool { began <- run; return true }}
		w.Enter(t.Context(), "a", 1)
		run := <-began
		w.Leave("a")
		run(context.Background())
		require.Zero(t, f.count())
	})
}

// Another client may write anything as its owner: it moves no cursor, makes no line of the log, and is not long.
func TestOwnerOf(t *testing.T) {
	for owner, shown := range map[string]string{
		"web1 report[4242]":               "web1 report[4242]",
		"münchen":                         "münchen",
		"":                                "a/1",
		"me\nlevel=ERROR msg=\x1b[31mred": `"me\nlevel=ERROR msg=\x1b[31mred"`,
		`a "quote"`:                       `"a \"quote\""`,
		"right\u202eleft":                 `"right\u202eleft"`,
		strings.Repeat("x", 5000):         strings.Repeat("x", maxOwner) + "...",
		strings.Repeat("ü", maxOwner):     strings.Repeat("ü", maxOwner/2) + "...",
	} {
		value, err := json.Marshal(map[string]string{"owner": owner})
		require.NoError(t, err)
		require.Equal(t, shown, ownerOf(queue.Acquisition{Key: "a/1", Value: string(value), Lease: 1}))
	}
}

// Data that is in the way of waits is logged once a minute at most, whoever waits. What came behind the wait is not in
// its way, and what this package wrote is no data.
func TestWaits_LogsData(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &queueOf{}
		w, log := loggingWaits(f)
		wait := func(rev int64, long time.Duration) (lines int) {
			log.Reset()
			w.Enter(t.Context(), "a", rev)
			sleep(long)
			w.Leave("a")
			return strings.Count(log.String(), "looks like data; keep data and lock names apart\" lock=a key=a/4711\n")
		}
		f.put("1", "holder")
		f.kvs[0].Lease, f.kvs[0].Value = 0, []byte(`{"owner":"holder","nonce":"1f"}`)
		own := f.put("2", "")
		f.put("4711", "")
		f.kvs[2].Lease = 0
		later := f.put("3", "")
		require.Zero(t, wait(own, after))
		require.Equal(t, 1, wait(later, after))
		require.Zero(t, wait(later, after), "somebody tries again and again")
		require.Zero(t, wait(later, after-1), "a short wait reads nothing")
		sleep(logAgain)
		require.Equal(t, 1, wait(later, time.Hour))
		w.Enter(t.Context(), "a", later)
		sleep(after)
		require.Equal(t, "3 ahead, held by holder (token 1); a/4711 has no lease: it looks like data; keep data and lock names apart", w.text(keyspace.Exclusive, later))
		w.Leave("a")
	})
}

// Locks of several names are tried again and again, and data is in the way of each: each key is logged once a minute, and of
// very many keys some.
func TestWaits_LogsDataOfManyNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &queueOf{}
		w, log := loggingWaits(f)
		tryAll := func(names int) (lines int) {
			log.Reset()
			for i := range names {
				name := fmt.Sprint("orders/", i)
				f.mu.Lock()
				f.kvs = nil
				f.mu.Unlock()
				f.put(name+"/4711", "")
				f.kvs[0].Key, f.kvs[0].Lease = []byte(name+"/4711"), 0
				w.Enter(t.Context(), name, f.rev+1)
				sleep(after)
				w.Leave(name)
			}
			return strings.Count(log.String(), "looks like data")
		}
		require.Equal(t, 3, tryAll(3))
		require.Zero(t, tryAll(3))
		sleep(logAgain)
		require.Equal(t, logKeys, tryAll(2*logKeys))
		sleep(logAgain)
		require.Equal(t, 3, tryAll(3))
	})
}

package harness

import (
	"context"
	"path"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/etcdlock/etcdlock/etcdtest"
)

// A Wire counts the attempts of a client's requests, and lets a test intercept them.
type Wire struct {
	mu      sync.Mutex
	calls   map[string]int // unary, by method: "Txn", "Range", ...; a Txn that only reads is a "Range", or "Whom" if it reads for an error only
	watches []*pb.WatchCreateRequest
	read    int // reads that have an answer

	// unary, if set, is called in place of each unary call, and sends the call with send.
	unary func(ctx context.Context, method string, req any, send func(context.Context) error) error
	// recv, if set, sees each message that a stream receives; an error ends the
	// stream, and false drops the message.
	recv func(method string, msg any) (bool, error)
	// stream, if set, is called before a stream is opened.
	stream func(ctx context.Context, method string) error
}

// ErrLostReply is the error of a call whose reply was lost. It is neither
// DeadlineExceeded nor Canceled, after which etcd's client repeats a call by itself.
var ErrLostReply = status.Error(codes.Unavailable, "transport is closing")

// NewWire returns a Wire for the client that gets its DialOptions.
func NewWire() *Wire { return &Wire{calls: map[string]int{}} }

// DialOptions returns the options of a client that has this Wire.
func (w *Wire) DialOptions() []grpc.DialOption {
	return []grpc.DialOption{grpc.WithChainUnaryInterceptor(w.interceptUnary), grpc.WithChainStreamInterceptor(w.interceptStream)}
}

// WiredClient returns a client of the cluster c with a Wire.
func WiredClient(t testing.TB, c *etcdtest.Cluster, change ...func(*clientv3.Config)) (*clientv3.Client, *Wire) {
	w := NewWire()
	client := c.Client(t, etcdtest.WithClientConfig(func(cfg *clientv3.Config) {
		cfg.DialOptions = append(cfg.DialOptions, w.DialOptions()...)
		for _, f := range change {
			f(cfg)
		}
	}))
	return client, w
}

func (w *Wire) interceptUnary(ctx context.Context, fullMethod string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	send := func(ctx context.Context) error { return invoker(ctx, fullMethod, req, reply, cc, opts...) }
	method := path.Base(fullMethod)
	reads := RangesOf(req)
	switch {
	case len(reads) > 0 && reads[0].Serializable && reads[0].Revision == 0:
		method = "Whom" // not one by which a queue is judged: those are pinned, or linearizable
	case len(reads) > 0:
		method = "Range"
	}
	if t, ok := req.(*pb.TxnRequest); ok && len(t.Compare) == 0 && len(t.Success) == 1 && t.Success[0].GetRequestTxn() != nil && len(t.Success[0].GetRequestTxn().Success) == 0 {
		method = "Barrier" // it says what is written by now, where a member has answered from an older state
	}
	w.mu.Lock()
	w.calls[method]++
	hook := w.unary
	w.mu.Unlock()
	if hook == nil {
		hook = func(ctx context.Context, _ string, _ any, send func(context.Context) error) error { return send(ctx) }
	}
	err := hook(ctx, method, req, send)
	if method == "Range" && err == nil {
		w.mu.Lock()
		w.read++
		w.mu.Unlock()
	}
	if len(reads) > 0 && reads[0].Revision > 0 && err != nil {
		// The member has not reached the revision, or is too busy, which happens on a
		// busy machine. The linearizable read that replaces this one counts instead.
		w.mu.Lock()
		w.calls[method]--
		w.mu.Unlock()
	}
	return err
}

// RangesOf returns the reads of a request, or none if the request does anything else.
func RangesOf(req any) (reads []*pb.RangeRequest) {
	switch r := req.(type) {
	case *pb.RangeRequest:
		return []*pb.RangeRequest{r}
	case *pb.TxnRequest:
		for _, op := range slices.Concat(r.Success, r.Failure) {
			if op.GetRequestRange() == nil {
				return nil
			}
			reads = append(reads, op.GetRequestRange())
		}
	}
	return reads
}

func (w *Wire) interceptStream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	w.mu.Lock()
	hook := w.stream
	w.mu.Unlock()
	if hook != nil {
		if err := hook(ctx, path.Base(method)); err != nil {
			return nil, err
		}
	}
	s, err := streamer(ctx, desc, cc, method, opts...)
	return &wireStream{s, w, path.Base(method)}, err
}

type wireStream struct {
	grpc.ClientStream
	w      *Wire
	method string
}

func (s *wireStream) SendMsg(m any) error {
	if r, ok := m.(*pb.WatchRequest); ok && r.GetCreateRequest() != nil {
		s.w.mu.Lock()
		s.w.watches = append(s.w.watches, r.GetCreateRequest())
		s.w.mu.Unlock()
	}
	return s.ClientStream.SendMsg(m)
}

func (s *wireStream) RecvMsg(m any) error {
	for {
		if err := s.ClientStream.RecvMsg(m); err != nil {
			return err
		}
		s.w.mu.Lock()
		hook := s.w.recv
		s.w.mu.Unlock()
		if hook == nil {
			return nil
		}
		if pass, err := hook(s.method, m); pass || err != nil {
			return err
		}
	}
}

// OnUnary has f called in place of each unary call; nil removes it.
func (w *Wire) OnUnary(f func(ctx context.Context, method string, req any, send func(context.Context) error) error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.unary = f
}

// OnRecv has f called with each message that a stream receives. An error of f ends the stream, and
// false drops the message.
func (w *Wire) OnRecv(f func(method string, msg any) (bool, error)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.recv = f
}

// OnStream has f called before a stream is opened.
func (w *Wire) OnStream(f func(ctx context.Context, method string) error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stream = f
}

// Once replaces the next call of method by f, and only that call. The channel is closed
// when f has returned.
func (w *Wire) Once(method string, f func(ctx context.Context, send func(context.Context) error) error) <-chan struct{} {
	done := make(chan struct{})
	var taken atomic.Bool
	w.OnUnary(func(ctx context.Context, m string, _ any, send func(context.Context) error) error {
		if m != method || taken.Swap(true) { // another call may have come before the hook was removed
			return send(ctx)
		}
		w.OnUnary(nil)
		defer close(done)
		return f(ctx, send)
	})
	return done
}

// LoseReply executes the next call of method, but drops its reply.
func (w *Wire) LoseReply(method string) <-chan struct{} {
	return w.Once(method, func(ctx context.Context, send func(context.Context) error) error {
		if err := send(ctx); err != nil {
			return err
		}
		return ErrLostReply
	})
}

// Reset sets the counts to zero.
func (w *Wire) Reset() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls, w.watches, w.read = map[string]int{}, nil, 0
}

// Counts returns a copy of the counts, and the requests for watches.
func (w *Wire) Counts() (calls map[string]int, watches []*pb.WatchCreateRequest) {
	w.mu.Lock()
	defer w.mu.Unlock()
	calls = map[string]int{}
	for m, n := range w.calls {
		calls[m] = n
	}
	return calls, append(watches, w.watches...)
}

// WaitFor waits until that many reads were made and watches created.
func (w *Wire) WaitFor(t testing.TB, reads, watches int) {
	t.Helper()
	require.Eventually(t, func() bool {
		calls, created := w.Counts()
		return calls["Range"] >= reads && len(created) >= watches
	}, Hang, Tick)
}

// WaitForAnswers is WaitFor, and waits for the answers to the reads too: a key that leaves while a read is on its way may
// cost another one.
func (w *Wire) WaitForAnswers(t testing.TB, reads, watches int) {
	t.Helper()
	w.WaitFor(t, reads, watches)
	require.Eventually(t, func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.read >= reads
	}, Hang, Tick)
}

// Require compares the counts of calls and watches with those that are wanted.
func (w *Wire) Require(t testing.TB, want map[string]int, watches int) {
	t.Helper()
	calls, created := w.Counts()
	// Each wait has a Whom after a second, and each session asks after its lease now and then, also by a machine that
	// stalls. A busy member that answers from an older state brings about a Barrier.
	for _, method := range []string{"Whom", "Barrier", "LeaseTimeToLive"} {
		if want[method] == 0 {
			delete(calls, method)
		}
	}
	require.Equal(t, want, calls)
	require.Len(t, created, watches)
	RequireFromNow(t, created)
	for _, r := range created {
		require.Equal(t, []pb.WatchCreateRequest_FilterType{pb.WatchCreateRequest_NOPUT}, r.Filters, "all hear of deletions only")
	}
}

// Watched returns what is watched, each once: a watch that a machine that stalls opens late is asked for twice.
func Watched(created []*pb.WatchCreateRequest) (distinct []*pb.WatchCreateRequest) {
	seen := map[string]bool{}
	for _, r := range created {
		if at := string(r.Key) + "\x00" + string(r.RangeEnd); !seen[at] {
			seen[at] = true
			distinct = append(distinct, r)
		}
	}
	return distinct
}

// RequireFromNow requires that no watch was opened at a revision that exists: etcd serves such a watch
// from a loop that runs each 100 ms.
func RequireFromNow(t testing.TB, created []*pb.WatchCreateRequest) {
	t.Helper()
	for _, r := range created {
		require.Zero(t, r.StartRevision, "watch of %q", r.Key)
	}
}

package etcdlock

import (
	"context"
	"path"
	"slices"
	"sync"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/etcdlock/etcdlock/etcdtest"
)

// wire counts the attempts of a client's requests, and lets a test intercept them.
type wire struct {
	mu      sync.Mutex
	calls   map[string]int // unary, by method: "Txn", "Range", ...; a Txn that only reads is a "Range"
	watches []*pb.WatchCreateRequest

	// unary, if set, is called in place of each unary call, and sends the call with send.
	unary func(ctx context.Context, method string, req any, send func(context.Context) error) error
	// recv, if set, sees each message that a stream receives; an error ends the
	// stream, and false drops the message.
	recv func(method string, msg any) (bool, error)
	// stream, if set, is called before a stream is opened.
	stream func(ctx context.Context, method string) error
}

// errLostReply is the error of a call whose reply was lost. It is neither
// DeadlineExceeded nor Canceled, after which etcd's client repeats a call by itself.
var errLostReply = status.Error(codes.Unavailable, "transport is closing")

// wiredClient returns a client of the cluster c with a wire.
func wiredClient(t testing.TB, c *etcdtest.Cluster, change ...func(*clientv3.Config)) (*clientv3.Client, *wire) {
	w := &wire{calls: map[string]int{}}
	client := c.Client(t, etcdtest.WithClientConfig(func(cfg *clientv3.Config) {
		cfg.DialOptions = append(cfg.DialOptions,
			grpc.WithChainUnaryInterceptor(w.interceptUnary), grpc.WithChainStreamInterceptor(w.interceptStream))
		for _, f := range change {
			f(cfg)
		}
	}))
	return client, w
}

func (w *wire) interceptUnary(ctx context.Context, fullMethod string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	send := func(ctx context.Context) error { return invoker(ctx, fullMethod, req, reply, cc, opts...) }
	method := path.Base(fullMethod)
	reads := rangesOf(req)
	if len(reads) > 0 {
		method = "Range"
	}
	w.mu.Lock()
	w.calls[method]++
	hook := w.unary
	w.mu.Unlock()
	if hook == nil {
		hook = func(ctx context.Context, _ string, _ any, send func(context.Context) error) error { return send(ctx) }
	}
	err := hook(ctx, method, req, send)
	if len(reads) > 0 && reads[0].Revision > 0 && err != nil {
		// The member has not reached the revision, or is too busy, which happens on a
		// busy machine. The linearizable read that replaces this one counts instead.
		w.mu.Lock()
		w.calls[method]--
		w.mu.Unlock()
	}
	return err
}

// rangesOf returns the reads of a request, or none if the request does anything else.
func rangesOf(req any) (reads []*pb.RangeRequest) {
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

func (w *wire) interceptStream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
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
	w      *wire
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

// onUnary sets the hook; nil removes it.
func (w *wire) onUnary(f func(ctx context.Context, method string, req any, send func(context.Context) error) error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.unary = f
}

func (w *wire) onRecv(f func(method string, msg any) (bool, error)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.recv = f
}

func (w *wire) onStream(f func(ctx context.Context, method string) error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stream = f
}

// once replaces the next call of method by f, and only that call. The channel is closed
// when f has returned.
func (w *wire) once(method string, f func(ctx context.Context, send func(context.Context) error) error) <-chan struct{} {
	done := make(chan struct{})
	w.onUnary(func(ctx context.Context, m string, _ any, send func(context.Context) error) error {
		if m != method {
			return send(ctx)
		}
		w.onUnary(nil)
		defer close(done)
		return f(ctx, send)
	})
	return done
}

// loseReply executes the next call of method, but drops its reply.
func (w *wire) loseReply(method string) <-chan struct{} {
	return w.once(method, func(ctx context.Context, send func(context.Context) error) error {
		if err := send(ctx); err != nil {
			return err
		}
		return errLostReply
	})
}

// reset sets the counts to zero.
func (w *wire) reset() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls, w.watches = map[string]int{}, nil
}

// counts returns a copy of the counts, and the requests for watches.
func (w *wire) counts() (calls map[string]int, watches []*pb.WatchCreateRequest) {
	w.mu.Lock()
	defer w.mu.Unlock()
	calls = map[string]int{}
	for m, n := range w.calls {
		calls[m] = n
	}
	return calls, append(watches, w.watches...)
}

package etcdtest

import (
	"context"
	"fmt"
	"path"
	"slices"
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/protoadapt"
)

// A Tap intercepts the calls of one or more clients, between etcd's client library and
// gRPC. It counts calls, makes chosen calls fail, and changes the messages of the Watch
// and LeaseKeepAlive streams. It is a [ClientOption]; use [Tap.DialOptions] for a client
// that is made in another way.
//
// Methods are named as in etcd's API, without the service: Range, Put, DeleteRange, Txn,
// Compact, LeaseGrant, LeaseRevoke, Watch and so on. An unknown name panics. A Tap sees
// every attempt of a call, because etcd's client retries above it. The client repeats
// reads, LeaseGrant and LeaseRevoke after the status Unavailable, and any call after
// DeadlineExceeded or Canceled. It does not repeat Txn, Put and DeleteRange after
// Unavailable.
//
// A Tap is safe for concurrent use.
type Tap struct {
	mu      sync.Mutex
	rules   []*rule
	calls   map[string]int
	creates []*pb.WatchCreateRequest
	hooks   hooks
}

// A rule applies a fault to the n-th call of a method from now on, or to every call.
type rule struct {
	method string
	key    string // that the request names; "" is any
	every  bool
	n      int // calls left until the fault applies; not used if every
	fault  Fault
	done   chan struct{} // closed when the fault has returned; nil if every
}

// NewTap returns a Tap that changes nothing yet.
func NewTap() *Tap { return &Tap{calls: map[string]int{}} }

// DialOptions returns the options for clientv3.Config.DialOptions.
func (t *Tap) DialOptions() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(t.unary),
		grpc.WithChainStreamInterceptor(t.stream),
	}
}

func (t *Tap) applyClient(c *clientv3.Config) {
	c.DialOptions = append(c.DialOptions, t.DialOptions()...)
}

// Next applies f to the next call of method. The returned channel is closed when f has
// returned.
func (t *Tap) Next(method string, f Fault) <-chan struct{} { return t.Nth(method, 1, f) }

// Nth applies f to the n-th call of method from now on, where 1 is the next call. The
// returned channel is closed when f has returned. If several faults are due at the same
// call, the one that was set first applies; the others apply to the calls after it.
func (t *Tap) Nth(method string, n int, f Fault) <-chan struct{} {
	if n < 1 {
		panic(fmt.Sprintf("etcdtest: the %d-th call", n))
	}
	r := &rule{method: checkUnary(method), n: n, fault: f, done: make(chan struct{})}
	t.add(r)
	return r.done
}

// NextKey applies f to the next call of method whose request names key, in an operation or a comparison, also of a txn
// inside of a txn; of a range its first key counts. So NextKey finds the caller's own Txn among the Txns of the caller's
// locks. The returned channel is closed when f has returned.
func (t *Tap) NextKey(method, key string, f Fault) <-chan struct{} {
	r := &rule{method: checkUnary(method), key: key, n: 1, fault: f, done: make(chan struct{})}
	t.add(r)
	return r.done
}

// Every applies f to every call of method until stop is called, except to calls for
// which a fault set by Next or Nth is due.
func (t *Tap) Every(method string, f Fault) (stop func()) {
	r := &rule{method: checkUnary(method), every: true, fault: f}
	t.add(r)
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.removeLocked(r)
	}
}

// Clear removes all faults and hooks. It keeps the counts and does not affect calls in
// flight. If it removes a fault that has not been applied, the channel of that fault is
// never closed.
func (t *Tap) Clear() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rules, t.hooks = nil, hooks{}
}

// Calls returns how many calls of the given methods have begun since the Tap was made.
// Each attempt counts. Without methods, it counts the calls of all unary methods. For
// Watch and LeaseKeepAlive it counts streams.
func (t *Tap) Calls(methods ...string) int {
	for _, m := range methods {
		if !streaming[m] {
			checkUnary(m)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	sum := 0
	for m, n := range t.calls {
		if len(methods) == 0 && !streaming[m] || slices.Contains(methods, m) {
			sum += n
		}
	}
	return sum
}

// WatchCreates returns all requests to create a watcher in the order in which the client
// sent them, including those that it repeated on a new stream.
func (t *Tap) WatchCreates() []*pb.WatchCreateRequest {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.creates)
}

func (t *Tap) add(r *rule) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rules = append(t.rules, r)
}

func (t *Tap) unary(ctx context.Context, fullMethod string, req, reply any, cc *grpc.ClientConn,
	invoker grpc.UnaryInvoker, opts ...grpc.CallOption,
) error {
	call := &Call{
		Method:  path.Base(fullMethod),
		Request: req.(protoadapt.MessageV1),
		Reply:   reply.(protoadapt.MessageV1),
		opts:    opts,
	}
	call.invoke = func(ctx context.Context, req, reply any, opts []grpc.CallOption) error {
		return invoker(ctx, fullMethod, req, reply, cc, opts...)
	}
	r := t.due(call.Method, call.Request)
	if r == nil {
		return call.Send(ctx)
	}
	if r.done != nil {
		defer close(r.done)
	}
	return r.fault(ctx, call)
}

// due counts a call and returns the rule that applies to it, or nil.
func (t *Tap) due(method string, req any) *rule {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.calls[method]++
	var nth, every *rule
	for _, r := range t.rules {
		switch {
		case r.method != method, r.key != "" && !names(req, r.key):
		case r.every && every == nil:
			every = r
		case !r.every:
			if r.n--; r.n <= 0 && nth == nil {
				nth = r
			}
		}
	}
	if nth == nil {
		return every
	}
	t.removeLocked(nth)
	return nth
}

// names reports whether a request has that key in an operation or a comparison.
func names(req any, key string) bool {
	switch r := req.(type) {
	case *pb.TxnRequest:
		return slices.ContainsFunc(r.GetCompare(), func(c *pb.Compare) bool { return string(c.Key) == key }) ||
			slices.ContainsFunc(slices.Concat(r.GetSuccess(), r.GetFailure()), func(op *pb.RequestOp) bool {
				return names(op.GetRequestRange(), key) || names(op.GetRequestPut(), key) ||
					names(op.GetRequestDeleteRange(), key) || names(op.GetRequestTxn(), key)
			})
	case interface{ GetKey() []byte }:
		return string(r.GetKey()) == key // nil has none
	}
	return false
}

// removeLocked needs t.mu.
func (t *Tap) removeLocked(r *rule) {
	t.rules = slices.DeleteFunc(t.rules, func(o *rule) bool { return o == r })
}

// unaryMethods and streaming are the sets of methods of etcd's API. Their short names
// are unique across the services.
var unaryMethods, streaming = methods()

// methods asks a gRPC server: only etcd 3.7 exports its service descriptions.
func methods() (unary, streaming map[string]bool) {
	s := grpc.NewServer()
	defer s.Stop()
	pb.RegisterKVServer(s, &pb.UnimplementedKVServer{})
	pb.RegisterWatchServer(s, &pb.UnimplementedWatchServer{})
	pb.RegisterLeaseServer(s, &pb.UnimplementedLeaseServer{})
	pb.RegisterClusterServer(s, &pb.UnimplementedClusterServer{})
	pb.RegisterMaintenanceServer(s, &pb.UnimplementedMaintenanceServer{})
	pb.RegisterAuthServer(s, &pb.UnimplementedAuthServer{})
	unary, streaming = map[string]bool{}, map[string]bool{}
	for _, service := range s.GetServiceInfo() {
		for _, m := range service.Methods {
			if m.IsClientStream || m.IsServerStream {
				streaming[m.Name] = true
			} else {
				unary[m.Name] = true
			}
		}
	}
	return unary, streaming
}

func checkUnary(method string) string {
	if !unaryMethods[method] {
		panic(fmt.Sprintf("etcdtest: etcd has no unary method %q", method))
	}
	return method
}

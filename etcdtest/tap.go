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
	"google.golang.org/protobuf/proto"
)

// A Tap sits inside one or more clients, between etcd's client library and gRPC. It
// counts calls, makes chosen ones fail, and changes the messages of the Watch and
// LeaseKeepAlive streams. It is a [ClientOption]; [Tap.DialOptions] gives it to a
// client made elsewhere.
//
// Methods are named as in etcd's API without the service: Range, Put, DeleteRange,
// Txn, Compact, LeaseGrant, LeaseRevoke, Watch and so on; an unknown name
// panics. A Tap sees every attempt, since etcd's client retries around it: it
// repeats reads, LeaseGrant and LeaseRevoke after a status Unavailable, and anything
// after DeadlineExceeded or Canceled; Txn, Put and DeleteRange after Unavailable
// it does not.
//
// A Tap is safe for concurrent use.
type Tap struct {
	mu      sync.Mutex
	rules   []*rule
	calls   map[string]int
	creates []*pb.WatchCreateRequest
	hooks   hooks
}

// A rule applies a fault to the n-th call of a method from now, or to each.
type rule struct {
	method string
	every  bool
	n      int // calls until then; unless every
	fault  Fault
	done   chan struct{} // closed when the fault has returned; unless every
}

// NewTap returns a Tap that changes nothing yet.
func NewTap() *Tap { return &Tap{calls: map[string]int{}} }

// DialOptions returns what clientv3.Config.DialOptions needs.
func (t *Tap) DialOptions() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(t.unary),
		grpc.WithChainStreamInterceptor(t.stream),
	}
}

func (t *Tap) applyClient(c *clientv3.Config) {
	c.DialOptions = append(c.DialOptions, t.DialOptions()...)
}

// Next applies f to the next call of method. The channel is closed when f has
// returned.
func (t *Tap) Next(method string, f Fault) <-chan struct{} { return t.Nth(method, 1, f) }

// Nth applies f to the n-th call of method from now on; 1 is the next one. The channel is
// closed when f has returned. When several are due at one call, the one that was set
// first is applied, and the others wait for the calls that follow.
func (t *Tap) Nth(method string, n int, f Fault) <-chan struct{} {
	if n < 1 {
		panic(fmt.Sprintf("etcdtest: the %d-th call", n))
	}
	r := &rule{method: checkUnary(method), n: n, fault: f, done: make(chan struct{})}
	t.add(r)
	return r.done
}

// Every applies f to each call of method until stop is called, except to those for which a
// fault by Next or Nth is due.
func (t *Tap) Every(method string, f Fault) (stop func()) {
	r := &rule{method: checkUnary(method), every: true, fault: f}
	t.add(r)
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.removeLocked(r)
	}
}

// Clear removes all faults and hooks. The counts stay, and calls under way are not
// affected. The channel of a fault that it removes before its call came is never closed.
func (t *Tap) Clear() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rules, t.hooks = nil, hooks{}
}

// Calls returns how many calls of the methods have begun since the Tap was made, every
// attempt counted; without methods, of all unary methods. For Watch and
// LeaseKeepAlive it counts the streams.
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

// WatchCreates returns all requests to create a watcher, in the order in which the client
// sent them; those that it repeats on a new stream as well.
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
		Request: req.(proto.Message),
		Reply:   reply.(proto.Message),
		opts:    opts,
	}
	call.invoke = func(ctx context.Context, req, reply proto.Message, opts []grpc.CallOption) error {
		return invoker(ctx, fullMethod, req, reply, cc, opts...)
	}
	r := t.due(call.Method)
	if r == nil {
		return call.Send(ctx)
	}
	if r.done != nil {
		defer close(r.done)
	}
	return r.fault(ctx, call)
}

// due counts a call, and returns the rule that applies to it, or nil.
func (t *Tap) due(method string) *rule {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.calls[method]++
	var nth, every *rule
	for _, r := range t.rules {
		switch {
		case r.method != method:
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

// removeLocked needs t.mu.
func (t *Tap) removeLocked(r *rule) {
	t.rules = slices.DeleteFunc(t.rules, func(o *rule) bool { return o == r })
}

// unaryMethods and streaming hold the methods of etcd's API by their short names, which
// are unique.
var unaryMethods, streaming = methods()

func methods() (unary, streaming map[string]bool) {
	unary, streaming = map[string]bool{}, map[string]bool{}
	for _, service := range []grpc.ServiceDesc{
		pb.KV_ServiceDesc, pb.Watch_ServiceDesc, pb.Lease_ServiceDesc,
		pb.Cluster_ServiceDesc, pb.Maintenance_ServiceDesc, pb.Auth_ServiceDesc,
	} {
		for _, m := range service.Methods {
			unary[m.MethodName] = true
		}
		for _, s := range service.Streams {
			streaming[s.StreamName] = true
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

package etcdtest

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// ErrTransport is what a client gets when its connection breaks during a call: the call
// may have been executed or not. etcd's client passes it on for Txn, Put, DeleteRange
// and Compact; reads, LeaseGrant and LeaseRevoke it repeats.
var ErrTransport = status.Error(codes.Unavailable, "transport is closing")

// A Call is one attempt of a unary call.
type Call struct {
	Method  string        // such as "Txn"
	Request proto.Message // such as *etcdserverpb.TxnRequest
	Reply   proto.Message // such as *etcdserverpb.TxnResponse; filled by Send

	opts   []grpc.CallOption
	invoke func(ctx context.Context, req, reply proto.Message, opts []grpc.CallOption) error
}

// Send sends the request, and waits for the reply.
func (c *Call) Send(ctx context.Context) error {
	return c.invoke(ctx, c.Request, c.Reply, c.opts)
}

// A Fault stands in for a call: what it returns is what the client gets. It may send
// the call or not, and do whatever else it likes before and after:
//
//	tap.Next("Range", func(ctx context.Context, c *etcdtest.Call) error {
//		err := c.Send(ctx)
//		cluster.Compact(ctx) // between the reply and its delivery
//		return err
//	})
type Fault func(ctx context.Context, c *Call) error

// DropReply is a [Fault]: the call is executed, but the client gets [ErrTransport].
func DropReply(ctx context.Context, c *Call) error {
	if err := c.Send(ctx); err != nil && ctx.Err() != nil {
		return err // the caller has left by itself
	}
	return ErrTransport
}

// FailBefore is a [Fault]: the call is not sent, and the client gets [ErrTransport].
func FailBefore(context.Context, *Call) error { return ErrTransport }

// Before returns a [Fault] that calls f, and then sends the call.
func Before(f func()) Fault {
	return func(ctx context.Context, c *Call) error {
		f()
		return c.Send(ctx)
	}
}

// After returns a [Fault] that sends the call, and calls f before the client gets the
// reply.
func After(f func()) Fault {
	return func(ctx context.Context, c *Call) error {
		err := c.Send(ctx)
		f()
		return err
	}
}

// A Postponed is a call that is sent later than the client believes, maybe only after
// the client gave it up: a request that was stuck in the network.
type Postponed struct {
	caught chan struct{} // closed when the call is there; then call and ctx are set
	call   *Call
	ctx    context.Context // the caller's, without its end

	send chan struct{} // capacity 1: the right to send
	done chan struct{} // closed when the reply is there; then err is set
	err  error
}

// Postpone catches the n-th call of method from now on, until Send sends it. The caller
// waits for the reply as long as its ctx allows.
func (t *Tap) Postpone(method string, n int) *Postponed {
	p := &Postponed{
		caught: make(chan struct{}),
		send:   make(chan struct{}, 1),
		done:   make(chan struct{}),
	}
	p.send <- struct{}{}
	t.Nth(method, n, p.fault)
	return p
}

// Caught is closed when the call has been caught.
func (p *Postponed) Caught() <-chan struct{} { return p.caught }

// Send waits for the call to be caught, sends it, and returns what the server
// answered: nil means that it was executed. It doesn't matter whether the caller still
// waits, but the client must be open. Send sends once; again, it returns the same.
func (p *Postponed) Send(ctx context.Context) error {
	select {
	case <-p.caught:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case <-p.send:
		cctx, cancel := context.WithCancel(p.ctx)
		stop := context.AfterFunc(ctx, cancel)
		p.err = p.call.Send(cctx)
		stop()
		cancel()
		close(p.done)
	case <-p.done:
	case <-ctx.Done():
		return ctx.Err()
	}
	return p.err
}

func (p *Postponed) fault(ctx context.Context, c *Call) error {
	p.call, p.ctx = c.detach(), context.WithoutCancel(ctx)
	close(p.caught)
	select {
	case <-p.done:
		proto.Merge(c.Reply, p.call.Reply)
		return p.err
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}

// detach returns a copy of the call that shares nothing with the caller, who may have
// returned when it is sent.
func (c *Call) detach() *Call {
	d := &Call{
		Method:  c.Method,
		Request: proto.Clone(c.Request),
		Reply:   c.Reply.ProtoReflect().New().Interface(),
		invoke:  c.invoke,
	}
	for _, o := range c.opts {
		switch o.(type) {
		case grpc.HeaderCallOption, grpc.TrailerCallOption, grpc.PeerCallOption, grpc.OnFinishCallOption:
			// They write to variables of the caller.
		default:
			d.opts = append(d.opts, o)
		}
	}
	return d
}

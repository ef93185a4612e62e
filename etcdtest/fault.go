package etcdtest

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
)

// ErrTransport is the error that a client gets when its connection breaks during a call.
// The server may have executed the call or not. etcd's client returns the error for Txn,
// Put, DeleteRange and Compact; it repeats reads, LeaseGrant and LeaseRevoke.
var ErrTransport = status.Error(codes.Unavailable, "transport is closing")

// A Call is one attempt of a unary call. Its messages have the methods that the messages of etcd 3.6 and of etcd 3.7 have
// in common; protoadapt.MessageV2Of makes a proto.Message of either.
type Call struct {
	Method  string               // such as "Txn"
	Request protoadapt.MessageV1 // such as *etcdserverpb.TxnRequest
	Reply   protoadapt.MessageV1 // such as *etcdserverpb.TxnResponse; filled by Send

	opts   []grpc.CallOption
	invoke func(ctx context.Context, req, reply any, opts []grpc.CallOption) error
}

// Send sends the request, and waits for the reply.
func (c *Call) Send(ctx context.Context) error {
	return c.invoke(ctx, c.Request, c.Reply, c.opts)
}

// A Fault runs in place of a call, and the client gets the error that the Fault returns.
// The Fault decides whether to send the call, and may do other things before and after:
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
		return err // the caller's ctx has ended
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

// A Postponed is a call that is held back after the client has made it, possibly until
// after the client has given up: like a request that is stuck in the network.
type Postponed struct {
	caught chan struct{} // closed when the call was caught; call and ctx are then set
	call   *Call
	ctx    context.Context // the caller's, without its cancellation

	send chan struct{} // capacity 1; a goroutine that receives from it may send the call
	done chan struct{} // closed when the reply has arrived; err is then set
	err  error
}

// Postpone catches the n-th call of method from now on, and holds it until Send sends
// it. The caller of the method waits for the reply as long as its ctx allows.
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

// Send waits until the call is caught, sends it, and returns the server's answer; nil
// means that the call was executed. The original caller may have returned by then, but
// the client must still be open. A second Send does not send the call again; it returns
// the result of the first.
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
		proto.Merge(protoadapt.MessageV2Of(c.Reply), protoadapt.MessageV2Of(p.call.Reply))
		return p.err
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}

// detach returns a copy of the call that shares no memory with the caller, which may
// have returned before the copy is sent.
func (c *Call) detach() *Call {
	d := &Call{
		Method:  c.Method,
		Request: clone(c.Request),
		Reply:   clone(c.Reply),
		invoke:  c.invoke,
	}
	for _, o := range c.opts {
		switch o.(type) {
		case grpc.HeaderCallOption, grpc.TrailerCallOption, grpc.PeerCallOption, grpc.OnFinishCallOption:
			// These options write to variables of the caller.
		default:
			d.opts = append(d.opts, o)
		}
	}
	return d
}

// clone copies a message of etcd 3.6 or 3.7.
func clone[M protoadapt.MessageV1](m M) M {
	return protoadapt.MessageV1Of(proto.Clone(protoadapt.MessageV2Of(m))).(M)
}

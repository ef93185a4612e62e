// Waking a connection that gRPC lets rest after an outage.

package etcd

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"reflect"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// After an outage, gRPC pauses between two attempts to connect for as long as the outage has lasted, up to
// two minutes, and the user of a client would learn that much later that etcd is back. So a Client wakes its
// connection while a user of it has no answer: gRPC then tries to connect at once. At rest it does nothing.

const (
	// wakeMin and wakeJitter bound the pause between two wakes: at most twice a second, and not at the same
	// moment as the other processes that have lost the same etcd.
	wakeMin    = 500 * time.Millisecond
	wakeJitter = 100 * time.Millisecond
	// lastChance is how long before the deadline the client is woken in any case, so that a renewal in
	// flight is answered in time if etcd is back by then.
	lastChance = 200 * time.Millisecond
)

// A waker is what the stalls of one Client share.
type waker struct {
	reset func() // has gRPC try to connect to all members that it pauses for

	mu    sync.Mutex
	open  int         // stalls that are open
	timer *time.Timer // of the next wake, nil before the first
	next  time.Time   // no wake comes before that
}

// resetBackoff has gRPC try to connect at once to all members that it pauses for. Nothing else ends the pause: Connect does
// not, nor does SetEndpoints with the same endpoints, and Client.Dial makes another connection.
//
// ResetConnectBackoff goes through the map of connections without the mutex for it (gRPC 1.71 and 1.83), and the process ends
// if gRPC adds or removes a connection at that moment. gRPC does so when it begins to connect for the first time, when there is
// no pause yet, and within a call of SetEndpoints. So resetBackoff and SetEndpoints wait for each other, by clientv3's mutex.
func resetBackoff(client *clientv3.Client) {
	conn := client.ActiveConnection()
	if conn == nil {
		return
	}
	if mu := endpointsMutex(client); mu != nil {
		mu.RLock()
		defer mu.RUnlock()
	}
	if state := conn.GetState().String(); state == "READY" || state == "TRANSIENT_FAILURE" {
		conn.ResetConnectBackoff()
	}
}

// endpointsMutex is what the client holds while it changes its endpoints (clientv3 3.6 and 3.7), which is not exported; nil if
// it has none of that name and type.
func endpointsMutex(client *clientv3.Client) *sync.RWMutex {
	f := reflect.ValueOf(client).Elem().FieldByName("epMu")
	if !f.IsValid() || f.Type() != reflect.TypeFor[*sync.RWMutex]() || f.IsNil() {
		return nil
	}
	return reflect.NewAt(f.Type().Elem(), f.UnsafePointer()).Interface().(*sync.RWMutex)
}

// A Stall is that a user of a Client has no answer. Each is used by one goroutine.
type Stall struct {
	Client *Client
	open   bool
}

// Set opens or closes the stall. It may be called again and again.
func (t *Stall) Set(open bool) {
	if t.open == open {
		return
	}
	t.open = open
	w := &t.Client.waker
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case !open:
		if w.open--; w.open == 0 {
			w.timer.Stop()
		}
	case w.open > 0:
		w.open++
	default:
		w.open++
		pause := t.Client.pause(max(0, time.Until(w.next)))
		if w.timer == nil {
			w.timer = time.AfterFunc(pause, t.Client.wake)
		} else {
			w.timer.Reset(pause)
		}
	}
}

// Stalled reports whether a user of the client has no answer, for tests.
func (c *Client) Stalled() bool {
	c.waker.mu.Lock()
	defer c.waker.mu.Unlock()
	return c.waker.open > 0
}

func (c *Client) wake() {
	w := &c.waker
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.open == 0 || c.Ctx().Err() != nil {
		return
	}
	w.reset()
	w.next = time.Now().Add(wakeMin)
	w.timer.Reset(c.pause(wakeMin))
}

// pause is the time until the next wake: earliest at the least, and chosen so that a wake comes shortly before the
// deadline.
func (c *Client) pause(earliest time.Duration) time.Duration {
	pause := earliest + rand.N(wakeJitter)
	if c.Deadline == nil {
		return pause
	}
	if last := time.Until(c.Deadline()) - lastChance; last >= earliest && last < pause+wakeMin {
		return last
	}
	return pause
}

// Connected reports whether the client has a connection to at least one member. It makes no request.
func (c *Client) Connected() bool {
	conn := c.ActiveConnection()
	return conn == nil || conn.GetState().String() == "READY" // by name: the library does not import gRPC
}

// awaitConnection blocks until the client is connected, or ctx ends. It makes no request, and gRPC leaves a connection idle
// until there is a request, so awaitConnection gives up after limit.
func (c *Client) awaitConnection(ctx context.Context, limit time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	defer context.AfterFunc(c.Ctx(), cancel)()
	for conn := c.ActiveConnection(); ctx.Err() == nil && !c.Connected(); {
		if state := conn.GetState(); state.String() != "READY" {
			conn.WaitForStateChange(ctx, state)
		}
	}
}

// AwaitConnection blocks until the client is connected, for a request that must not be sent without a connection: clientv3 would
// not tell whether it was. It returns ctx's error if ctx ends before, or that the client is closed.
func (c *Client) AwaitConnection(ctx context.Context) error {
	for !c.Connected() {
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case c.Ctx().Err() != nil:
			return ErrClientClosed
		}
		c.ActiveConnection().Connect() // gRPC leaves a connection idle until there is a request
		c.awaitConnection(ctx, attemptMax)
	}
	return nil
}

// CtxError is [CtxError] of a request or a wait. If there is no connection, the error says so, and why: clientv3 lets requests
// wait for a connection, and does not tell watches that there is none. The caller has no time left to learn more.
func (c *Client) CtxError(ctx context.Context, last error) error {
	return CtxError(ctx, cmp.Or(c.ConnectionError(20*time.Millisecond), last))
}

// ConnectionError says why the client has no connection. It is nil if it has one or gets one within that time.
func (c *Client) ConnectionError(within time.Duration) error {
	if c.Connected() {
		return nil
	}
	ctx, cancel := context.WithTimeout(c.Ctx(), within)
	defer cancel()
	// It is not sent without a connection, and without a message etcd has nothing to do.
	_, err := pb.NewLeaseClient(c.ActiveConnection()).LeaseKeepAlive(ctx)
	if err = RequestError(ctx, err); errors.Is(err, errNoConnection) {
		return err
	}
	return nil
}

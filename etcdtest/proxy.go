package etcdtest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// A Direction is one half of a connection, or both.
type Direction int

// The directions in which bytes go through a [Proxy].
const (
	ToServer Direction = 1 << iota
	ToClient
	Both = ToServer | ToClient
)

// A Proxy is a TCP proxy between one client and some members that can disturb their
// traffic. It is a [ClientOption]: a client that is made with a Proxy connects through
// it. With one Proxy for each member, the client's connections to the members can fail
// independently.
//
// Each method takes effect for all bytes that are sent after it has returned, on
// existing and on new connections. A Proxy is safe for concurrent use.
type Proxy struct {
	listeners []net.Listener
	endpoints []string
	wg        sync.WaitGroup // the accept loops, and the pumps of each link
	dial      func(address string) (net.Conn, error)
	stopDials func()

	mu     sync.Mutex
	flows  map[Direction]*flow // of ToServer and of ToClient
	refuse bool
	closed bool
	links  map[*link]struct{}
}

// A flow is what happens to the bytes of one direction.
type flow struct {
	mode  flowMode
	delay time.Duration
}

type flowMode int

const (
	forward flowMode = iota // pass on, after the delay
	hold                    // keep until the mode changes
	discard                 // read and drop
)

// Proxy starts a proxy to the members with the given indices, or to all members if none
// is given. It is closed when the test ends.
func (c *Cluster) Proxy(tb testing.TB, members ...int) *Proxy {
	tb.Helper()
	p, err := c.NewProxy(members...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(p.Close)
	return p
}

// NewProxy is [Cluster.Proxy] for code that has no [testing.TB]. The caller must close
// the proxy.
func (c *Cluster) NewProxy(members ...int) (*Proxy, error) {
	ctx, cancel := context.WithCancel(context.Background())
	p := &Proxy{
		dial: func(address string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", address)
		},
		stopDials: cancel,
		flows:     map[Direction]*flow{ToServer: {}, ToClient: {}},
		links:     map[*link]struct{}{},
	}
	if len(members) == 0 {
		for i := range c.members {
			members = append(members, i)
		}
	}
	for _, i := range members {
		if err := p.listen(c.members[i].Endpoint()); err != nil {
			p.Close()
			return nil, fmt.Errorf("etcdtest: proxy: %w", err)
		}
	}
	return p, nil
}

func (p *Proxy) listen(endpoint string) error {
	u, err := url.Parse(endpoint)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	p.listeners = append(p.listeners, l)
	p.endpoints = append(p.endpoints, u.Scheme+"://"+l.Addr().String())
	p.wg.Go(func() { p.accept(l, u.Host) })
	return nil
}

func (p *Proxy) applyClient(c *clientv3.Config) { c.Endpoints = append(c.Endpoints, p.endpoints...) }

// Endpoints returns the proxy's own URLs, in the order of the members.
func (p *Proxy) Endpoints() []string { return append([]string(nil), p.endpoints...) }

// Blackhole reads and discards the bytes of direction d, including those held back, like
// a peer that has vanished. Even the end of a connection is not passed on. Discarded bytes
// are lost for good, so Heal resets the connections that have lost some.
func (p *Proxy) Blackhole(d Direction) { p.change(d, func(f *flow) { f.mode = discard }) }

// Hold holds back the bytes of direction d until Release or Heal sends them on in order,
// like a network that stalls without loss.
func (p *Proxy) Hold(d Direction) { p.change(d, func(f *flow) { f.mode = hold }) }

// Release undoes Hold for direction d: the bytes held back are sent on.
func (p *Proxy) Release(d Direction) {
	p.change(d, func(f *flow) {
		if f.mode == hold {
			f.mode = forward
		}
	})
}

// Delay delays each byte of direction d by delay.
func (p *Proxy) Delay(d Direction, delay time.Duration) {
	p.change(d, func(f *flow) { f.delay = delay })
}

// Reset breaks all connections with a reset (RST) at both ends. A client may connect
// again.
func (p *Proxy) Reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.resetLocked(func(*link) bool { return true })
}

// Refuse resets each new connection until Accept or Heal. Existing connections stay. A
// gRPC client tries again after about one second, and then at growing intervals.
func (p *Proxy) Refuse() { p.setRefuse(true) }

// Accept undoes Refuse.
func (p *Proxy) Accept() { p.setRefuse(false) }

// Heal undoes all faults: held bytes are sent on, and connections that lost bytes to
// Blackhole are reset.
func (p *Proxy) Heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse = false
	for _, f := range p.flows {
		*f = flow{}
	}
	p.resetLocked(func(l *link) bool { return l.lossy })
	p.changedLocked()
}

// Pending returns the number of bytes of direction d that are held back or delayed.
func (p *Proxy) Pending(d Direction) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for l := range p.links {
		for _, m := range l.pumps {
			if m.dir&d != 0 {
				n += m.pendingLocked()
			}
		}
	}
	return n
}

// Connections returns the number of open connections.
func (p *Proxy) Connections() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.links)
}

// Close resets all connections and stops listening. It is idempotent.
func (p *Proxy) Close() {
	p.mu.Lock()
	p.closed = true
	p.resetLocked(func(*link) bool { return true })
	p.mu.Unlock()
	p.stopDials() // an attached server may never answer
	for _, l := range p.listeners {
		_ = l.Close()
	}
	p.wg.Wait()
}

func (p *Proxy) setRefuse(refuse bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse = refuse
}

func (p *Proxy) change(d Direction, f func(*flow)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for dir, fl := range p.flows {
		if dir&d != 0 {
			f(fl)
		}
	}
	p.changedLocked()
}

func (p *Proxy) changedLocked() {
	for l := range p.links {
		for _, m := range l.pumps {
			m.discardLocked()
			m.notify()
		}
	}
}

func (p *Proxy) resetLocked(which func(*link) bool) {
	for l := range p.links {
		if which(l) {
			l.resetLocked()
		}
	}
}

func (p *Proxy) accept(l net.Listener, server string) {
	for {
		conn, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // the client gave up before its connection was accepted
		}
		p.wg.Go(func() { p.connect(conn.(*net.TCPConn), server) })
	}
}

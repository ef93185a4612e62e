package server

import (
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// A Delay is the time by which bytes are delayed, in either direction. It may be
// changed while connections are open.
type Delay struct{ ns atomic.Int64 }

// NewDelay returns a delay of d.
func NewDelay(d time.Duration) *Delay {
	delay := &Delay{}
	delay.Set(d)
	return delay
}

// Set changes the delay for the bytes that are sent from now on.
func (d *Delay) Set(to time.Duration) { d.ns.Store(int64(to)) }

// A DelayProxy forwards TCP connections with a delay.
type DelayProxy struct {
	listener net.Listener
	delay    *Delay
	mu       sync.Mutex
	conns    map[net.Conn]struct{} // nil once closed
	wg       sync.WaitGroup
}

// Proxy starts a proxy to the server at addr.
func Proxy(addr string, delay *Delay) (*DelayProxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &DelayProxy{listener: l, delay: delay, conns: make(map[net.Conn]struct{})}
	p.wg.Go(func() { // ends with the listener
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", addr)
			if err != nil {
				_ = in.Close() // the server is not up yet: the client must see that
				continue
			}
			p.join(in, out)
		}
	})
	return p, nil
}

// Addr returns the address on which the proxy listens.
func (p *DelayProxy) Addr() string { return p.listener.Addr().String() }

// Close ends all connections.
func (p *DelayProxy) Close() error {
	err := p.listener.Close()
	p.mu.Lock()
	for c := range p.conns {
		err = errors.Join(err, ignoreClosed(c.Close()))
	}
	p.conns = nil
	p.mu.Unlock()
	p.wg.Wait()
	return err
}

func (p *DelayProxy) join(a, b net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conns == nil {
		_, _ = a.Close(), b.Close() // the proxy was closed meanwhile
		return
	}
	p.conns[a], p.conns[b] = struct{}{}, struct{}{}
	p.wg.Go(func() { p.pump(a, b) })
	p.wg.Go(func() { p.pump(b, a) })
}

// pump moves bytes until either side is closed, and then closes the other side.
func (p *DelayProxy) pump(from, to net.Conn) {
	type late struct {
		due   time.Time
		bytes []byte
	}
	queue := make(chan late, 4096)
	p.wg.Go(func() { // ends with from
		defer close(queue)
		for {
			buf := make([]byte, 16<<10)
			n, err := from.Read(buf)
			if err != nil {
				return
			}
			queue <- late{time.Now().Add(time.Duration(p.delay.ns.Load())), buf[:n]}
		}
	})
	for l := range queue {
		sleepUntil(l.due)
		if _, err := to.Write(l.bytes); err != nil {
			break
		}
	}
	p.mu.Lock()
	delete(p.conns, from)
	delete(p.conns, to)
	p.mu.Unlock()
	_, _ = from.Close(), to.Close() // twice, by both pumps
	for range queue {
		// Drop what can't be delivered any more; from is closed, so the loop ends.
	}
}

func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// sleepUntil is more precise than time.Sleep, which rounds up to a millisecond when
// the process is idle.
func sleepUntil(t time.Time) {
	for d := time.Until(t); d > 0; d = time.Until(t) {
		ts := syscall.NsecToTimespec(int64(d))
		if err := syscall.Nanosleep(&ts, nil); err != nil && !errors.Is(err, syscall.EINTR) {
			time.Sleep(d)
		}
	}
}

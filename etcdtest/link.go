package etcdtest

import (
	"net"
	"time"
)

// A link is one connection through a [Proxy]: a connection to the client and one to the
// server.
type link struct {
	proxy *Proxy
	conns [2]*net.TCPConn // client, server
	pumps [2]*pump
	done  chan struct{} // closed when the link ends

	// guarded by proxy.mu
	lossy  bool // some of its bytes were discarded
	closed bool
}

// connect serves one accepted connection until it ends.
func (p *Proxy) connect(client *net.TCPConn, server string) {
	conn, err := p.dial(server)
	p.mu.Lock()
	if err != nil || p.refuse || p.closed {
		p.mu.Unlock()
		abort(client)
		if err == nil {
			_ = conn.Close()
		}
		return
	}
	l := &link{proxy: p, conns: [2]*net.TCPConn{client, conn.(*net.TCPConn)}, done: make(chan struct{})}
	l.pumps = [2]*pump{
		newPump(l, ToServer, l.conns[0], l.conns[1]),
		newPump(l, ToClient, l.conns[1], l.conns[0]),
	}
	p.links[l] = struct{}{}
	p.mu.Unlock()
	for _, m := range l.pumps {
		p.wg.Go(m.read)
		p.wg.Go(m.write)
	}
}

// close ends the link after one of its ends has closed its connection.
func (l *link) close() {
	l.proxy.mu.Lock()
	defer l.proxy.mu.Unlock()
	if l.endLocked() {
		for _, c := range l.conns {
			_ = c.Close()
		}
	}
}

// resetLocked ends the link so that both ends get an RST. It needs proxy.mu.
func (l *link) resetLocked() {
	if l.endLocked() {
		for _, c := range l.conns {
			abort(c)
		}
	}
}

// endLocked marks the link as closed, and reports whether it was open. It needs proxy.mu.
func (l *link) endLocked() bool {
	if l.closed {
		return false
	}
	l.closed = true
	close(l.done)
	delete(l.proxy.links, l)
	return true
}

// abort closes a connection with an RST.
func abort(c *net.TCPConn) {
	_ = c.SetLinger(0)
	_ = c.Close()
}

// A pump carries the bytes of one direction of a link. One goroutine reads all bytes as
// they arrive, so the sender never notices a fault; another goroutine writes them when
// the proxy's flow allows it. Both end with the link.
type pump struct {
	link     *link
	dir      Direction
	src, dst *net.TCPConn
	wake     chan struct{} // capacity 1: the queue or the flow has changed

	queue []chunk // guarded by proxy.mu
}

type chunk struct {
	data []byte
	end  bool // the sender closed the connection
	at   time.Time
}

func newPump(l *link, dir Direction, src, dst *net.TCPConn) *pump {
	return &pump{link: l, dir: dir, src: src, dst: dst, wake: make(chan struct{}, 1)}
}

func (m *pump) notify() {
	select {
	case m.wake <- struct{}{}:
	default: // a wake-up is already pending
	}
}

// discardLocked empties the queue if the flow discards its bytes. It needs proxy.mu. It
// runs at each change of the queue or the flow, so that a Heal right after it sees the loss.
func (m *pump) discardLocked() {
	if m.link.proxy.flows[m.dir].mode == discard && len(m.queue) > 0 {
		m.queue, m.link.lossy = nil, true
	}
}

// pendingLocked needs proxy.mu.
func (m *pump) pendingLocked() int {
	n := 0
	for _, c := range m.queue {
		n += len(c.data)
	}
	return n
}

func (m *pump) read() {
	for {
		buf := make([]byte, 16<<10)
		n, err := m.src.Read(buf)
		m.link.proxy.mu.Lock()
		now := time.Now()
		if n > 0 {
			m.queue = append(m.queue, chunk{data: buf[:n], at: now})
		}
		if err != nil {
			m.queue = append(m.queue, chunk{end: true, at: now})
		}
		m.discardLocked()
		m.link.proxy.mu.Unlock()
		m.notify()
		if err != nil {
			return
		}
	}
}

func (m *pump) write() {
	var timer <-chan time.Time
	for {
		c, wait, ok := m.next()
		switch {
		case ok && c.end:
			m.link.close()
			return
		case ok:
			if _, err := m.dst.Write(c.data); err != nil {
				m.link.close()
				return
			}
			continue
		case wait > 0:
			timer = time.After(wait)
		default:
			timer = nil
		}
		select {
		case <-m.wake:
		case <-timer:
		case <-m.link.done:
			return
		}
	}
}

// next takes a chunk that may pass now. If there is none, wait is the time until one may
// pass, or 0 if none may pass before the queue or the flow changes.
func (m *pump) next() (c chunk, wait time.Duration, ok bool) {
	p := m.link.proxy
	p.mu.Lock()
	defer p.mu.Unlock()
	f := p.flows[m.dir]
	if f.mode != forward || len(m.queue) == 0 {
		return chunk{}, 0, false
	}
	if wait := time.Until(m.queue[0].at.Add(f.delay)); wait > 0 {
		return chunk{}, wait, false
	}
	c = m.queue[0]
	m.queue = m.queue[1:]
	return c, 0, true
}

package server

import (
	"io"
	"net"
	"testing"
	"time"
)

// TestProxy: bytes arrive unchanged and late, in both directions.
func TestProxy(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		if c, err := l.Accept(); err == nil {
			_, _ = io.Copy(c, c)
		}
	}()
	const delay = 20 * time.Millisecond
	p, err := Proxy(l.Addr().String(), NewDelay(delay))
	if err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	if _, err := c.Write([]byte("there and back")); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, len("there and back"))
	if _, err := io.ReadFull(c, buf); err != nil {
		t.Fatal(err)
	}
	if string(buf) != "there and back" {
		t.Errorf("got %q", buf)
	}
	if took := time.Since(start); took < 2*delay {
		t.Errorf("there and back in %v", took)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if _, err := c.Read(buf); err == nil {
		t.Error("the connection outlives the proxy")
	}
}

// Package loopback finds addresses for the servers that tests and benchmarks start.
package loopback

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

// Ports are below the ranges from which operating systems assign ports to outgoing
// connections and to listeners on port 0. From those ranges, any process could be given a
// port before the server listens on it, or while the server restarts.
//
// FreeAddrs gives out ports in order: if it chose them at random, about one in some
// thousand would be chosen again before its server listens. Each process has its own band
// of ports, because tests of several packages run side by side.
const (
	from, bands, band = 12000, 80, 250
)

var ports struct {
	sync.Mutex
	first int          // the first port of this process's band
	guard net.Listener // listens on the first port while the process lives, so that others see that the band is taken
	given int          // how many ports were given out
	kept  map[string]bool
}

// FreeAddrs returns n different addresses on which nothing listens, and which it has not
// returned lately in this process. It returns no address that is kept: see [Keep].
func FreeAddrs(n int) ([]string, error) {
	ports.Lock()
	defer ports.Unlock()
	if ports.guard == nil {
		takeBand()
	}
	var addrs []string
	var err error
	for range band - 1 {
		addr := local(ports.first + 1 + ports.given%(band-1))
		ports.given++
		if ports.kept[addr] {
			continue
		}
		var l net.Listener
		if l, err = net.Listen("tcp", addr); err != nil {
			continue // the port is taken
		}
		_ = l.Close()
		if addrs = append(addrs, addr); len(addrs) == n {
			return addrs, nil
		}
	}
	return nil, fmt.Errorf("no %d free ports: %w", n, err)
}

// Keep keeps addresses of FreeAddrs until release is called, also while nothing listens on them. Without it, another
// server of this process could get the address of a server that was stopped.
func Keep(addrs []string) (release func()) {
	set := func(kept bool) {
		ports.Lock()
		defer ports.Unlock()
		if ports.kept == nil {
			ports.kept = map[string]bool{}
		}
		for _, addr := range addrs {
			if kept {
				ports.kept[addr] = true
			} else {
				delete(ports.kept, addr)
			}
		}
	}
	set(true)
	return func() { set(false) }
}

// takeBand takes a band that no other process has. If there is none, this process shares
// a band until the next call of FreeAddrs.
func takeBand() {
	var err error
	for _, i := range rand.Perm(bands) {
		ports.first = from + i*band
		if ports.guard, err = net.Listen("tcp", local(ports.first)); err == nil {
			return
		}
	}
}

func local(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// Package loopback finds addresses for the servers that tests and benchmarks start.
package loopback

import (
	"errors"
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
// thousand would be chosen again before its server listens. Each process has its own bands
// of ports, because tests of several packages run side by side: one, and another one when all
// ports are in use, as by 125 servers of etcd on a machine of many processors.
const (
	from, bands, band = 12000, 80, 250
)

var ports struct {
	sync.Mutex
	firsts []int          // the first ports of this process's bands
	guards []net.Listener // each listens on a first port while the process lives, so that others see that the band is taken
	given  int            // how many ports were given out
	kept   map[string]bool
}

// FreeAddrs returns n different addresses on which nothing listens, and which it has not
// returned lately in this process. It returns no address that is kept: see [Keep].
func FreeAddrs(n int) ([]string, error) {
	ports.Lock()
	defer ports.Unlock()
	for {
		addrs, err := freeIn(ports.firsts, n)
		switch {
		case err == nil:
			return addrs, nil
		case takeBand():
		case len(ports.firsts) > 0:
			return nil, err
		default: // there is none, so this process shares a band until the next call
			return freeIn([]int{from + rand.IntN(bands)*band}, n)
		}
	}
}

// freeIn is FreeAddrs for the bands that begin with these ports.
func freeIn(firsts []int, n int) (addrs []string, err error) {
	err = errors.New("all are in use")
	for range len(firsts) * (band - 1) {
		i := ports.given % (len(firsts) * (band - 1))
		ports.given++
		addr := local(firsts[i/(band-1)] + 1 + i%(band-1))
		if ports.kept[addr] {
			continue
		}
		l, taken := net.Listen("tcp", addr)
		if taken != nil {
			err = taken
			continue
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

// takeBand takes a band that no process has, and reports whether there is one.
func takeBand() bool {
	for _, i := range rand.Perm(bands) {
		first := from + i*band
		if guard, err := net.Listen("tcp", local(first)); err == nil {
			ports.firsts, ports.guards = append(ports.firsts, first), append(ports.guards, guard)
			return true
		}
	}
	return false
}

func local(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// Package loopback finds addresses for the servers that tests and benchmarks start.
package loopback

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

// Ports are below the ranges from which systems give ports to outgoing
// connections and to listeners on port 0: from those, the next connection of any
// process could take a port before its server listens, or while it is restarted.
//
// They are given out in turn: picked at random, one in some thousand would be
// picked again before its server listens. And processes that run side by side,
// as tests of several packages do, have a band of ports each.
const (
	from, bands, band = 12000, 80, 250
)

var ports struct {
	sync.Mutex
	first int          // of this process's band
	guard net.Listener // on the first port, for the life of the process: others see that the band is taken
	given int
}

// FreeAddrs returns n different host:port that nothing listened on a moment ago,
// and that this process was not given lately.
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
		var l net.Listener
		if l, err = net.Listen("tcp", addr); err != nil {
			continue // taken
		}
		_ = l.Close()
		if addrs = append(addrs, addr); len(addrs) == n {
			return addrs, nil
		}
	}
	return nil, fmt.Errorf("no %d free ports: %w", n, err)
}

// takeBand takes a band that no other process has or, if there is none, shares one
// until the next call.
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

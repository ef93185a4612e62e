// Package loopback finds addresses for the servers that tests and benchmarks start.
package loopback

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
)

// FreeAddrs returns n different host:port that nothing listened on a moment ago.
//
// Their ports are below the ranges from which systems give ports to outgoing
// connections and to listeners on port 0: from those, the next connection of any
// process could take a port before its server listens, or while it is restarted.
func FreeAddrs(n int) ([]string, error) {
	const from, to = 12000, 32000
	var addrs []string
	var err error
	for range 100 * n {
		addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(from+rand.IntN(to-from)))
		var l net.Listener
		if l, err = net.Listen("tcp", addr); err != nil {
			continue // taken
		}
		// Open until all are found, so that none is picked twice.
		defer func() { _ = l.Close() }()
		if addrs = append(addrs, addr); len(addrs) == n {
			return addrs, nil
		}
	}
	return nil, fmt.Errorf("no free port: %w", err)
}

// Package loopback finds addresses for the servers that tests and benchmarks start.
package loopback

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync/atomic"
)

// Ports are below the ranges from which systems give ports to outgoing
// connections and to listeners on port 0: from those, the next connection of any
// process could take a port before its server listens, or while it is restarted.
const from, to = 12000, 32000

// next goes round, from anywhere: picked at random, one in some thousand ports
// would be picked again before its server listens.
var next atomic.Int64

func init() { next.Store(rand.Int64N(to - from)) }

// FreeAddrs returns n different host:port that nothing listened on a moment ago,
// and that this process was not given lately.
func FreeAddrs(n int) ([]string, error) {
	var addrs []string
	var err error
	for range 100 * n {
		addr := net.JoinHostPort("127.0.0.1", strconv.FormatInt(from+next.Add(1)%(to-from), 10))
		var l net.Listener
		if l, err = net.Listen("tcp", addr); err != nil {
			continue // taken
		}
		_ = l.Close()
		if addrs = append(addrs, addr); len(addrs) == n {
			return addrs, nil
		}
	}
	return nil, fmt.Errorf("no free port: %w", err)
}

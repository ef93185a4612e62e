// When a request is sent again beside itself.

//go:build !hedgesoon

package etcd

import "time"

const (
	// HedgeMin is many times as long as a commit of etcd takes. A few times HedgeMin fit into the two seconds in which a lock
	// must go from hand to hand.
	HedgeMin = 300 * time.Millisecond
	// hedgeTimes is how many times as long as recent answers a request may take.
	hedgeTimes = 4
)

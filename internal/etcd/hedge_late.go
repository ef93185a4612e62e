// When a request is sent again beside itself.

//go:build !hedgesoon

package etcd

import "time"

const (
	// HedgeMin is many times what etcd needs to commit. A few of it fit into the two seconds in
	// which a lock must go from hand to hand.
	HedgeMin = 300 * time.Millisecond
	// hedgeTimes is how many times as long as answers take lately a request may take.
	hedgeTimes = 4
)

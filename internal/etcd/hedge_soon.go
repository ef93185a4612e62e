// When a request is sent again beside itself, for tests: many are. So a test fails that is right only while etcd answers fast,
// and not once in a thousand runs, when a machine stalls.

//go:build hedgesoon

package etcd

import "time"

const (
	// HedgeMin is as in hedge_late.go.
	HedgeMin   = 5 * time.Millisecond
	hedgeTimes = 1
)

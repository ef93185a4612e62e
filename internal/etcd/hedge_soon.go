// When a request is sent again beside itself, for tests: soon, so that many are. Then a test that is right only while etcd answers
// fast fails each time, and not once in a thousand runs, when a machine stalls.

//go:build hedgesoon

package etcd

import "time"

const (
	// HedgeMin is as in hedge_late.go.
	HedgeMin   = 5 * time.Millisecond
	hedgeTimes = 1
)

//go:build race

package harness

// Race is true in a test binary that was built with the race detector.
const Race = true

// parallel is the minimum number of tests that run at the same time.
const parallel = 0

// waiting is the same, of a package whose tests wait for longer than they compute.
const waiting = 0

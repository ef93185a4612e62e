//go:build race

package harness

// Race is true in a test binary that was built with the race detector.
const Race = true

// parallel is how many tests run at the same time, if they are more than there are processors.
const parallel = 0

// waiting is the same, of a package whose tests wait for longer than they compute.
const waiting = 0

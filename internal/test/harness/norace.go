//go:build !race

package harness

// Race is true in a test binary that was built with the race detector.
const Race = false

// parallel is how many tests run at the same time if the machine has a processor for them. Most parallel tests only wait
// for etcd's clocks, so several can run at once. With the race detector they need so much CPU time
// that too many at once would miss their times.
const parallel = 32

// waiting is the same, of a package whose tests wait for longer than they compute.
const waiting = 48

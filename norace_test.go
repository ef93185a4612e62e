//go:build !race

package etcdlock

// Most tests that run in parallel do nothing but wait for etcd's clocks. With the
// race detector they are work, and late for these clocks if there are too many.
func init() { parallel = 4 }

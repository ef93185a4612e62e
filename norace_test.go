//go:build !race

package etcdlock

// Most parallel tests only wait for etcd's clocks, so several can run at once. With the race
// detector they need so much CPU time that too many at once would miss their times.
func init() { parallel = 4 }

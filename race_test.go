//go:build race

package etcdlock

func init() { sampled = true }

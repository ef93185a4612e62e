package server

import (
	"errors"
	"net"
	"os"
	"path/filepath"

	"github.com/etcdlock/etcdlock/internal/test/loopback"
)

// Redis starts a redis-server. With fsync it appends each write to a file, and syncs
// the file before it answers. Without fsync it writes nothing to the disk, and loses
// all locks when it crashes.
func Redis(fsync bool) (addr string, stop func() error, err error) {
	dir, err := os.MkdirTemp("", "etcdlock-bench-redis-")
	if err != nil {
		return "", nil, err
	}
	addrs, err := loopback.FreeAddrs(1)
	if err != nil {
		return "", nil, err
	}
	host, port, err := net.SplitHostPort(addrs[0])
	if err != nil {
		return "", nil, err
	}
	args := []string{"--bind", host, "--port", port, "--dir", dir, "--save", "", "--appendonly", "no"}
	if fsync {
		args = append(args[:len(args)-1], "yes", "--appendfsync", "always")
	}
	_, kill, err := start(filepath.Join(dir, "log"), "redis-server", args...)
	if err != nil {
		return "", nil, errors.Join(err, os.RemoveAll(dir))
	}
	stop = func() error { return errors.Join(kill(), os.RemoveAll(dir)) }
	if err := listens(addrs[0]); err != nil {
		return "", nil, errors.Join(err, stop())
	}
	return addrs[0], stop, nil
}

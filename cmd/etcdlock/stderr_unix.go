//go:build unix

package main

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// stderrFull reports whether a write to standard error would wait for a reader.
func stderrFull() bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(syscall.Stderr), Events: unix.POLLOUT}}, 0)
	return n == 0 && err == nil
}

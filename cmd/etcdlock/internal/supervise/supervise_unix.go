//go:build unix && !linux

package supervise

import "syscall"

// dieWithParent is for Linux only; elsewhere there is the guard alone.
func dieWithParent(*syscall.SysProcAttr) {}

// becomeReaper is for Linux only; elsewhere the first process reaps.
func becomeReaper() {}

//go:build unix && !linux

package supervise

import "syscall"

// dieWithParent exists only on Linux. On other systems there is only the guard.
func dieWithParent(*syscall.SysProcAttr) {}

// becomeReaper exists only on Linux. On other systems the first process reaps.
func becomeReaper() {}

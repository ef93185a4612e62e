package supervise

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// dieWithParent makes the kernel kill the command when the thread that starts it ends.
// Go ends a thread before the process only if a goroutine ends while it is locked to
// that thread, and no goroutine here is.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }

// becomeReaper makes this process the parent of the processes that the command leaves.
// In a container nobody else may reap them, and a dead process that nobody has reaped
// looks alive.
func becomeReaper() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) } // since Linux 3.4

package supervise

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// dieWithParent has the kernel kill the command when the thread that starts it
// ends. Go ends no thread before the program, but those of goroutines that end
// locked to theirs, and there are none here.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }

// becomeReaper makes this process the parent of what the command leaves behind,
// so that it is reaped for sure: in a container there may be nobody else who does,
// and what is dead and not reaped would count as alive.
func becomeReaper() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) } // since Linux 3.4

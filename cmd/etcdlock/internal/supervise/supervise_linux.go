package supervise

import (
	"os"
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

// image is the image that runs, also when its file was removed or replaced meanwhile.
func image() (string, error) { return self, nil }

var self = "/proc/self/exe" // a variable for the test

// nameSelf gives a guard the name of the command. Its own would be "exe", after its path.
func nameSelf() { _ = os.WriteFile("/proc/self/comm", []byte("etcdlock"), 0) } // only for who looks at the processes

package demo

import (
	"os/exec"
	"syscall"
)

// dieWithParent has the kernel kill the process when the thread that starts it
// ends. Go ends no thread before the program, but those of goroutines that end
// locked to theirs, and there are none here.
func dieWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

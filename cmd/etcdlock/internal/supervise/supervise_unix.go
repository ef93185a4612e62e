//go:build unix && !linux

package supervise

import (
	"os"
	"syscall"
)

// dieWithParent exists only on Linux. On other systems there is only the guard.
func dieWithParent(*syscall.SysProcAttr) {}

// becomeReaper exists only on Linux. On other systems the first process reaps.
func becomeReaper() {}

// image is the path of this program. If there is another program by now, it does not answer as a guard.
func image() (string, error) { return os.Executable() }

// nameSelf has nothing to do: a guard has the name of its file.
func nameSelf() {}

// startedBy would have to look through all processes too, see onlyDead.
func startedBy(int) []int { return nil }

// onlyDead would have to look through all processes, which each system shows in another way.
func onlyDead(int) bool { return false }

//go:build !linux

package demo

import "os/exec"

// dieWithParent exists only on Linux. On other systems a worker ends when its standard
// input ends.
func dieWithParent(*exec.Cmd) {}

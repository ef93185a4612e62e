package supervise

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
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

// startedBy lists the process groups that children of a process lead in its session: a command that it has just started is
// there. It lists none if /proc does not tell.
func startedBy(parent int) (groups []int) {
	session, err := unix.Getsid(parent)
	if err != nil || !numbered() {
		return nil
	}
	all, _ := filepath.Glob("/proc/[0-9]*/stat") // the pattern is right
	for _, path := range all {
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path))) // digits
		if stat, err := readStat(path); err == nil && stat.parent == parent && stat.group == pid && stat.session == session {
			groups = append(groups, pid)
		}
	}
	return groups
}

// numbered reports whether /proc has the numbers of processes that this process sees.
func numbered() bool {
	own, err := os.Readlink("/proc/self")
	return err == nil && own == strconv.Itoa(os.Getpid())
}

// onlyDead reports whether a process group has nothing but dead processes that nobody has reaped. It is false also if /proc does
// not tell.
func onlyDead(group int) bool {
	if !numbered() {
		return false
	}
	if _, err := os.ReadFile("/proc/1/stat"); err != nil { // it hides other users' processes
		return false
	}
	all, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return false
	}
	found := false
	for _, path := range all {
		switch stat, err := readStat(path); {
		case gone(err):
		case err != nil:
			return false
		case stat.group != group:
		case !isDead(stat.state) || !threadsDead(filepath.Dir(path)):
			return false
		default:
			found = true
		}
	}
	return found
}

// threadsDead reports whether all threads of a process are dead. The first one, which the process is shown by, may be dead alone.
func threadsDead(process string) bool {
	threads, err := filepath.Glob(process + "/task/[0-9]*/stat")
	for _, path := range threads {
		if stat, err := readStat(path); !gone(err) && (err != nil || !isDead(stat.state)) {
			return false
		}
	}
	return err == nil
}

func isDead(state string) bool { return state == "Z" || state == "X" }

// gone reports whether an error says that a process has been reaped.
func gone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) }

// A stat is the state of a process or thread, its parent, process group and session.
type stat struct {
	state                  string
	parent, group, session int
}

func readStat(path string) (s stat, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return s, err
	}
	text = text[bytes.LastIndexByte(text, ')')+1:] // the name before these fields may hold anything
	if n, _ := fmt.Sscan(string(text), &s.state, &s.parent, &s.group, &s.session); n < 4 {
		return s, errors.New(path + " has another form")
	}
	return s, nil
}

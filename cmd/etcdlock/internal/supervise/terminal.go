//go:build unix

package supervise

import (
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// A terminal is the controlling terminal. The command is in a process group of its own,
// so it must be given the foreground to read from the terminal and to get Ctrl-C and
// Ctrl-Z. The foreground must be taken back afterwards. When the command stops,
// this process must stop as well, because the shell waits for this process.
type terminal struct {
	file *os.File
	own  int // this process's group
	// eager: the command has the foreground from the start. In a script or a pipeline
	// other processes of this group need it: the script must see Ctrl-C, and `less`
	// the keyboard. There Ctrl-C comes to this process, which passes it on. The
	// command gets the foreground only when it stops because it lacks it.
	eager bool
	lent  bool // the command has the foreground
}

// openTerminal returns nil if there is no controlling terminal.
func openTerminal() *terminal {
	f, err := os.OpenFile("/dev/tty", os.O_RDWR, 0)
	if err != nil {
		return nil
	}
	t := &terminal{file: f, own: syscall.Getpgrp()}
	t.eager = t.own == os.Getpid() && t.foreground() == t.own
	for fd := range 3 {
		t.eager = t.eager && term.IsTerminal(fd)
	}
	return t
}

// prepare is called before the command is started. It catches SIGTTOU, because the
// command would inherit that it is ignored, as begin does.
func (t *terminal) prepare() {
	if t != nil {
		signal.Notify(make(chan os.Signal, 1), syscall.SIGTTOU)
	}
}

// begin is called when the command runs.
func (t *terminal) begin(group int) {
	if t == nil {
		return
	}
	// SIGTTOU stops a process in the background that changes the foreground, or that
	// writes to a terminal with tostop.
	signal.Ignore(syscall.SIGTTOU)
	if t.eager {
		t.lend(group)
	}
}

func (t *terminal) close() {
	if t == nil {
		return
	}
	t.takeBack()
	_ = t.file.Close() // nothing was written to it
}

// foreground is the process group that has the foreground, 0 if it is unknown.
func (t *terminal) foreground() int {
	group, err := unix.IoctlGetInt(int(t.file.Fd()), unix.TIOCGPGRP)
	if err != nil {
		return 0
	}
	return group
}

func (t *terminal) lend(group int) {
	if unix.IoctlSetPointerInt(int(t.file.Fd()), unix.TIOCSPGRP, group) == nil {
		t.lent = true
	}
}

func (t *terminal) takeBack() {
	if t.lent && unix.IoctlSetPointerInt(int(t.file.Fd()), unix.TIOCSPGRP, t.own) == nil {
		t.lent = false
	}
}

// stopped stops this process after sig has stopped the command. The renewal of the lock
// stops with it. If that takes too long the lock is lost, and the guard kills the
// command.
func (s *supervisor) stopped(sig syscall.Signal) {
	t := s.tty
	switch {
	case t == nil:
		return // somebody has stopped it on purpose
	case sig == syscall.SIGTTIN || sig == syscall.SIGTTOU:
		// The command may have been faster than begin.
		if group := t.foreground(); group == t.own || group == s.pid {
			t.lend(s.pid)
			_ = s.kill(syscall.SIGCONT)
			return
		}
	case sig == syscall.SIGSTOP && t.foreground() == s.pid:
		// Editors read Ctrl-Z as a key and stop themselves. The shell must get the
		// terminal back.
	case sig != syscall.SIGTSTP:
		return
	}
	lent := t.lent
	t.takeBack()
	s.Say("stopped; unless it continues within %v, the lock is lost and process group %d is killed",
		time.Until(s.lock.Deadline()).Round(time.Second/10), s.pid)
	StopSelf(s.sigs, s.pass)
	s.look() // it may be too late to continue
	if (lent || t.eager) && t.foreground() == t.own {
		t.lend(s.pid)
	}
	_ = s.kill(syscall.SIGCONT)
}

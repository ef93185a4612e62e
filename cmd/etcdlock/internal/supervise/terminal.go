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

// A terminal is the controlling terminal. A command in a process group of its own
// must be given the foreground to read from it and to get what is typed: Ctrl-C,
// Ctrl-Z. Then it must be taken back, and when the command stops, this process
// has to stop as well: it is what the shell waits for.
type terminal struct {
	file *os.File
	own  int // this process's group
	// eager: the command has the foreground from the start. In a script or a
	// pipeline it must not, as others of this process's group are to have
	// it: the script is to see Ctrl-C, and `less` the keyboard. There Ctrl-C
	// comes to this process, which passes it on, and the command gets the terminal
	// only when it stops for want of it.
	eager bool
	lent  bool // the command has the foreground
}

// openTerminal is nil if there is no controlling terminal.
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

// prepare is called before the command is started. It would inherit a signal that
// is ignored, as begin leaves it, but not one that is caught.
func (t *terminal) prepare() {
	if t != nil {
		signal.Notify(make(chan os.Signal, 1), syscall.SIGTTOU)
	}
}

// begin is called once the command runs.
func (t *terminal) begin(group int) {
	if t == nil {
		return
	}
	// Who is in the background is stopped for changing the foreground, and for
	// writing where the terminal is set so.
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
	_ = t.file.Close() // it was only asked
}

// foreground is the process group that has the terminal, 0 if that is not known.
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

// stopped follows the command, which sig has stopped. The lock's renewal stops
// with this process, so what lasts too long costs the lock, and the guard kills
// the command.
func (s *supervisor) stopped(sig syscall.Signal) {
	t := s.tty
	switch {
	case t == nil:
		return // somebody did it on purpose
	case sig == syscall.SIGTTIN || sig == syscall.SIGTTOU:
		// It may have been quicker than begin.
		if group := t.foreground(); group == t.own || group == s.pid {
			t.lend(s.pid)
			_ = s.kill(syscall.SIGCONT)
			return
		}
	case sig == syscall.SIGSTOP && t.foreground() == s.pid:
		// As editors do at Ctrl-Z, which they read as a key: the shell is to have the
		// terminal again.
	case sig != syscall.SIGTSTP:
		return
	}
	lent := t.lent
	t.takeBack()
	s.Say("stopped; if it does not go on within %v, the lock is lost and process group %d killed",
		time.Until(s.lock.Deadline()).Round(time.Second/10), s.pid)
	StopSelf(s.sigs, s.pass)
	s.look() // it may be too late to go on
	if (lent || t.eager) && t.foreground() == t.own {
		t.lend(s.pid)
	}
	_ = s.kill(syscall.SIGCONT)
}

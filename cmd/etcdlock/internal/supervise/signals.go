//go:build unix

package supervise

import (
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"
)

// passed are the signals that are passed on.
var passed = []os.Signal{
	syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH, syscall.SIGCONT, syscall.SIGTSTP,
}

// Notify has the signals that Run passes on sent to the channel it returns. Those
// that are ignored stay so, also by the command.
func Notify() chan os.Signal {
	sigs := make(chan os.Signal, 64)
	NotifyUnlessIgnored(sigs, passed...)
	return sigs
}

// StopSelf stops this process as Ctrl-Z does, and returns when it goes on. It does
// so by SIGTTIN, since Go gives SIGTSTP its default action back never more. Like
// that it has no effect where nobody could wake the process, in a
// terminal without a shell.
//
// The SIGCONT that wakes this process it takes from sigs, see Notify: passed on later,
// that could wake the command from its next stop. What else comes goes to other.
func StopSelf(sigs <-chan os.Signal, other func(os.Signal)) {
	_ = syscall.Kill(os.Getpid(), syscall.SIGTTIN)
	// The signal comes when it comes. Short waits, since a timer goes on while this
	// process is stopped: one of them may be over when it wakes.
	for wait := 0; wait < 10; {
		select {
		case sig := <-sigs:
			if sig == syscall.SIGCONT {
				return
			}
			other(sig)
		case <-time.After(10 * time.Millisecond):
			wait++
		}
	}
}

// RaiseInterrupt ends this process by SIGINT, as that has ended its command: a shell
// stops its loop or script at Ctrl-C only if what it waited for was ended by it. If
// the command alone had the keyboard, the others of this process's group, a
// script, are to see it as well. It returns if nothing comes of it.
func RaiseInterrupt(group bool) {
	signal.Reset(syscall.SIGINT)
	pid := os.Getpid()
	if group {
		pid = 0
	}
	if syscall.Kill(pid, syscall.SIGINT) == nil {
		time.Sleep(time.Second) // the signal comes when it comes
	}
}

// Stops reports whether a signal is Ctrl-Z's.
func Stops(sig os.Signal) bool { return sig == syscall.SIGTSTP }

// Ends reports whether a signal is one that ends a process that only waits.
func Ends(sig os.Signal) bool {
	return slices.Contains([]os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM}, sig)
}

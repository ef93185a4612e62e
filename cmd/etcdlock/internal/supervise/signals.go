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

// Notify returns a channel that gets the signals that Run passes on. Signals that this
// process ignores stay ignored, also by the command.
func Notify() chan os.Signal {
	sigs := make(chan os.Signal, 64)
	NotifyUnlessIgnored(sigs, passed...)
	return sigs
}

// StopSelf stops this process as Ctrl-Z does, and returns when the process continues.
// It uses SIGTTIN, because Go can't restore the default action of SIGTSTP. Like
// SIGTSTP it has no effect in a terminal without a shell, where nobody could wake the
// process.
//
// It takes the SIGCONT that wakes this process from sigs (see Notify). Passed on later,
// that could wake the command from its next stop. Other signals go to other.
func StopSelf(sigs <-chan os.Signal, other func(os.Signal)) {
	_ = syscall.Kill(os.Getpid(), syscall.SIGTTIN)
	// The kernel delivers the signal a little later. The waits are short, because timers
	// go on while this process is stopped: one of them may be over when it wakes.
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

// RaiseInterrupt ends this process by SIGINT, after SIGINT has ended its command. A shell
// stops its loop or script at Ctrl-C only if SIGINT has ended the process that it
// waited for. group sends the signal to all of this process's group: a script there
// has not seen it if the command alone had the keyboard. It returns if the signal has
// no effect.
func RaiseInterrupt(group bool) {
	signal.Reset(syscall.SIGINT)
	pid := os.Getpid()
	if group {
		pid = 0
	}
	if syscall.Kill(pid, syscall.SIGINT) == nil {
		time.Sleep(time.Second) // the kernel delivers the signal a little later
	}
}

// Stops reports whether a signal is that of Ctrl-Z.
func Stops(sig os.Signal) bool { return sig == syscall.SIGTSTP }

// Ends reports whether a signal asks a process to end.
func Ends(sig os.Signal) bool {
	return slices.Contains([]os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM}, sig)
}

// Package supervise runs a command while a lock is held, and sees to it that
// the command and its process group are dead before anybody else can have the
// lock.
//
// Three things watch over that, each for the case that the one before it can't:
//
//   - Run itself. When the lock is lost, or when etcd has not confirmed it for so
//     long that only the time of grace is left until the deadline, the process group
//     gets SIGTERM, and at the end of the grace SIGKILL.
//   - The guard, a process that knows the group and the deadline. It kills the
//     group at the deadline if Run has not told it of a later one, because its
//     process is stopped, or at once when Run's process has died.
//   - On Linux the kernel, which kills the command, though not what it has
//     started, when Run's process dies: the guard may have been killed with it.
//
// All of it runs in one loop of one goroutine, so nothing here needs a lock.
//
//	supervise.go  the loop, and what it does when
//	guard.go      the guard, from both sides
//	terminal.go   who has the terminal, Ctrl-C, Ctrl-Z and fg
//	signals.go    which signals are passed on
package supervise

import (
	"os"
	"os/signal"
	"time"
)

// A Lock is what the command runs under; *etcdlock.Held is one.
type Lock interface {
	// Done is closed when the lock is lost, and Err says why.
	Done() <-chan struct{}
	Err() error
	// Deadline is up to when the lock is held for sure without further news from
	// etcd. It moves on while all is well.
	Deadline() time.Time
}

// A Command is what to run.
type Command struct {
	Path  string   // of the program
	Args  []string // its name first
	Env   []string
	Grace time.Duration // between SIGTERM and SIGKILL
	// Say tells people, in a line, what becomes of the command and why.
	Say func(format string, args ...any)
}

// An Outcome says how a command ended.
type Outcome struct {
	Status int // its exit status, 128 and the signal's number if that ended it
	Signal int // the signal that ended it, or 0
	// Terminal: it ran in a terminal. Keyboard: what was typed there went to it
	// alone.
	Terminal, Keyboard bool
	// Asked: it was passed a signal that asks to end (SIGTERM, SIGINT), or ended by one
	// that others take as something else (SIGHUP: read your files again; SIGQUIT: say
	// what you do).
	Asked bool
	// Lost says why the lock was not held all the time, or that it was about to be
	// lost; nil if it was held until command and group had ended.
	Lost error
}

// A StartError is that the command could not be executed.
type StartError struct{ err error }

func (e *StartError) Error() string { return e.err.Error() }

func (e *StartError) Unwrap() error { return e.err }

// NotifyUnlessIgnored is [signal.Notify], but signals that this process was started to
// ignore, as by nohup, stay ignored.
func NotifyUnlessIgnored(c chan<- os.Signal, sigs ...os.Signal) {
	for _, s := range sigs {
		if !signal.Ignored(s) {
			signal.Notify(c, s)
		}
	}
}

// past reports whether t is over. It looks at both clocks: the monotonic one
// stands still while a machine is suspended.
func past(t time.Time) bool {
	now := time.Now()
	return !now.Before(t) || !now.Round(0).Before(t.Round(0))
}

// lead is how long before the deadline Run kills, so that the guard, which does it
// at the deadline, comes second.
const lead = 20 * time.Millisecond

// lookEach bounds how long a look at the clocks takes to come, since timers
// stand still with the monotonic clock.
const lookEach = 500 * time.Millisecond

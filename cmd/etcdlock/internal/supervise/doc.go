// Package supervise runs a command while a lock is held. It makes sure that the
// command and its process group are dead before anybody else can have the lock.
//
// Three mechanisms do that. Each covers a case in which the one before it fails:
//
//   - Run itself. The process group gets SIGTERM when the lock is lost, or when etcd
//     has not confirmed it for so long that only the grace period is left until
//     the deadline. At the end of the grace period it gets SIGKILL.
//   - The guard, a process that knows the group and the deadline. It kills the group
//     at the deadline unless Run tells it a later one: Run's process may be
//     stopped. It kills the group at once when Run's process dies. On Linux it finds the
//     group by itself if Run was stopped when it had just started the command.
//   - The kernel, on Linux. When Run's process dies it kills the command, but not the
//     processes that the command has started. The guard may have been killed too.
//
// Run does everything in one loop of one goroutine, so it needs no mutex.
//
//	supervise.go  the loop and its decisions
//	guard.go      the guard, on both sides
//	terminal.go   the foreground of the terminal, Ctrl-C, Ctrl-Z and fg
//	signals.go    the signals that are passed on
package supervise

import (
	"os"
	"os/signal"
	"time"
)

// A Lock is held while the command runs. *etcdlock.Held is one.
type Lock interface {
	// Done is closed when the lock is lost, and Err says why.
	Done() <-chan struct{}
	Err() error
	// Deadline is the time until which the lock is certainly held, even if etcd does
	// not answer any more. Each renewal moves it.
	Deadline() time.Time
}

// A Command says what to run.
type Command struct {
	Path  string   // path of the program
	Args  []string // the first is the name of the program
	Env   []string
	Grace time.Duration // between SIGTERM and SIGKILL
	// Say prints a line about what happens to the command, and why.
	Say func(format string, args ...any)
	// Why is why etcd can't be asked, or nil: what happens to the command then is told with it.
	Why func() error
}

// An Outcome says how a command ended.
type Outcome struct {
	Status int // the exit status, or 128 plus the signal that ended it
	Signal int // the signal that ended it, or 0
	// Terminal: it ran in a terminal. Keyboard: it alone got what was typed there.
	Terminal, Keyboard bool
	// Asked: it was passed SIGTERM or SIGINT, which ask a process to end, or SIGHUP or
	// SIGQUIT ended it. These two mean something else to many programs, such as
	// to read files again or to print stacks.
	Asked bool
	// Lost is why the lock was lost or about to be lost. It is nil if the lock was held
	// until the command and its group had ended.
	Lost error
}

// A StartError says that the command could not be executed.
type StartError struct{ err error }

func (e *StartError) Error() string { return e.err.Error() }

func (e *StartError) Unwrap() error { return e.err }

// NotifyUnlessIgnored is [signal.Notify], except that a signal stays ignored if this
// process was started to ignore it, as by nohup.
func NotifyUnlessIgnored(c chan<- os.Signal, sigs ...os.Signal) {
	for _, s := range sigs {
		if !signal.Ignored(s) {
			signal.Notify(c, s)
		}
	}
}

// past reports whether t has passed on either clock. The monotonic clock stands still
// while a machine is suspended.
func past(t time.Time) bool {
	now := time.Now()
	return !now.Before(t) || !now.Round(0).Before(t.Round(0))
}

// lead is how long before the deadline Run kills the group. The guard does so at the
// deadline, so Run comes first.
const lead = 20 * time.Millisecond

// lookEach is the longest time between two looks at the clocks. Timers stand still
// with the monotonic clock.
const lookEach = 500 * time.Millisecond

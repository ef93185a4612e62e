//go:build !unix

package supervise

import (
	"errors"
	"os"
)

// Run needs process groups and signals.
func Run(Lock, chan os.Signal, Command) (Outcome, error) {
	return Outcome{}, errors.New("commands can't be run under a lock on this system: it has no process groups")
}

// Notify returns a channel on which nothing comes.
func Notify() chan os.Signal { return make(chan os.Signal) }

// Ends is never asked.
func Ends(os.Signal) bool { return true }

// Stops is never asked.
func Stops(os.Signal) bool { return false }

// StopSelf is never called.
func StopSelf(<-chan os.Signal, func(os.Signal)) {}

// RaiseInterrupt is never called.
func RaiseInterrupt(bool) {}

// IsGuard is false: there are no guards.
func IsGuard() bool { return false }

// Guard is never called.
func Guard() int { return 0 }

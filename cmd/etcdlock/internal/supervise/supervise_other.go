//go:build !unix

package supervise

import (
	"errors"
	"os"
)

// Run needs process groups and signals.
func Run(Lock, chan os.Signal, Command) (Outcome, error) {
	return Outcome{}, errors.New("this system has no process groups, so commands can't run under a lock")
}

// Notify returns a channel that never gets a signal.
func Notify() chan os.Signal { return make(chan os.Signal) }

// Ends is never called.
func Ends(os.Signal) bool { return true }

// Stops is never called.
func Stops(os.Signal) bool { return false }

// StopSelf is never called.
func StopSelf(<-chan os.Signal, func(os.Signal)) {}

// RaiseInterrupt is never called.
func RaiseInterrupt(bool) {}

// IsGuard is false: this system has no guards.
func IsGuard() bool { return false }

// Guard is never called.
func Guard() int { return 0 }

package main

import "strconv"

// The exit statuses.
const (
	statusOK        = 0
	statusFailed    = 1
	statusAttention = 2
	statusTaken     = 75 // EX_TEMPFAIL of sysexits.h
	statusLost      = 76
	statusNotRun    = 125 // env, timeout and docker use this and the next two in the same way
	statusCannotRun = 126
	statusNotFound  = 127
	statusSignal    = 128 // plus the number of the signal
)

// statuses are the rows of the table in docs/command.md. A test compares them.
var statuses = []struct{ status, meaning string }{
	{strconv.Itoa(statusOK), "success; `run` and `elect`: CMD ended with 0"},
	{strconv.Itoa(statusFailed), "failure; the line on standard error says why"},
	{strconv.Itoa(statusAttention), "`doctor`: something needs attention"},
	{strconv.Itoa(statusTaken), "`run`: the lock is taken (`--try`), or was still taken after `--wait`; CMD was not started"},
	{strconv.Itoa(statusLost), "`run`: the lock was lost, or about to be lost, while CMD ran; CMD has been ended"},
	{strconv.Itoa(statusNotRun), "`run` and `elect`: failure before CMD was started; `elect`: also when etcd refuses to let it campaign again"},
	{strconv.Itoa(statusCannotRun), "`run` and `elect`: CMD can't be executed"},
	{strconv.Itoa(statusNotFound), "`run` and `elect`: CMD was not found"},
	{strconv.Itoa(statusSignal) + "+n", "ended by signal n; `run` and `elect`: also when signal n ended CMD"},
	{"any other", "`run` and `elect`: CMD's own status"},
}

// runsCommand marks the commands that run another one. Their own failures must not
// look like failures of that.
const runsCommand = "runs a command"

// ending is an error with an exit status.
type ending struct {
	status int
	raise  func() // if not nil, ends the process in another way
	err    error  // nil if there is nothing to print
}

func (e ending) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}

func (e ending) Unwrap() error { return e.err }

//go:build unix

package supervise

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

// pollEach is how often an ending process group is asked after, or a renewal.
const pollEach = 10 * time.Millisecond

// A supervisor runs one command.
type supervisor struct {
	Command
	lock  Lock
	sigs  chan os.Signal
	guard *guard
	tty   *terminal // nil without a terminal

	pid    int // of the command, and of its process group
	status syscall.WaitStatus
	exited bool      // and status says how
	asked  time.Time // when all have last got a signal to end, from somebody else
	ending bool      // one of them was of those that mean nothing else

	told   time.Time // the deadline that the guard knows
	lost   error
	killAt time.Time // not zero once SIGTERM was sent
	killed time.Time // not zero once SIGKILL was sent
	stuck  bool      // and it was said that this does not help
}

// Run starts c and returns when it and its process group have ended; what it
// leaves behind in its group is ended, too. Signals that come on sigs (see Notify) are passed on.
// An error means that c was not started. It waits for a renewal of the lock first
// if no more than c.Grace is left until the deadline.
//
// The process must have no other children: Run reaps all there are.
func Run(lock Lock, sigs chan os.Signal, c Command) (Outcome, error) {
	s := &supervisor{Command: c, lock: lock, sigs: sigs}
	if err := lock.Err(); err != nil {
		return Outcome{}, err
	}
	for past(lock.Deadline().Add(-c.Grace)) {
		// Granted just after etcd was away, such as for an election: the renewal is
		// to come next, or else the deadline.
		select {
		case <-lock.Done():
			return Outcome{}, lock.Err()
		case <-time.After(pollEach):
		}
	}
	becomeReaper()
	children := make(chan os.Signal, 1)
	signal.Notify(children, syscall.SIGCHLD)
	defer signal.Stop(children)
	var err error
	if s.guard, err = startGuard(0, time.Time{}); err != nil {
		return Outcome{}, fmt.Errorf("start the guard process: %w", err)
	}
	defer func() { s.guard.end() }()
	if err := s.start(); err != nil {
		return Outcome{}, err
	}
	defer s.tty.close()
	s.loop(children)
	o := Outcome{Status: s.status.ExitStatus(), Terminal: s.tty != nil, Keyboard: s.tty != nil && s.tty.lent, Asked: s.ending, Lost: s.lost}
	if s.status.Signaled() {
		o.Signal = int(s.status.Signal())
		o.Asked = o.Asked || s.endedBySomebody()
		o.Status = 128 + o.Signal
	}
	return o, nil
}

func (s *supervisor) start() error {
	s.tty = openTerminal() // before the command can be in the foreground
	s.tty.prepare()
	attr := &syscall.SysProcAttr{Setpgid: true}
	dieWithParent(attr)
	// Not os/exec: its Wait would not see the command stop.
	p, err := os.StartProcess(s.Path, s.Args, &os.ProcAttr{
		Env: s.Env, Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}, Sys: attr,
	})
	if err != nil {
		s.tty.close()
		return &StartError{err}
	}
	s.pid = p.Pid
	_ = p.Release() // reap waits for it
	s.tty.begin(s.pid)
	return nil
}

func (s *supervisor) loop(children <-chan os.Signal) {
	lost := s.lock.Done()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		s.look()
		if s.exited && !s.groupAlive() {
			return
		}
		timer.Reset(s.pause())
		select {
		case <-children:
			s.reap()
		case sig := <-s.sigs:
			s.pass(sig)
		case <-lost: // look sees why
			lost = nil
		case <-timer.C:
		}
	}
}

// pass passes a signal on.
func (s *supervisor) pass(sig os.Signal) {
	if Ends(sig) {
		s.asked = time.Now()
	}
	s.ending = s.ending || sig == syscall.SIGTERM || sig == syscall.SIGINT
	_ = s.kill(sig.(syscall.Signal)) // it may just have ended
}

// endedBySomebody reports whether the command was ended by a signal that asks to
// end, and that is never sent from here.
func (s *supervisor) endedBySomebody() bool {
	return s.status.Signaled() && Ends(s.status.Signal()) && s.status.Signal() != syscall.SIGTERM
}

// look does what it is time for.
func (s *supervisor) look() {
	deadline := s.lock.Deadline()
	if !deadline.Equal(s.told) {
		s.tellGuard(deadline)
	}
	if s.lost == nil {
		switch err := s.lock.Err(); {
		case err != nil:
			s.lost = err
		case past(deadline.Add(-s.Grace)):
			s.lost = errors.New("etcd has not confirmed the lock for too long")
		}
		if s.lost != nil && s.killAt.IsZero() && !s.exited {
			s.terminate(s.lost.Error(), deadline)
		}
	}
	if s.exited && s.killAt.IsZero() && s.groupAlive() {
		if time.Since(s.asked) < s.Grace || s.tty != nil && s.tty.lent && s.endedBySomebody() {
			// All were asked, just now or from the keyboard: they will just not be as quick.
			s.killAt = time.Now().Add(s.Grace)
		} else {
			s.terminate("it ended and left processes behind", deadline)
		}
	}
	if s.killAt.IsZero() || !s.killed.IsZero() && s.stuck {
		return
	}
	switch {
	case s.killed.IsZero() && (past(s.killAt) || past(deadline.Add(-lead))):
		s.killed = time.Now()
		if !s.exited || s.groupAlive() {
			s.Say("process group %d is killed", s.pid)
		}
		_ = s.kill(syscall.SIGKILL) // or it has just ended
	case !s.killed.IsZero() && time.Since(s.killed) > 2*time.Second:
		s.stuck = true
		s.Say("process group %d does not end although it was killed, and is waited for", s.pid)
	}
}

// terminate asks the process group to end, and sets the time for its end.
func (s *supervisor) terminate(why string, deadline time.Time) {
	s.killAt = time.Now().Add(s.Grace)
	if last := deadline.Add(-lead); last.Before(s.killAt) {
		s.killAt = last
	}
	left := time.Until(s.killAt)
	if left <= 0 || past(deadline) { // somebody else may have the lock already
		s.killAt = time.Now()
		s.Say("%s: %s", filepath.Base(s.Path), why)
		return
	}
	s.Say("%s: %s; process group %d gets SIGTERM, and SIGKILL in %v", filepath.Base(s.Path), why, s.pid, left.Round(time.Millisecond))
	_ = s.kill(syscall.SIGTERM) // or it has just ended
	_ = s.kill(syscall.SIGCONT) // one that is stopped would never see it
}

// pause is how long nothing has to be done unless something happens.
func (s *supervisor) pause() time.Duration {
	d := lookEach
	switch {
	case s.exited || !s.killed.IsZero():
		d = pollEach
	case !s.killAt.IsZero():
		d = min(d, time.Until(s.killAt))
	default:
		d = min(d, time.Until(s.lock.Deadline().Add(-s.Grace)))
	}
	return max(d, time.Millisecond)
}

// kill sends the whole process group a signal.
func (s *supervisor) kill(sig syscall.Signal) error { return syscall.Kill(-s.pid, sig) }

// groupAlive reports whether anything of the process group is left.
func (s *supervisor) groupAlive() bool { return !errors.Is(s.kill(0), syscall.ESRCH) }

// reap takes note of all children that have ended or stopped. There may be others
// than the command and the guard: those that the command has left, where
// this process is the first of a container, or its command's reaper.
func (s *supervisor) reap() {
	for {
		var ws syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &ws, syscall.WNOHANG|syscall.WUNTRACED, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case err != nil || pid == 0:
			return
		case ws.Stopped():
			if pid == s.pid {
				s.stopped(ws.StopSignal())
			}
		case pid == s.pid:
			s.exited, s.status = true, ws
		case pid == s.guard.pid:
			s.guard.reaped = true
			s.told = time.Time{}
		}
	}
}

// tellGuard tells the guard of a deadline. A guard that does not listen is replaced.
func (s *supervisor) tellGuard(deadline time.Time) {
	s.told = deadline
	if !s.guard.reaped && s.guard.tell(s.pid, deadline) == nil {
		return
	}
	s.guard.end()
	g, err := startGuard(s.pid, deadline)
	if err != nil {
		s.told = time.Time{} // try again
		return
	}
	s.guard = g
}

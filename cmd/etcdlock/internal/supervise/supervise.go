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

// pollEach is how often Run looks for the end of a process group, or for a renewal.
const pollEach = 10 * time.Millisecond

// seekEach is how often Run looks through all processes for those of a group that was killed and does not end.
const seekEach = 100 * time.Millisecond

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
	asked  time.Time // when somebody last sent the group a signal to end
	ending bool      // one of those signals has no other meaning

	told   time.Time // the deadline that the guard was told
	lost   error
	killAt time.Time // not zero once SIGTERM was sent
	killed time.Time // not zero once SIGKILL was sent
	sought time.Time // when the processes of the group were last looked through
	stuck  bool      // Say was told that SIGKILL did not help
}

// Run starts c, and returns when c and its process group have ended. It ends the
// processes that c leaves in the group, and passes on the signals from sigs (see
// Notify). If no more than c.Grace is left until the deadline, it waits for a renewal
// before it starts c. An error means that c was not started.
//
// The process must have no other children, because Run reaps them all.
func Run(lock Lock, sigs chan os.Signal, c Command) (Outcome, error) {
	s := &supervisor{Command: c, lock: lock, sigs: sigs}
	if err := lock.Err(); err != nil {
		return Outcome{}, err
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
	if err := s.guard.listens(); err != nil { // without a guard, the command could outlive the lock
		return Outcome{}, fmt.Errorf("start the guard process: %w", err)
	}
	for past(lock.Deadline().Add(-c.Grace)) {
		// The lock was granted just after etcd was away, for example for an election.
		// Either a renewal comes next, or the deadline.
		select {
		case <-lock.Done():
			return Outcome{}, lock.Err()
		case <-time.After(pollEach):
		}
	}
	if err := lock.Err(); err != nil { // lost while the guard was started
		return Outcome{}, err
	}
	// Until look tells the guard the group, this process may be stopped, and the command run.
	if err := s.guard.tell(0, lock.Deadline()); err != nil {
		return Outcome{}, fmt.Errorf("tell the guard process: %w", err)
	}
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
	s.tty = openTerminal() // while this process still has the foreground
	s.tty.prepare()
	attr := &syscall.SysProcAttr{Setpgid: true}
	dieWithParent(attr)
	// Not os/exec: its Wait does not see the command stop.
	p, err := os.StartProcess(s.Path, s.Args, &os.ProcAttr{
		Env: s.Env, Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}, Sys: attr,
	})
	if err != nil {
		s.tty.close()
		return &StartError{err}
	}
	s.pid = p.Pid
	_ = p.Release() // reap waits for the process
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
		case <-lost: // look finds out why
			lost = nil
		case <-timer.C:
		}
	}
}

// pass passes a signal on to the group.
func (s *supervisor) pass(sig os.Signal) {
	if Ends(sig) {
		s.asked = time.Now()
	}
	s.ending = s.ending || sig == syscall.SIGTERM || sig == syscall.SIGINT
	_ = s.kill(sig.(syscall.Signal)) // the group may just have ended
}

// endedBySomebody reports whether a signal has ended the command that asks to end and
// that this package never sends.
func (s *supervisor) endedBySomebody() bool {
	return s.status.Signaled() && Ends(s.status.Signal()) && s.status.Signal() != syscall.SIGTERM
}

// unconfirmed is the error for a lock whose renewals had no answer.
func (s *supervisor) unconfirmed() error {
	err := errors.New("etcd has not confirmed the lock in time")
	if s.Why != nil {
		if why := s.Why(); why != nil {
			err = fmt.Errorf("%w: %w", err, why)
		}
	}
	return err
}

// look does what is due.
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
			s.lost = s.unconfirmed()
		}
		if s.lost != nil && s.killAt.IsZero() && !s.exited {
			s.terminate(s.lost.Error(), deadline)
		}
	}
	if s.exited && s.killAt.IsZero() && s.groupAlive() {
		if time.Since(s.asked) < s.Grace || s.tty != nil && s.tty.lent && s.endedBySomebody() {
			// All were asked to end, just now or from the keyboard. Some take longer.
			s.killAt = time.Now().Add(s.Grace)
		} else {
			s.terminate("it has ended and left processes in its group", deadline)
		}
	}
	if s.killAt.IsZero() || !s.killed.IsZero() && s.stuck {
		return
	}
	switch {
	case s.killed.IsZero() && (past(s.killAt) || past(deadline.Add(-lead))):
		alive := !s.exited || s.groupAlive()
		_ = s.kill(syscall.SIGKILL) // the group may just have ended
		s.killed = time.Now()
		if alive {
			s.Say("killing process group %d", s.pid)
		}
	case !s.killed.IsZero() && time.Since(s.killed) > 2*time.Second:
		s.stuck = true
		s.Say("process group %d was killed and does not end: waiting for it", s.pid)
	}
}

// terminate asks the process group to end, and sets the time at which it is killed.
func (s *supervisor) terminate(why string, deadline time.Time) {
	left := min(s.Grace, time.Until(deadline.Add(-lead)))
	s.killAt = time.Now().Add(left)
	if left <= 0 || past(deadline) { // somebody else may have the lock already
		s.killAt = time.Now()
		_ = s.kill(syscall.SIGKILL) // before Say, which may take its time
		s.Say("%s: %s", filepath.Base(s.Path), why)
		return
	}
	_ = s.kill(syscall.SIGTERM) // the group may just have ended
	_ = s.kill(syscall.SIGCONT) // a stopped process does not see SIGTERM
	s.Say("%s: %s; process group %d gets SIGTERM, and SIGKILL in %v", filepath.Base(s.Path), why, s.pid, left.Round(time.Millisecond))
}

// pause is how long the loop may wait for an event.
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

// kill sends a signal to the whole process group.
func (s *supervisor) kill(sig syscall.Signal) error { return syscall.Kill(-s.pid, sig) }

// groupAlive reports whether the process group has any process left. A dead one that its parent does not reap, since that has left
// the group and lives, counts as long as SIGKILL was not sent: until then a process may start another one while this looks.
func (s *supervisor) groupAlive() bool {
	if errors.Is(s.kill(0), syscall.ESRCH) {
		return false
	}
	if s.killed.IsZero() || time.Since(s.killed) < seekEach || time.Since(s.sought) < seekEach {
		return true
	}
	s.sought = time.Now()
	return !onlyDead(s.pid)
}

// reap collects all children that have ended or stopped. Besides the command and the
// guard these may be processes that the command has left: their parent is now this
// process, as the reaper or as the first process of a container.
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

// tellGuard tells the guard a deadline. It replaces a guard that does not listen.
func (s *supervisor) tellGuard(deadline time.Time) {
	s.told = deadline
	if !s.guard.reaped && !s.guard.failed() && s.guard.tell(s.pid, deadline) == nil {
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

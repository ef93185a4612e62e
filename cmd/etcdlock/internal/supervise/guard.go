//go:build unix

package supervise

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// guardArg is the argument that makes a process of this program a guard.
const guardArg = "run-guard"

// tellTimeout bounds a write into the pipe. It takes no time unless the guard has not
// read for a thousand lines.
const tellTimeout = 100 * time.Millisecond

// guardAnswer is what a guard writes when it listens. Another program may be at the path of this one by now.
const guardAnswer = "etcdlock guard listens\n"

// answerTimeout bounds how long a guard may take to answer. It takes milliseconds, unless the machine is busy.
var answerTimeout = 10 * time.Second

// A guard is Run's side of the guard process.
type guard struct {
	pid    int
	pipe   *os.File
	reaped bool
	answer chan error // has the answer of the guard, or why there is none
}

// startGuard starts a guard. group is 0 if the command does not run yet. The order is in
// the pipe before the guard starts, because this process may be stopped at any time.
func startGuard(group int, deadline time.Time) (*guard, error) {
	exe, err := image()
	if err != nil {
		return nil, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Close() }()
	g := &guard{pipe: w, answer: make(chan error, 1)}
	if group != 0 {
		if err := g.tell(group, deadline); err != nil {
			_ = w.Close()
			return nil, err
		}
	}
	// Not this process's own output: whoever reads that waits for all its writers.
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		_ = w.Close()
		return nil, err
	}
	defer func() { _ = null.Close() }()
	answers, out, err := os.Pipe()
	if err != nil {
		_ = w.Close()
		return nil, err
	}
	defer func() { _ = out.Close() }()
	p, err := os.StartProcess(exe, []string{"etcdlock", guardArg}, &os.ProcAttr{
		Dir: "/", Env: os.Environ(), Files: []*os.File{r, out, null},
		Sys: &syscall.SysProcAttr{Setsid: true}, // it must not get the signals of this group or terminal
	})
	if err != nil {
		_, _ = w.Close(), answers.Close()
		return nil, err
	}
	g.pid = p.Pid
	_ = p.Release() // end or reap waits for the process
	go func() {     // ends with the answer, the guard or answerTimeout
		defer func() { _ = answers.Close() }()
		g.answer <- readAnswer(exe, answers)
	}()
	return g, nil
}

// readAnswer returns an error unless a guard answers.
func readAnswer(exe string, answers *os.File) error {
	got := make([]byte, len(guardAnswer))
	err := answers.SetReadDeadline(time.Now().Add(answerTimeout))
	if err == nil {
		_, err = io.ReadFull(answers, got)
	}
	if err == nil && string(got) != guardAnswer {
		err = errors.New("another program answers")
	}
	if err != nil {
		err = fmt.Errorf("%s does not answer as a guard (%w): was it replaced?", exe, err)
	}
	return err
}

// listens waits for the guard's answer.
func (g *guard) listens() error {
	err := <-g.answer
	g.answer <- err // for the next one who asks
	return err
}

// failed reports whether it is known that the guard is none. It does not block.
func (g *guard) failed() bool { return len(g.answer) > 0 && g.listens() != nil }

// tell tells the guard which group to kill, and when. With group 0 it is that of a command that is about to start.
func (g *guard) tell(group int, deadline time.Time) error {
	// Read the wall clock first. If this process is stopped right here, the time left
	// is too long when it is sent.
	wall := deadline.UnixNano()
	if err := g.pipe.SetWriteDeadline(time.Now().Add(tellTimeout)); err != nil {
		return err
	}
	_, err := fmt.Fprintf(g.pipe, "%d %d %d\n", group, wall, time.Until(deadline))
	return err
}

// end ends the guard, which then does not kill the group.
func (g *guard) end() {
	if !g.reaped {
		_ = syscall.Kill(g.pid, syscall.SIGKILL) // before it sees the end of the pipe
		var ws syscall.WaitStatus
		for {
			if _, err := syscall.Wait4(g.pid, &ws, 0, nil); !errors.Is(err, syscall.EINTR) {
				break
			}
		}
		g.reaped = true
	}
	_ = g.pipe.Close() // nobody reads it
}

// IsGuard reports whether this process was started as a guard.
func IsGuard() bool { return len(os.Args) == 2 && os.Args[1] == guardArg }

// Guard is what a guard process does. It reads groups and deadlines from standard
// input, and kills the last group at the last deadline or at the end of the input. It
// returns the exit status of the process.
func Guard() int {
	// These signals are meant for the command.
	signal.Ignore(syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGPIPE)
	nameSelf()
	parent := os.Getppid()
	_, _ = os.Stdout.WriteString(guardAnswer) // if nobody reads it, the input is at its end too
	_ = os.Stdout.Close()
	type order struct {
		group    int
		deadline time.Time // on the monotonic clock
		wall     time.Time // on the wall clock
	}
	orders := make(chan order)
	go func() { // ends with the input
		defer close(orders)
		in := bufio.NewReader(os.Stdin)
		for {
			var group int
			var wall, left int64
			_, err := fmt.Fscanf(in, "%d %d %d\n", &group, &wall, &left)
			if err != nil {
				if !errors.Is(err, io.EOF) {
					fmt.Fprintln(os.Stderr, err)
				}
				return
			}
			orders <- order{group, time.Now().Add(time.Duration(left)), time.Unix(0, wall)}
		}
	}()
	var o order
	kill := func() {
		groups := []int{o.group}
		if o.group == 0 {
			groups = startedBy(parent)
		}
		for _, group := range groups {
			if group > 1 { // -1 would be all processes
				_ = syscall.Kill(-group, syscall.SIGKILL) // the group may have ended by itself
			}
		}
	}
	timer := time.NewTimer(lookEach)
	for {
		select {
		case next, ok := <-orders:
			if !ok {
				if !o.wall.IsZero() {
					kill()
				}
				return 0
			}
			o = next
		case <-timer.C:
		}
		left := lookEach
		if !o.wall.IsZero() {
			left = min(left, time.Until(o.deadline), time.Until(o.wall))
		}
		if left <= 0 {
			kill()
			left = lookEach // until it is reaped, no other group can have its number
		}
		timer.Reset(left)
	}
}

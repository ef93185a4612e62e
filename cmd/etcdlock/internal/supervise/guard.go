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

// guardArg is the argument by which the program knows that it is to be a guard.
const guardArg = "run-guard"

// tellTimeout bounds the writing of a line into a pipe, which takes no time
// unless the guard has read nothing for a thousand lines.
const tellTimeout = 100 * time.Millisecond

// A guard is the guard process as Run knows it.
type guard struct {
	pid    int
	pipe   *os.File
	reaped bool
}

// startGuard starts a guard; group may be 0 if there is none yet. A guard that is
// there has its order: this process may be stopped as soon as it is.
func startGuard(group int, deadline time.Time) (*guard, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Close() }()
	g := &guard{pipe: w}
	if group != 0 {
		if err := g.tell(group, deadline); err != nil {
			_ = w.Close()
			return nil, err
		}
	}
	// Not this process's own output: whoever reads that waits for its end.
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		_ = w.Close()
		return nil, err
	}
	defer func() { _ = null.Close() }()
	p, err := os.StartProcess(exe, []string{"etcdlock", guardArg}, &os.ProcAttr{
		Dir: "/", Env: os.Environ(), Files: []*os.File{r, null, null},
		Sys: &syscall.SysProcAttr{Setsid: true}, // what is sent to this group or terminal is not for it
	})
	if err != nil {
		_ = w.Close()
		return nil, err
	}
	g.pid = p.Pid
	_ = p.Release() // end or reap waits for it
	return g, nil
}

// tell says which group to kill at which deadline.
func (g *guard) tell(group int, deadline time.Time) error {
	// The wall clock first: should this process be stopped right here, the time
	// that is left would be too much when it is sent.
	wall := deadline.UnixNano()
	if err := g.pipe.SetWriteDeadline(time.Now().Add(tellTimeout)); err != nil {
		return err
	}
	_, err := fmt.Fprintf(g.pipe, "%d %d %d\n", group, wall, time.Until(deadline))
	return err
}

// end ends the guard without a kill.
func (g *guard) end() {
	if !g.reaped {
		_ = syscall.Kill(g.pid, syscall.SIGKILL) // before it can see the pipe's end
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

// IsGuard reports whether this process was started to be a guard.
func IsGuard() bool { return len(os.Args) == 2 && os.Args[1] == guardArg }

// Guard is what a guard process does: it kills the group that standard input tells
// it of, at the deadline that it was last told, or at the input's end. It returns
// the process's exit status.
func Guard() int {
	// Whoever ends this process kindly means the command.
	signal.Ignore(syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGPIPE)
	type order struct {
		group    int
		deadline time.Time // by the monotonic clock
		wall     time.Time // by the other
	}
	orders := make(chan order)
	go func() { // until the input ends
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
	timer := time.NewTimer(lookEach)
	for {
		select {
		case next, ok := <-orders:
			if !ok {
				if o.group > 1 {
					_ = syscall.Kill(-o.group, syscall.SIGKILL) // or it has ended by itself
				}
				return 0
			}
			o = next
		case <-timer.C:
		}
		left := lookEach
		if o.group > 1 {
			left = min(left, time.Until(o.deadline), time.Until(o.wall))
		}
		if left <= 0 {
			_ = syscall.Kill(-o.group, syscall.SIGKILL)
			left = lookEach // it stays dead, but until it is reaped nothing can have its number
		}
		timer.Reset(left)
	}
}

// Command picture makes docs/show.svg, which shows `etcdlock show --watch` in a terminal
// while real processes queue for a lock and one of them is killed.
//
//	go run ./internal/tool/picture
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/creack/pty"

	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/tool/picture/terminal"
)

const file = "docs/show.svg"

func main() {
	log.SetFlags(0)
	frames, err := record()
	if err != nil {
		log.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(terminal.Render(frames)), 0o644); err != nil {
		log.Fatal(err)
	}
	log.Printf("%s: %d frames, %v", file, len(frames), frames[len(frames)-1].At.Round(time.Second))
}

// record plays the scene.
func record() ([]terminal.Frame, error) {
	dir, err := os.MkdirTemp("", "etcdlock-picture-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	bin := filepath.Join(dir, "etcdlock")
	if out, err := exec.Command("go", "build", "-o", bin, "./cmd/etcdlock").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	cluster, err := etcdtest.New(dir)
	if err != nil {
		return nil, err
	}
	defer cluster.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	command := func(args ...string) *exec.Cmd {
		cmd := exec.CommandContext(ctx, bin, args...)
		cmd.Env = append(os.Environ(), "ETCDCTL_ENDPOINTS="+cluster.Endpoints()[0], "TERM=xterm-256color", "NO_COLOR=")
		return cmd
	}

	show := command("show", "--watch", terminal.Lock)
	tty, err := pty.StartWithSize(show, &pty.Winsize{Rows: terminal.Rows, Cols: terminal.Columns})
	if err != nil {
		return nil, err
	}
	defer func() { _ = tty.Close() }()
	var recorded recording
	recorded.Go(func() { recorded.read(tty) })

	type actor struct {
		after, holds time.Duration // time after the previous actor's start; time of its sleep
		owner        string
		args         []string
		killed       bool // killed some seconds after its start
	}
	var wg sync.WaitGroup
	var failed error
	for _, a := range []actor{
		{after: 1500 * time.Millisecond, holds: 4 * time.Second, owner: "db1 backup.sh[811]"},
		{after: 700 * time.Millisecond, holds: 2 * time.Second, owner: "web1 report[4242]", args: []string{"--read"}},
		{after: 600 * time.Millisecond, holds: 3 * time.Second, owner: "web2 report[5120]", args: []string{"--read"}},
		{after: 600 * time.Millisecond, holds: time.Hour, owner: "web3 import[977]", args: []string{"--ttl=2s"}, killed: true},
		{after: 500 * time.Millisecond, holds: 2 * time.Second, owner: "db2 backup.sh[1290]"},
	} {
		time.Sleep(a.after)
		args := append(append([]string{"run", "--owner", a.owner}, a.args...), terminal.Lock, "--")
		cmd := command(append(args, "sleep", fmt.Sprint(a.holds.Seconds()))...)
		if err := cmd.Start(); err != nil {
			return nil, err
		}
		wg.Go(func() {
			if a.killed {
				time.Sleep(7 * time.Second) // by then it holds the lock
				_ = cmd.Process.Kill()
			}
			if err := cmd.Wait(); err != nil && !a.killed {
				failed = errors.Join(failed, fmt.Errorf("%s: %w", a.owner, err))
			}
		})
	}
	wg.Wait()
	time.Sleep(2 * time.Second)
	if err := errors.Join(failed, show.Process.Signal(syscall.SIGKILL)); err != nil {
		return nil, err
	}
	_ = show.Wait() // it was killed, so that its last output stays on the screen
	recorded.Wait()
	return recorded.frames, nil
}

// A recording adds a frame whenever the screen has changed and output has paused.
type recording struct {
	sync.WaitGroup
	frames []terminal.Frame
}

func (r *recording) read(tty io.Reader) {
	t := terminal.New(terminal.Columns, terminal.Rows)
	began := time.Now()
	for {
		buf := make([]byte, 1<<16) // more than one update of the screen
		n, err := tty.Read(buf)
		t.Write(string(buf[:n]))
		lines := t.SVG()
		if len(r.frames) == 0 || strings.Join(lines, "") != strings.Join(r.frames[len(r.frames)-1].Lines, "") {
			r.frames = append(r.frames, terminal.Frame{At: time.Since(began), Lines: lines})
		}
		if err != nil {
			return // the other side has closed the terminal
		}
	}
}

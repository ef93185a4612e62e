package demo

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// A process is the demo's side of a worker process.
type process struct {
	job
	proc  *os.Process
	stdin io.WriteCloser // the worker ends when it is closed
	lease clientv3.LeaseID

	rounds   int // number of locks released
	killed   bool
	finished bool // it has reported that it is done
	exited   bool
}

// news is a report of a process, or its end.
type news struct {
	from *process
	report
	exited bool
	err    error // of the process, when it exited
}

// processes starts worker processes and delivers their news. The processes always end
// with the demo: killAll kills them. If the demo dies first, their standard input
// ends, and on Linux the kernel kills them (see dieWithParent).
type processes struct {
	exe     string
	news    chan news
	stop    chan struct{} // closed by killAll: nobody reads the news after that
	readers sync.WaitGroup
	all     []*process
}

func newProcesses() (*processes, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("can't find this program's file to start workers: %w", err)
	}
	return &processes{exe: exe, news: make(chan news), stop: make(chan struct{})}, nil
}

func (ps *processes) start(j job) (*process, error) {
	p := &process{job: j}
	cmd := exec.Command(ps.exe, workerCommand, j.Worker)
	stderr := &bytes.Buffer{}
	cmd.Stderr = stderr
	dieWithParent(cmd)
	var stdout io.Reader
	var err error
	if p.stdin, err = cmd.StdinPipe(); err == nil {
		stdout, err = cmd.StdoutPipe()
	}
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("start worker %s: %w", j.Worker, err)
	}
	p.proc = cmd.Process
	ps.all = append(ps.all, p)
	ps.readers.Go(func() { // ends with the process, which killAll kills
		err := ps.read(p, stdout)
		if werr := cmd.Wait(); werr != nil {
			err = werr
			if line, _, _ := strings.Cut(strings.TrimSpace(stderr.String()), "\n"); line != "" {
				err = errors.New(strings.TrimPrefix(line, "etcdlock: "))
			}
		}
		ps.send(news{from: p, exited: true, err: err})
	})
	if err := p.tell(toJSON(j)); err != nil {
		return nil, err
	}
	return p, nil
}

func (ps *processes) read(p *process, stdout io.Reader) error {
	lines := bufio.NewScanner(stdout)
	for lines.Scan() {
		var r report
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			_, _ = io.Copy(io.Discard, stdout)
			return fmt.Errorf("its report is not JSON: %q", lines.Text())
		}
		ps.send(news{from: p, report: r})
	}
	return lines.Err()
}

func (ps *processes) send(n news) {
	select {
	case ps.news <- n:
	case <-ps.stop:
	}
}

// killAll ends all processes and returns when they have ended. It is idempotent.
func (ps *processes) killAll() {
	select {
	case <-ps.stop:
		return
	default:
	}
	close(ps.stop)
	for _, p := range ps.all {
		p.kill()
	}
	ps.readers.Wait()
}

// kill sends SIGKILL, on systems with signals. A process that has ended ignores it.
func (p *process) kill() { _ = p.proc.Kill() }

func (p *process) pid() int { return p.proc.Pid }

// tell writes a line to the worker.
func (p *process) tell(line string) error {
	if _, err := io.WriteString(p.stdin, line+"\n"); err != nil {
		return fmt.Errorf("worker %s ended while it was started: %w", p.Worker, err)
	}
	return nil
}

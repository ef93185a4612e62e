package server

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// start starts a server and writes its output to the file log. stop ends the server
// and waits for that. The server ends when this process ends.
func start(log, name string, args ...string) (pid int, stop func() error, err error) {
	f, err := os.Create(log)
	if err != nil {
		return 0, nil, err
	}
	cmd := exec.Command(name, args...)
	cmd.Stdout, cmd.Stderr = f, f
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := cmd.Start(); err != nil {
		return 0, nil, errors.Join(fmt.Errorf("start %s (bench/setup.sh installs what is missing): %w", name, err), f.Close())
	}
	ended := make(chan struct{})
	go func() { // ends with the process, which stop ends
		_ = cmd.Wait() // killed, by us
		close(ended)
	}()
	return cmd.Process.Pid, func() error {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return err
		}
		select {
		case <-ended:
		case <-time.After(5 * time.Second):
			_ = cmd.Process.Kill() // the process may have ended already
			<-ended
		}
		return f.Close()
	}, nil
}

// listens waits until something accepts connections at addr.
func listens(addr string) error {
	var err error
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		var c net.Conn
		if c, err = net.Dial("tcp", addr); err == nil {
			return c.Close()
		}
	}
	return fmt.Errorf("no server came up: %w", err)
}

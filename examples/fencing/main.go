//go:build unix

// Fencing shows what no lock can do: stop a process that was paused from continuing
// after its lock is lost. It also shows how to protect the data nevertheless.
//
//	go -C examples run ./fencing
//
// Process A takes a lock and is stopped (SIGSTOP) for twice its TTL, in the middle of
// its work. B gets the lock and writes. Then A is resumed and continues where it was
// stopped. The program exits with an error if one of the steps has another result.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
)

const (
	ttl     = 2 * time.Second  // of A's session
	timeout = 15 * time.Second // of the whole program
)

// The environment variables of process A, which is another run of this program.
const (
	envEtcd  = "FENCING_ETCD"
	envStore = "FENCING_STORE"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	var err error
	if etcd := os.Getenv(envEtcd); etcd != "" {
		err = processA(ctx, etcd, os.Getenv(envStore))
	} else {
		err = show(ctx, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "fencing:", err)
		os.Exit(1)
	}
}

// processA takes the lock, works, and writes its result.
func processA(ctx context.Context, etcd, store string) error {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{etcd}, Logger: zap.NewNop()})
	if err != nil {
		return err
	}
	defer client.Close()
	session, err := etcdlock.NewSession(ctx, client, etcdlock.WithTTL(ttl))
	if err != nil {
		return err
	}
	defer session.Close()
	h, err := etcdlock.NewMutex(session, "report").Lock(ctx)
	if err != nil {
		return err
	}
	fmt.Println(h.Token())
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n') // its work, during which it is stopped

	// Data in another store: the store compares tokens.
	rows, err := update(store, "A's report", h.Token())
	switch {
	case err != nil:
		return err
	case rows != 0:
		return errors.New("the store took a report of a former holder")
	}
	fmt.Println("  A: the store has updated 0 rows, because it has seen a higher token")

	// Asking Valid before each step makes no request, because it only compares
	// clocks. It makes the dangerous time shorter, but does not remove it.
	if h.Valid() {
		return errors.New("the hold is valid after its loss")
	}
	fmt.Println("  A: Valid says false")

	// Data in etcd: a transaction that is guarded by the hold.
	_, err = h.Txn(ctx).Then(clientv3.OpPut("last-report", "A's")).Commit()
	if !errors.Is(err, etcdlock.ErrLost) {
		return errors.Join(errors.New("the guarded transaction was not refused as lost"), err)
	}
	fmt.Println("  A: Txn says", err)
	return nil
}

// show starts etcd, the store and process A, and acts as B.
func show(ctx context.Context, out io.Writer) error {
	cluster, err := etcdtest.New("")
	if err != nil {
		return err
	}
	defer cluster.Close()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer listener.Close()
	reports := serve(listener)

	a, work, says, err := startA(ctx, cluster.Endpoints()[0], listener.Addr().String())
	if err != nil {
		return err
	}
	defer func() { _ = a.Process.Kill() }() // needed only after an error
	var tokenA int64
	if _, err := fmt.Fscanln(says, &tokenA); err != nil {
		return fmt.Errorf("process A: %w", err)
	}
	fmt.Fprintf(out, "A has the lock with token %d, and works on its report\n", tokenA)
	if err := a.Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	wake := time.NewTimer(2 * ttl)
	fmt.Fprintf(out, "A is stopped for %v, twice its TTL\n", 2*ttl)

	client, err := cluster.NewClient()
	if err != nil {
		return err
	}
	defer client.Close()
	session, err := etcdlock.NewSession(ctx, client)
	if err != nil {
		return err
	}
	defer session.Close()
	b, err := etcdlock.NewMutex(session, "report").Lock(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "B has the lock with token %d, and writes its report\n", b.Token())
	if b.Token() <= tokenA {
		return errors.New("the token of the next holder is not higher")
	}
	if rows := reports.update("B's report", b.Token()); rows != 1 {
		return errors.New("the store must accept the holder of the lock")
	}

	<-wake.C
	fmt.Fprintln(out, "A is resumed and continues")
	if err := a.Process.Signal(syscall.SIGCONT); err != nil {
		return err
	}
	if _, err := io.WriteString(work, "done\n"); err != nil {
		return err
	}
	if _, err := io.Copy(out, says); err != nil {
		return err
	}
	if err := a.Wait(); err != nil {
		return fmt.Errorf("process A: %w", err)
	}
	if body := reports.read(); body != "B's report" {
		return fmt.Errorf("the store has %q", body)
	}
	if err := b.Check(ctx); err != nil {
		return err
	}
	fmt.Fprintln(out, "the store has B's report, and B still has the lock")
	return b.Unlock(ctx)
}

// startA starts process A. A line written to work ends its work. says is its output,
// which begins with its token.
func startA(ctx context.Context, etcd, store string) (a *exec.Cmd, work io.Writer, says io.Reader, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, nil, nil, err
	}
	a = exec.CommandContext(ctx, self)
	a.Env = append(os.Environ(), envEtcd+"="+etcd, envStore+"="+store)
	a.Stderr = os.Stderr
	if work, err = a.StdinPipe(); err != nil {
		return nil, nil, nil, err
	}
	if says, err = a.StdoutPipe(); err != nil {
		return nil, nil, nil, err
	}
	return a, work, says, a.Start()
}

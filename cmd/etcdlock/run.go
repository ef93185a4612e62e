package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/term"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/cmd/etcdlock/internal/connect"
	"github.com/etcdlock/etcdlock/cmd/etcdlock/internal/supervise"
)

// releaseTimeout bounds how long a command that is done waits for etcd to confirm
// that the lock is given back.
const releaseTimeout = 5 * time.Second

// shutTimeout is the same once somebody wants this process to end.
const shutTimeout = time.Second

// under are the flags that `run` and `elect` share.
type under struct {
	ttl, grace time.Duration
	owner      string
}

func (u *under) addFlags(cmd *cobra.Command) {
	cmd.Flags().DurationVar(&u.ttl, "ttl", 10*time.Second, "how long the lock stays taken when this process dies")
	cmd.Flags().DurationVar(&u.grace, "grace", 0, "time between SIGTERM and SIGKILL for CMD, a third of --ttl at most (default a fifth)")
	cmd.Flags().StringVar(&u.owner, "owner", "", "who others see in the queue (default host, CMD and process number)")
}

// complete fills in what is left to it, and checks all.
func (u *under) complete(cmd *cobra.Command, program string) error {
	if u.ttl < time.Second {
		return fmt.Errorf("--ttl %v: etcd's leases last 1s at least", u.ttl)
	}
	if !cmd.Flags().Changed("grace") {
		u.grace = u.ttl / 5
	}
	switch limit := u.ttl / 3; {
	case u.grace < 0:
		return fmt.Errorf("--grace %v: it can't be negative", u.grace)
	case u.grace > limit:
		return fmt.Errorf("--grace %v does not fit into --ttl %v: CMD gets SIGTERM that long before the lock could be lost, "+
			"which must leave two thirds of the TTL to reach etcd in; say --ttl %v or --grace %v, or less",
			u.grace, u.ttl, 3*u.grace, limit.Truncate(time.Millisecond))
	}
	if u.owner == "" {
		host, err := os.Hostname()
		if err != nil {
			host = "unknown host"
		}
		u.owner = fmt.Sprintf("%s %s[%d]", host, filepath.Base(program), os.Getpid())
	}
	return nil
}

// nameAndCommand checks the arguments NAME -- CMD ARG...
func nameAndCommand(cmd *cobra.Command, args []string) error {
	switch dash := cmd.ArgsLenAtDash(); {
	case len(args) == 0 || dash == 0:
		return fmt.Errorf("no name of a lock; it goes like this: %s", cmd.UseLine())
	case dash < 0 || dash > 1:
		return fmt.Errorf(`a "--" has to stand between NAME and CMD; it goes like this: %s`, cmd.UseLine())
	case len(args) == 1:
		return fmt.Errorf("no CMD after --; it goes like this: %s", cmd.UseLine())
	}
	return nil
}

// lookPath finds the program of a command before anybody waits for a lock for it.
func lookPath(program string) (string, error) {
	path, err := exec.LookPath(program)
	switch {
	case err == nil:
		return path, nil
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, fs.ErrNotExist):
		return "", ending{status: statusNotFound, err: fmt.Errorf("%s: command not found", program)}
	}
	return "", ending{status: statusCannotRun, err: fmt.Errorf("%s can't be executed: %w", program, err)}
}

// prepare finds the program, listens for signals, and connects.
func prepare(cmd *cobra.Command, etcd *connect.Config, program string) (path string, in *interrupts, client *clientv3.Client, err error) {
	if path, err = lookPath(program); err != nil {
		return "", nil, nil, err
	}
	pipesBreak()
	in = newInterrupts(cmd.Context(), supervise.Notify())
	cmd.SetContext(in.ctx)
	client, err = open(cmd, etcd)
	return path, in, client, err
}

// say prints a line about a lock on standard error.
func say(name, format string, args ...any) {
	fmt.Fprintf(os.Stderr, "etcdlock: %s: %s\n", name, fmt.Sprintf(format, args...))
}

// runUnder runs a command under a hold.
func (u *under) runUnder(h *etcdlock.Held, name, path string, argv []string, sigs chan os.Signal) (supervise.Outcome, error) {
	return supervise.Run(h, sigs, supervise.Command{
		Path: path, Args: argv, Grace: u.grace,
		Env: environ(
			"ETCDLOCK_NAME="+name,
			"ETCDLOCK_TOKEN="+strconv.FormatInt(h.Token(), 10),
			"ETCDLOCK_KEY="+h.Key()),
		Say: func(format string, args ...any) { say(name, format, args...) },
	})
}

// environ is this process's environment with vars in it, each once: of what stands
// there twice, as under another etcdlock run, some programs take the first.
func environ(vars ...string) []string {
	return (&exec.Cmd{Env: append(os.Environ(), vars...)}).Environ()
}

// ended is the error that says how a command ended, nil if with 0.
func ended(path string, o supervise.Outcome, err error) error {
	var start *supervise.StartError
	switch {
	case errors.As(err, &start):
		return ending{status: statusCannotRun, err: fmt.Errorf("%s can't be executed: %w", path, err)}
	case err != nil:
		return err
	case o.Status == 0:
		return nil
	}
	e := ending{status: o.Status}
	if o.Terminal && o.Signal == int(syscall.SIGINT) {
		e.raise = func() { supervise.RaiseInterrupt(o.Keyboard) }
	}
	return e
}

// An interrupts ends a ctx with the first signal that asks to end; the second one
// ends the process, if that hangs.
type interrupts struct {
	sigs   chan os.Signal
	first  bool // the first one has come
	ctx    context.Context
	cancel context.CancelCauseFunc
	quit   chan struct{} // closed by pause
	done   chan struct{} // closed when nobody reads sigs
}

func newInterrupts(ctx context.Context, sigs chan os.Signal) *interrupts {
	in := &interrupts{sigs: sigs}
	in.ctx, in.cancel = context.WithCancelCause(ctx)
	in.resume()
	return in
}

// pause leaves the signals to others, until resume.
func (in *interrupts) pause() {
	close(in.quit)
	<-in.done
}

func (in *interrupts) resume() {
	in.quit, in.done = make(chan struct{}), make(chan struct{})
	go in.listen(in.quit, in.done) // until pause, or the process's end
}

func (in *interrupts) listen(quit <-chan struct{}, done chan<- struct{}) {
	defer close(done)
	for {
		select {
		case s := <-in.sigs:
			if supervise.Stops(s) {
				supervise.StopSelf(in.sigs, in.end)
			} else {
				in.end(s)
			}
		case <-quit:
			return
		}
	}
}

// end ends what waits, if s asks for it: there is nobody to pass it on to.
func (in *interrupts) end(s os.Signal) {
	switch {
	case !supervise.Ends(s):
	case in.first:
		// Not at once: both may have come together, or the first with the command's end.
		time.AfterFunc(shutTimeout, func() { os.Exit(signalled{s}.status()) })
	default:
		in.first = true
		in.cancel(signalled{s})
	}
}

// A runner is `etcdlock run`.
type runner struct {
	under
	read, try bool
	wait      time.Duration
	name      string
	argv      []string
}

func runCommand(etcd *connect.Config) *cobra.Command {
	r := &runner{}
	cmd := &cobra.Command{
		Use:                   "run NAME [flags] -- CMD [ARG...]",
		DisableFlagsInUseLine: true,
		Short:                 "Run a command while holding a lock",
		Long: `Waits for the lock NAME, in the order of arrival, runs CMD, and gives the lock back when CMD
has ended. It ends with CMD's exit status. Signals are passed on to CMD and its process group.

CMD does not outlive the lock. If etcd can't be reached, CMD's process group gets SIGTERM while
--grace is left of the time for which the lock is held for sure, and SIGKILL at its end. If the
lock is taken away (etcdlock break), the same begins at once. If this process is killed or
stopped, a guard process sees to it. What CMD leaves running in its process group is ended too.

CMD finds in its environment ETCDLOCK_NAME, ETCDLOCK_KEY, and ETCDLOCK_TOKEN, a number that grows
with every holder: let what CMD writes to refuse numbers lower than the highest it has seen.

It queues with etcdctl lock, and with all that uses this package or etcd's own on the same name.`,
		Example: `  # one at a time, in the order of arrival
  etcdlock run jobs/report -- ./report.sh --all
  # from cron on several machines: those that come too late leave it (exit status 75)
  etcdlock run --try jobs/nightly -- ./backup.sh
  # wait for 30 s at most, then exit with 75
  etcdlock run --wait 30s jobs/nightly -- ./backup.sh
  # share the lock with other readers, exclude writers
  etcdlock run --read config/db -- ./dump.sh
  # a CMD that needs 20 s to end after SIGTERM
  etcdlock run --ttl 60s --grace 20s jobs/import -- ./import`,
		Args:        nameAndCommand,
		Annotations: map[string]string{runsCommand: "yes"},
		RunE: func(cmd *cobra.Command, args []string) error {
			r.name, r.argv = args[0], args[1:]
			return r.run(cmd, etcd)
		},
	}
	r.addFlags(cmd)
	cmd.Flags().BoolVar(&r.read, "read", false, "share the lock with other readers")
	cmd.Flags().BoolVar(&r.try, "try", false, "don't wait: exit with 75 if somebody holds the lock or waits for it")
	cmd.Flags().DurationVar(&r.wait, "wait", 0, "exit with 75 if the lock is not to be had for this long (default: wait forever)")
	return cmd
}

func (r *runner) run(cmd *cobra.Command, etcd *connect.Config) (err error) {
	if err := r.complete(cmd, r.argv[0]); err != nil {
		return err
	}
	switch {
	case r.wait < 0 || r.wait == 0 && cmd.Flags().Changed("wait"):
		return fmt.Errorf("--wait %v: it must be more than 0; to wait for nobody there is --try", r.wait)
	case r.wait > 0 && r.try:
		return errors.New("--try and --wait don't go together: choose one")
	}
	path, in, client, err := prepare(cmd, etcd, r.argv[0])
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }() // the process ends anyway
	// A Client, so that who loses the place in the queue queues again.
	locks := etcdlock.New(client, etcdlock.WithTTL(r.ttl), etcdlock.WithOwner(r.owner))
	h, err := r.acquire(in.ctx, client, locks, etcd.DialTimeout)
	in.pause()
	if err != nil {
		shut(locks)
		return err
	}
	outcome, err := supervise.Outcome{}, context.Cause(in.ctx)
	if err == nil {
		outcome, err = r.runUnder(h, r.name, path, r.argv, in.sigs)
	}
	lost := outcome.Lost
	if rerr := r.release(in.sigs, h, locks); lost == nil && err == nil {
		lost = rerr
	}
	if lost != nil {
		return ending{status: statusLost, err: fmt.Errorf("%s: the lock was not held for as long as %s ran: %w", r.name, filepath.Base(path), lost)}
	}
	return ended(path, outcome, err)
}

// What ends the waiting for a lock.
var (
	errWaited = errors.New("--wait is over")
	errSilent = errors.New("etcd has not answered")
)

// acquire gets the lock, or an error that says why not. With --try etcd has to
// answer within timeout.
func (r *runner) acquire(ctx context.Context, client *clientv3.Client, locks *etcdlock.Client, timeout time.Duration) (*etcdlock.Held, error) {
	outer := ctx
	limit, cause := r.wait, errWaited
	if r.try {
		limit, cause = timeout, errSilent
	}
	if limit > 0 {
		bounded, cancel := context.WithTimeoutCause(ctx, limit, cause)
		defer cancel()
		ctx = bounded
	}
	defer tellWait(ctx, client, r.name, r.owner)()
	h, err := r.lock(ctx, locks)
	var by signalled
	switch {
	case err == nil:
		return h, nil
	case errors.As(context.Cause(ctx), &by):
		return nil, by
	case errors.Is(err, etcdlock.ErrLocked):
		who, err := holder(outer, client, r.name, r.owner)
		if err != nil {
			who = "etcd does not tell who has it"
		}
		return nil, r.taken("not to be had at once", who)
	case errors.Is(context.Cause(ctx), errSilent):
		return nil, fmt.Errorf("%s: etcd has not answered within %v", r.name, timeout)
	case errors.Is(context.Cause(ctx), errWaited):
		who, err := holder(outer, client, r.name, r.owner)
		switch {
		case errors.As(context.Cause(outer), &by):
			return nil, by
		case err != nil: // perhaps nobody, and it was not to be had for etcd's silence
			return nil, fmt.Errorf("%s: not to be had within %v, and etcd does not tell who has it: %w", r.name, r.wait, err)
		}
		return nil, r.taken(fmt.Sprintf("still not to be had after %v", r.wait), who)
	}
	return nil, err
}

// taken is the error that somebody else has the lock.
func (r *runner) taken(what, who string) error {
	return ending{status: statusTaken, err: fmt.Errorf("%s: %s: %s", r.name, what, who)}
}

func (r *runner) lock(ctx context.Context, locks *etcdlock.Client) (*etcdlock.Held, error) {
	mutex, rw := locks.Mutex(r.name), locks.RWMutex(r.name)
	switch {
	case r.try && r.read:
		return rw.TryRLock(ctx)
	case r.try:
		return mutex.TryLock(ctx)
	case r.read:
		return rw.RLock(ctx)
	}
	return mutex.Lock(ctx)
}

// release gives the lock back, and returns an error if it was lost before.
func (r *runner) release(sigs chan os.Signal, h *etcdlock.Held, locks *etcdlock.Client) error {
	ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
	defer cancel()
	in := newInterrupts(ctx, sigs)
	defer in.pause()
	// A signal makes it hurry and no more: it may have come to the command as well, and
	// have ended that before it was read here.
	defer context.AfterFunc(in.ctx, func() { time.AfterFunc(shutTimeout, cancel) })()
	err := h.Unlock(ctx)
	if errors.Is(err, etcdlock.ErrSessionExpired) {
		return err // there is nothing left to give back
	}
	cerr := closeWithin(ctx, locks)
	switch {
	case errors.Is(err, etcdlock.ErrLost):
		return err
	case err != nil && cerr != nil:
		say(r.name, "etcd does not answer: the lock is free when its lease ends, a TTL from now at the latest")
	}
	return nil
}

// shut closes a locks in which nothing is held.
func shut(locks *etcdlock.Client) {
	ctx, cancel := context.WithTimeout(context.Background(), shutTimeout)
	defer cancel()
	_ = closeWithin(ctx, locks) // else its lease ends by itself
}

// tellAfter is how long somebody at a terminal waits before being told for what.
const tellAfter = time.Second

// tellWait tells somebody at a terminal, once, what keeps the lock from being
// had. stop ends it.
func tellWait(ctx context.Context, client *clientv3.Client, name, self string) (stop func()) {
	if !term.IsTerminal(int(os.Stderr.Fd())) {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { // until stop
		defer close(done)
		timer := time.NewTimer(tellAfter)
		defer timer.Stop()
		select {
		case <-timer.C:
			if who, err := holder(ctx, client, name, self); err == nil && ctx.Err() == nil {
				say(name, "waiting: %s", who)
			}
		case <-ctx.Done():
		}
	}()
	return func() { cancel(); <-done }
}

// holder says who holds a lock, and how many others than self wait for it.
func holder(ctx context.Context, client *clientv3.Client, name, self string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	q, err := etcdlock.New(client).Inspect(ctx, name)
	switch {
	case err != nil:
		return "", err
	case len(q.Entries) == 0:
		return "it was taken just now", nil
	}
	who := "held by " + describe(q.Entries[0], time.Now())
	if n := len(q.Holders()); n > 1 {
		who += fmt.Sprintf(" and %d more", n-1)
	}
	others := slices.DeleteFunc(q.Waiters(), func(e etcdlock.Entry) bool { return e.Owner == self })
	if n := len(others); n > 0 {
		who += fmt.Sprintf(", %d waiting", n)
	}
	return who, nil
}

// closeWithin closes locks, and returns ctx's error if that takes longer than ctx lasts; it goes on
// in the background then.
func closeWithin(ctx context.Context, locks *etcdlock.Client) error {
	done := make(chan error, 1)
	go func() { done <- locks.Close() }() // until it is closed, within seconds
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/cmd/etcdlock/internal/connect"
	"github.com/etcdlock/etcdlock/cmd/etcdlock/internal/duration"
	"github.com/etcdlock/etcdlock/cmd/etcdlock/internal/supervise"
)

// releaseTimeout bounds how long a command that is done waits for etcd to confirm
// that the lock is given back.
const releaseTimeout = 5 * time.Second

// shutTimeout is the same once somebody wants this process to end.
const shutTimeout = time.Second

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
	duration.Var(cmd.Flags(), &r.wait, "wait", 0, "exit with 75 if the lock is not to be had for this long (default: wait forever)")
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
	if !r.try {                           // which does not wait
		if err := wouldWaitForItself(in.ctx, client, r.name, r.read, etcd.DialTimeout); err != nil {
			return err
		}
	}
	notice := newWaitNotice(client, etcd, r.name, r.owner)
	// A pool, so that a waiter whose session is lost queues again.
	pool := etcdlock.NewPool(client, etcdlock.WithTTL(r.ttl), etcdlock.WithOwner(r.owner), etcdlock.WithLogger(notice.logger()))
	notice.begin(in.ctx)
	h, err := r.acquire(in.ctx, client, pool, etcd.DialTimeout)
	notice.end()
	in.pause()
	if err != nil {
		shut(pool)
		return advise(r.name, err)
	}
	outcome, err := supervise.Outcome{}, context.Cause(in.ctx)
	if err == nil {
		outcome, err = r.runUnder(h, r.name, path, r.argv, in.sigs)
	}
	lost := outcome.Lost
	if rerr := r.release(in.sigs, h, pool); lost == nil && err == nil {
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
func (r *runner) acquire(ctx context.Context, client *clientv3.Client, pool *etcdlock.Pool, timeout time.Duration) (*etcdlock.Held, error) {
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
	h, err := r.lock(ctx, pool)
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

func (r *runner) lock(ctx context.Context, pool *etcdlock.Pool) (*etcdlock.Held, error) {
	mutex, rw := etcdlock.NewMutex(pool, r.name), etcdlock.NewRWMutex(pool, r.name)
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
func (r *runner) release(sigs chan os.Signal, h *etcdlock.Held, pool *etcdlock.Pool) error {
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
	cerr := pool.Close(ctx)
	switch {
	case errors.Is(err, etcdlock.ErrLost):
		return err
	case err != nil && cerr != nil:
		say(r.name, "etcd does not answer: the lock is free when its lease ends, a TTL from now at the latest")
	}
	return nil
}

// shut closes a pool in which nothing is held.
func shut(pool *etcdlock.Pool) {
	ctx, cancel := context.WithTimeout(context.Background(), shutTimeout)
	defer cancel()
	_ = pool.Close(ctx) // else its lease ends by itself
}

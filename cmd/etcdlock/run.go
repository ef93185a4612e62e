package main

import (
	"cmp"
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

// releaseTimeout bounds how long this process waits, after its command has ended, for
// etcd to confirm the release of the lock.
const releaseTimeout = 5 * time.Second

// hurryTimeout is the same after a signal has asked this process to end. Without the confirmation the lock may stay taken
// for a TTL, so a busy etcd gets this time.
const hurryTimeout = 3 * time.Second

// shutTimeout bounds the end of a process that does not hold the lock.
const shutTimeout = time.Second

// A runner is `etcdlock run`.
type runner struct {
	under
	read, try     bool
	wait, holdFor time.Duration
	name          string
	argv          []string
}

func runCommand(etcd *connect.Config) *cobra.Command {
	r := &runner{}
	cmd := &cobra.Command{
		Use:                   "run NAME [flags] -- CMD [ARG...]",
		DisableFlagsInUseLine: true,
		Short:                 "Run a command while holding a lock",
		Long: `Waits for the lock NAME in the order of arrival, runs CMD, and releases the lock when CMD has
ended. The exit status is CMD's. Signals are passed on to CMD and its process group. After one
second of waiting, run says who holds the lock.

CMD does not outlive the lock. If etcd can't be reached, CMD's process group gets SIGTERM when
--grace is left of the time for which the lock is certainly held, and SIGKILL at the end of that
time. If somebody takes the lock away (etcdlock break), the same begins at once. If this process
is killed or stopped, a guard process ends CMD. Processes that CMD leaves in its process group
are ended too.

CMD's environment has ETCDLOCK_NAME, ETCDLOCK_KEY and ETCDLOCK_TOKEN. The token is a number that
grows with every holder: a store that CMD writes to should refuse a token that is lower than the
highest one it has seen.

--try runs CMD if the lock is free at that moment. So of two machines whose crons start it at the
same time one runs CMD; but if their clocks differ by more than CMD takes, both do, one after the
other, with status 0. --hold-for keeps the lock for as long as the clocks may differ.

It waits in one queue with etcdctl lock, and with all programs that use this package or etcd's
own concurrency package on the same name.`,
		Example: `  # one at a time, in the order of arrival
  etcdlock run jobs/report -- ./report.sh --all
  # from cron on several machines whose clocks differ by less than a minute: one runs it, the
  # others end with status 75
  etcdlock run --try --hold-for 60s jobs/nightly -- ./backup.sh
  # wait for at most 30 s, then exit with 75
  etcdlock run --wait 30s jobs/nightly -- ./backup.sh
  # share the lock with other readers, exclude writers
  etcdlock run --read config/db -- ./dump.sh
  # a CMD that needs 20 s to end after SIGTERM
  etcdlock run --ttl 60s --grace 20s jobs/import -- ./import`,
		Args:        nameAndCommand,
		Annotations: map[string]string{runsCommand: "yes"},
		RunE: func(cmd *cobra.Command, args []string) error {
			r.name, r.argv = nameAndArgv(cmd, args)
			return r.run(cmd, etcd)
		},
	}
	r.addFlags(cmd)
	cmd.Flags().BoolVar(&r.read, "read", false, "share the lock with other readers")
	cmd.Flags().BoolVar(&r.try, "try", false, "don't wait: exit with 75 if somebody holds the lock or waits for it")
	duration.Var(cmd.Flags(), &r.wait, "wait", 0, "how long to wait for the lock before exiting with 75 (default: forever)")
	duration.Var(cmd.Flags(), &r.holdFor, "hold-for", 0, "keep the lock for so long from its grant, also if CMD ends sooner")
	return cmd
}

func (r *runner) run(cmd *cobra.Command, etcd *connect.Config) (err error) {
	if err := r.complete(cmd, r.argv[0]); err != nil {
		return err
	}
	switch {
	case r.wait < 0 || r.wait == 0 && cmd.Flags().Changed("wait"):
		return fmt.Errorf("--wait %v: it must be more than 0; --try does not wait at all", r.wait)
	case r.holdFor < 0:
		return fmt.Errorf("--hold-for %v: it can't be negative", r.holdFor)
	case r.wait > 0 && r.try:
		return errors.New("--try and --wait exclude each other: choose one")
	}
	path, in, client, err := prepare(cmd, etcd, r.argv[0])
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }() // the process ends anyway
	notice := newWaitNotice(client, etcd, r.name, r.owner)
	// A Client, so that a waiter whose session is lost queues again.
	locks := etcdlock.New(client, append(notice.observe(), etcdlock.WithTTL(r.ttl), etcdlock.WithOwner(r.owner))...)
	if !r.try { // --try does not wait
		if err := wouldWaitForItself(in.ctx, client, r.name, r.read, etcd.DialTimeout); err != nil {
			return err
		}
		notice.begin(in.ctx)
	}
	h, err := r.acquire(in.ctx, client, locks, notice.ownLeases, etcd.DialTimeout)
	notice.end()
	in.pause()
	if err != nil {
		shut(locks)
		return err
	}
	granted := time.Now()
	outcome, err := supervise.Outcome{}, context.Cause(in.ctx)
	if err == nil {
		outcome, err = r.runUnder(h, r.name, path, r.argv, in.sigs, notice.why)
	}
	lost := outcome.Lost
	ran := lost == nil && err == nil // with the lock, to its end
	if ran && !outcome.Asked && r.keep(in, h, time.Until(granted.Add(r.holdFor))) {
		ran = false // what is lost after that is said
	}
	if rerr := r.release(in.sigs, h, locks, ran); ran {
		lost = rerr
	}
	if lost != nil {
		return ending{status: statusLost, err: fmt.Errorf("%s: the lock was not held all the time that %s ran: %w", shown(r.name), filepath.Base(path), lost)}
	}
	return ended(path, outcome, err)
}

// keep keeps the lock for as long as --hold-for wants, after CMD has ended, unless a signal asks this process to end. It
// reports whether the lock was lost in that time.
func (r *runner) keep(in *interrupts, h *etcdlock.Held, left time.Duration) (lost bool) {
	if left <= 0 {
		return false
	}
	in.resume()
	defer in.pause()
	select {
	case <-time.After(left):
	case <-in.ctx.Done():
	case <-h.Done():
	}
	if !h.Valid() { // all of these are so at once where this process was stopped
		say(r.name, "the lock was lost after %s had ended, and before --hold-for was over: %v", filepath.Base(r.argv[0]), cmp.Or(h.Err(), etcdlock.ErrSessionExpired))
		return true
	}
	return false
}

// What ends the waiting for a lock.
var (
	errWaited = errors.New("--wait is over")
	errSilent = errors.New("etcd has not answered")
)

// acquire takes the lock. own are the leases of locks. With --try etcd has to answer within timeout, and whenever it is asked who holds the lock.
func (r *runner) acquire(ctx context.Context, client *clientv3.Client, locks *etcdlock.Client, own func() leases, timeout time.Duration) (*etcdlock.Held, error) {
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
	h, err := r.lock(ctx, locks)
	var by signalled
	switch {
	case err == nil:
		return h, nil
	case errors.As(context.Cause(ctx), &by):
		return nil, by
	case errors.Is(err, etcdlock.ErrLocked):
		who, err := holder(outer, client, r.name, own(), timeout)
		if err != nil {
			who = "etcd does not say by whom"
		}
		return nil, r.taken("the lock is taken", cmp.Or(who, "somebody who has just released it"))
	case errors.Is(context.Cause(ctx), errSilent):
		return nil, fmt.Errorf("%s: etcd has not answered within %v", shown(r.name), timeout)
	case errors.Is(context.Cause(ctx), errWaited):
		who, err := holder(outer, client, r.name, own(), timeout)
		switch {
		case errors.As(context.Cause(outer), &by):
			return nil, by
		case err != nil: // perhaps nobody holds it, and only etcd was away
			return nil, fmt.Errorf("%s: no lock within %v, and etcd does not say who holds it: %w", shown(r.name), r.wait, err)
		case who == "": // etcd was away, or it was released at that moment: nothing says that another one has run
			return nil, fmt.Errorf("%s: no lock within %v, and nobody holds it now", shown(r.name), r.wait)
		}
		return nil, r.taken(fmt.Sprintf("the lock was still taken after %v", r.wait), who)
	}
	return nil, err
}

// taken is the error for a lock that somebody else holds.
func (r *runner) taken(what, who string) error {
	return ending{status: statusTaken, err: fmt.Errorf("%s: %s: %s", shown(r.name), what, who)}
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

// release releases the lock. It returns an error if the lock was lost before. ran says that nothing was known of that when the
// command had ended.
func (r *runner) release(sigs chan os.Signal, h *etcdlock.Held, locks *etcdlock.Client, ran bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
	defer cancel()
	in := newInterrupts(ctx, sigs, true)
	defer in.pause()
	// A signal only shortens the wait. Neither the first nor the second is a reason to end
	// with another status: they may have ended the command just now.
	defer context.AfterFunc(in.ctx, func() { time.AfterFunc(hurryTimeout, cancel) })()
	lasted := ran && h.Valid() // until now, after the command has ended
	err := h.Unlock(ctx)
	switch expired := errors.Is(err, etcdlock.ErrSessionExpired); {
	case expired && lasted && !time.Now().Before(h.Deadline()): // by the clock: etcd says nothing
		r.unconfirmed()
		return nil
	case expired: // etcd has removed the entry
		return err
	}
	cerr := closeWithin(ctx, locks)
	switch {
	case errors.Is(err, etcdlock.ErrLost):
		return err
	case err != nil && cerr != nil:
		r.unconfirmed()
	}
	return nil
}

// unconfirmed says that the release had no answer.
func (r *runner) unconfirmed() {
	say(r.name, "etcd does not answer: the lock becomes free when its lease ends, at most a TTL from now")
}

// shut closes a Client in which nothing is held.
func shut(locks *etcdlock.Client) {
	ctx, cancel := context.WithTimeout(context.Background(), shutTimeout)
	defer cancel()
	_ = closeWithin(ctx, locks) // if it fails, the lease ends by itself
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

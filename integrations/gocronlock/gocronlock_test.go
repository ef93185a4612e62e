package gocronlock

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/integrations/internal/locktest"
	"github.com/etcdlock/etcdlock/internal/test/harness"
)

var cluster *etcdtest.Cluster

func TestMain(m *testing.M) { os.Exit(harness.Main(&cluster, m.Run)) }

// runOnce has a scheduler run a task once, as the job of that name, and returns the error of its lock.
func runOnce(t *testing.T, l gocron.Locker, name string, task Task) error {
	t.Helper()
	s, err := gocron.NewScheduler(gocron.WithDistributedLocker(l))
	require.NoError(t, err)
	done := make(chan error, 1)
	_, err = s.NewJob(gocron.OneTimeJob(gocron.OneTimeJobStartImmediately()), gocron.NewTask(task), gocron.WithName(name),
		gocron.WithEventListeners(
			gocron.AfterLockError(func(_ uuid.UUID, _ string, err error) { done <- err }),
			gocron.AfterJobRuns(func(uuid.UUID, string) { done <- nil }),
			gocron.AfterJobRunsWithError(func(_ uuid.UUID, _ string, err error) { done <- err }),
		))
	require.NoError(t, err)
	s.Start()
	err = harness.Result(t, done)
	require.NoError(t, s.Shutdown())
	return err
}

// Two replicas have the same job. The second one is late by more than the job takes.
func TestLocker_QuickJob(t *testing.T) {
	for holdFor, want := range map[time.Duration]int{time.Hour: 1, 0: 2} {
		t.Run(holdFor.String(), func(t *testing.T) {
			c := cluster.Client(t)
			name := harness.LockName(t)
			runs := 0
			task := func(context.Context) error { runs++; return nil }
			require.NoError(t, runOnce(t, NewLocker(locktest.Client(t, c), "", holdFor), name, task))
			if holdFor == 0 {
				require.Eventually(t, func() bool { return len(harness.Entries(t, c, name)) == 0 }, harness.Hang, harness.Tick)
			}
			err := runOnce(t, NewLocker(locktest.Client(t, c), "", holdFor), name, task)
			require.Equal(t, want, runs)
			if want == 1 {
				require.ErrorIs(t, err, etcdlock.ErrLocked)
			} else {
				require.NoError(t, err)
			}
		})
	}
}

// A slow job is skipped elsewhere while it runs, whatever the time for which its lock is kept.
func TestLocker_SlowJob(t *testing.T) {
	name := harness.LockName(t)
	err := runOnce(t, NewLocker(locktest.Client(t, cluster.Client(t)), "", 0), name, func(context.Context) error {
		return runOnce(t, NewLocker(locktest.Client(t, cluster.Client(t)), "", 0), name, func(context.Context) error { return nil })
	})
	require.ErrorIs(t, err, etcdlock.ErrLocked)
}

func TestLocker_Loss(t *testing.T) {
	locks := locktest.Client(t, cluster.Client(t))
	name := harness.LockName(t)
	l := NewLocker(locks, "", time.Hour)
	err := runOnce(t, l, name, l.Task(name, func(ctx context.Context) error {
		locktest.Lose(t, locks)
		<-ctx.Done()
		require.ErrorIs(t, context.Cause(ctx), etcdlock.ErrLost)
		return nil
	}))
	require.ErrorIs(t, err, etcdlock.ErrLost)
	require.NoError(t, runOnce(t, l, name, func(context.Context) error { return nil }), "the lock must be free again")
}

// One run of a job has lost its lock before its task began, and the next run has the lock. Only one task runs.
func TestLocker_TaskTakesAHoldOnce(t *testing.T) {
	locks := locktest.Client(t, cluster.Client(t))
	l := NewLocker(locks, "", 0)
	name := harness.LockName(t)
	lost, err := l.Lock(harness.Ctx(t), name)
	require.NoError(t, err)
	locktest.Lose(t, locks)
	next, err := l.Lock(harness.Ctx(t), name)
	require.NoError(t, err)
	require.ErrorIs(t, lost.Unlock(harness.Ctx(t)), etcdlock.ErrLost)
	runs := 0
	task := l.Task(name, func(context.Context) error { runs++; return nil })
	require.NoError(t, task(harness.Ctx(t)))
	require.ErrorIs(t, task(harness.Ctx(t)), etcdlock.ErrNotHeld)
	require.Equal(t, 1, runs)
	require.NoError(t, next.Unlock(harness.Ctx(t)))

	unused, err := l.Lock(harness.Ctx(t), name)
	require.NoError(t, err)
	require.NoError(t, unused.Unlock(harness.Ctx(t)))
	require.ErrorIs(t, task(harness.Ctx(t)), etcdlock.ErrNotHeld)
}

func TestLocker_Refusal(t *testing.T) {
	_, as := harness.StartWithAuth(t)
	err := runOnce(t, NewLocker(locktest.Client(t, as("worker")), "b/", 0), "job", func(context.Context) error {
		t.Error("it runs without its lock")
		return nil
	})
	require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
}

// runs begins Run, and returns what ends it and waits for it.
func runs(t *testing.T, e *Elector) (stop func() error) {
	ctx, cancel := context.WithCancel(harness.Ctx(t))
	done := harness.Async(func() error { return e.Run(ctx) })
	t.Cleanup(cancel)
	return func() error { cancel(); return harness.Result(t, done) }
}

func leads(t *testing.T, e *Elector) {
	t.Helper()
	require.Eventually(t, func() bool { return e.IsLeader(harness.Ctx(t)) == nil }, harness.Hang, harness.Tick)
}

func TestElector(t *testing.T) {
	name := harness.LockName(t)
	one, two := NewElector(locktest.Client(t, cluster.Client(t)), name), NewElector(locktest.Client(t, cluster.Client(t)), name)
	require.ErrorIs(t, one.IsLeader(harness.Ctx(t)), ErrNotLeader)
	stop := runs(t, one)
	leads(t, one)
	stopTwo := runs(t, two)
	require.Eventually(t, func() bool { return len(harness.Entries(t, cluster.Client(t), name)) == 2 }, harness.Hang, harness.Tick)
	require.ErrorIs(t, two.IsLeader(harness.Ctx(t)), ErrNotLeader)
	require.ErrorIs(t, two.Task(func(context.Context) error { t.Error("it runs"); return nil })(harness.Ctx(t)), ErrNotLeader)
	third := runs(t, NewElector(locktest.Client(t, cluster.Client(t)), name))
	require.NoError(t, third(), "the end of a campaign is no error")
	require.NoError(t, stop())
	require.ErrorIs(t, one.IsLeader(harness.Ctx(t)), ErrNotLeader)
	leads(t, two)
	require.NoError(t, stopTwo())
}

// A process that wakes from a pause does not lead before its own goroutines have found that the term is over.
func TestElector_PausedPastTheTerm(t *testing.T) {
	locks := locktest.Client(t, cluster.Client(t))
	term, err := locks.Mutex(harness.LockName(t)).Lock(harness.Ctx(t))
	require.NoError(t, err)
	e := NewElector(locks, "unused")
	e.set(harness.Ctx(t), term)
	require.NoError(t, e.IsLeader(harness.Ctx(t)))
	locktest.Lose(t, locks)
	require.ErrorIs(t, e.IsLeader(harness.Ctx(t)), ErrNotLeader)
	require.ErrorIs(t, e.Task(func(context.Context) error { t.Error("it runs"); return nil })(harness.Ctx(t)), ErrNotLeader)
}

// A task is told that the term is lost. While it goes on all the same, its process does not campaign.
func TestElector_Loss(t *testing.T) {
	c := cluster.Client(t)
	locks := locktest.Client(t, c)
	name := harness.LockName(t)
	e := NewElector(locks, name)
	stop := runs(t, e)
	leads(t, e)
	told, began, goOn := make(chan error, 1), make(chan struct{}), make(chan struct{})
	done := harness.Async(func() error {
		return e.Task(func(ctx context.Context) error {
			close(began)
			<-ctx.Done()
			told <- context.Cause(ctx)
			<-goOn
			return nil
		})(harness.Ctx(t))
	})
	<-began
	locktest.Lose(t, locks)
	require.ErrorIs(t, harness.Result(t, told), etcdlock.ErrLost)
	require.ErrorIs(t, e.IsLeader(harness.Ctx(t)), ErrNotLeader)
	require.Empty(t, harness.Entries(t, c, name))
	close(goOn)
	require.NoError(t, harness.Result(t, done))
	leads(t, e)
	require.NoError(t, stop())
}

// Nobody else leads before the tasks of this process have returned.
func TestElector_ResignsAfterItsTasks(t *testing.T) {
	c := cluster.Client(t)
	name := harness.LockName(t)
	e := NewElector(locktest.Client(t, c), name)
	ctx, cancel := context.WithCancel(harness.Ctx(t))
	stopped := harness.Async(func() error { return e.Run(ctx) })
	leads(t, e)
	began, goOn := make(chan struct{}), make(chan struct{})
	done := harness.Async(func() error {
		return e.Task(func(ctx context.Context) error {
			close(began)
			<-ctx.Done()
			<-goOn
			require.Len(t, harness.Entries(t, c, name), 1)
			return nil
		})(harness.Ctx(t))
	})
	<-began
	cancel()
	require.Eventually(t, func() bool { return e.IsLeader(harness.Ctx(t)) != nil }, harness.Hang, harness.Tick)
	harness.Hangs(t, stopped, 50*time.Millisecond)
	close(goOn)
	require.NoError(t, harness.Result(t, done))
	require.NoError(t, harness.Result(t, stopped))
	harness.QueueIs(t, c, name, 0)
}

func TestElector_Refusal(t *testing.T) {
	_, as := harness.StartWithAuth(t)
	require.ErrorIs(t, NewElector(locktest.Client(t, as("worker")), "b").Run(harness.Ctx(t)), rpctypes.ErrPermissionDenied)
}

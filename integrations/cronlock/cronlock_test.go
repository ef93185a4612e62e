package cronlock

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/robfig/cron/v3"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/integrations/internal/locktest"
	"github.com/etcdlock/etcdlock/internal/test/harness"
)

var cluster *etcdtest.Cluster

func TestMain(m *testing.M) { os.Exit(harness.Main(&cluster, m.Run)) }

// logs are the lines and the errors that a job has logged.
type logs struct {
	infos []string
	errs  []error
}

func (l *logs) Info(msg string, _ ...any)           { l.infos = append(l.infos, msg) }
func (l *logs) Error(err error, _ string, _ ...any) { l.errs = append(l.errs, err) }

func TestSkipIfLocked(t *testing.T) {
	c := cluster.Client(t)
	name := harness.LockName(t)
	one, two := locktest.Client(t, c), locktest.Client(t, c)
	var log logs
	runs := 0
	job := cron.NewChain(SkipIfLocked(harness.Ctx(t), one.Mutex(name), 0, &log)).Then(cron.FuncJob(func() {
		runs++
		require.Len(t, harness.Entries(t, c, name), 1)
	}))
	job.Run()
	require.Equal(t, 1, runs)
	harness.QueueIs(t, c, name, 0)

	h, err := two.Mutex(name).Lock(harness.Ctx(t))
	require.NoError(t, err)
	job.Run()
	require.Equal(t, 1, runs)
	require.Equal(t, logs{infos: []string{"skip"}}, log)
	require.NoError(t, h.Unlock(harness.Ctx(t)))
	job.Run()
	require.Equal(t, 2, runs)
}

// The clocks of two replicas differ, and the job is quicker than that.
func TestSkipIfLocked_QuickJob(t *testing.T) {
	name := harness.LockName(t)
	runs := 0
	for range 2 {
		locks := locktest.Client(t, cluster.Client(t))
		SkipIfLocked(harness.Ctx(t), locks.Mutex(name), time.Hour, &logs{})(cron.FuncJob(func() { runs++ })).Run()
	}
	require.Equal(t, 1, runs)
}

func TestSkipIfLocked_Panic(t *testing.T) {
	c := cluster.Client(t)
	name := harness.LockName(t)
	var log logs
	job := SkipIfLocked(harness.Ctx(t), locktest.Client(t, c).Mutex(name), 0, &log)(cron.FuncJob(func() { panic("job") }))
	require.PanicsWithValue(t, "job", job.Run)
	harness.QueueIs(t, c, name, 0)
	require.Equal(t, logs{}, log)
}

func TestJob_Loss(t *testing.T) {
	locks := locktest.Client(t, cluster.Client(t))
	var log logs
	Job(harness.Ctx(t), locks.Mutex(harness.LockName(t)), time.Hour, &log, func(ctx context.Context, h *etcdlock.Held) error {
		locktest.Lose(t, locks)
		<-ctx.Done()
		require.ErrorIs(t, context.Cause(ctx), etcdlock.ErrLost)
		return errors.ErrUnsupported
	}).Run()
	require.Len(t, log.errs, 2)
	require.ErrorIs(t, log.errs[0], errors.ErrUnsupported)
	require.ErrorIs(t, log.errs[1], etcdlock.ErrLost)
}

// The process ends while a job runs: the job is told, and the lock is released, without an error in the log.
func TestJob_ProcessEnds(t *testing.T) {
	c := cluster.Client(t)
	name := harness.LockName(t)
	ctx, stop := context.WithCancel(harness.Ctx(t))
	var log logs
	job := Job(ctx, locktest.Client(t, c).Mutex(name), 0, &log, func(ctx context.Context, h *etcdlock.Held) error {
		stop()
		<-ctx.Done()
		return nil
	})
	job.Run()
	harness.QueueIs(t, c, name, 0)
	require.Equal(t, logs{}, log)
	job.Run()
	require.Len(t, log.errs, 1)
	require.ErrorIs(t, log.errs[0], context.Canceled)
}

func TestSkipIfLocked_Refusal(t *testing.T) {
	_, as := harness.StartWithAuth(t)
	var log logs
	SkipIfLocked(harness.Ctx(t), locktest.Client(t, as("worker")).Mutex("b"), 0, &log)(cron.FuncJob(func() { t.Error("it runs without its lock") })).Run()
	require.Len(t, log.errs, 1)
	require.ErrorIs(t, log.errs[0], rpctypes.ErrPermissionDenied)
}

// Package cronlock has a job of robfig/cron run in one replica at a time.
//
//	once := cronlock.SkipIfLocked(ctx, locks.Mutex("jobs/report"), time.Minute, logger)
//	c.AddJob("@hourly", cron.NewChain(once).Then(job))
//
// A job that is quick ends before the clock of the next replica strikes, and would run there again. So a lock is kept
// for at least a while: choose more than the clocks differ, and less than the time between two runs. But no lock outlives
// its session: if a process ends within that time after a quick job, a replica whose clock is behind may run the job again.
package cronlock

import (
	"context"
	"errors"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/integrations/internal/hold"
)

// SkipIfLocked makes a JobWrapper that runs a job if the mutex is free, keeps the mutex while the job runs and for at
// least the time holdFor from its grant, and skips the run if somebody has the mutex or waits for it. Each job needs a
// mutex of its own, so this is for the job's own chain, and not for cron.WithChain.
//
// It also skips the run if etcd refuses, or has not answered after 5 s, or ctx has ended. That and the loss of the lock
// are logged as errors, a run that is skipped for another replica at Info. A cron.Job has no ctx, so it can't be stopped when its lock is lost: see [Job].
func SkipIfLocked(ctx context.Context, m *etcdlock.Mutex, holdFor time.Duration, logger cron.Logger) cron.JobWrapper {
	return func(j cron.Job) cron.Job {
		return Job(ctx, m, holdFor, logger, func(context.Context, *etcdlock.Held) error {
			j.Run()
			return nil
		})
	}
}

// Job makes a job of a function that is told of the loss of its lock: its ctx ends then, and also when the ctx that Job
// got does. In all else it is like a job in SkipIfLocked. An error of the function is logged.
func Job(ctx context.Context, m *etcdlock.Mutex, holdFor time.Duration, logger cron.Logger, fn func(context.Context, *etcdlock.Held) error) cron.Job {
	return cron.FuncJob(func() {
		h, err := hold.Try(ctx, m)
		switch {
		case errors.Is(err, etcdlock.ErrLocked):
			logger.Info("skip", "reason", err)
			return
		case err != nil:
			logger.Error(err, "skip")
			return
		}
		defer func(granted time.Time) { // also when fn panics
			if err := hold.UnlockAfter(context.WithoutCancel(ctx), h, granted, holdFor); err != nil {
				logger.Error(err, "unlock")
			}
		}(time.Now())
		ctx, cancel := hold.Join(ctx, h.Context())
		defer cancel()
		if err := fn(ctx, h); err != nil {
			logger.Error(err, "job")
		}
	})
}

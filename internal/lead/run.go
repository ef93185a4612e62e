// Campaigning for terms, and leading in them, one after the other.

package lead

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/etcdlock/etcdlock/internal/etcd"
)

// The pause before the next campaign grows while terms are short and campaigns fail.
const (
	PauseMin = 50 * time.Millisecond
	pauseMax = 5 * time.Second
)

// Run waits for a term and leads in it, until a term has lasted until the function returned, or another campaign would be
// useless. It returns the error of the function, or of the last campaign.
func (l *Lead[T]) Run(ctx context.Context, log *slog.Logger, lead func(ctx context.Context, term T) error) error {
	logged := false
	for retry := (etcd.Backoff{Min: PauseMin, Max: pauseMax}); ; {
		term, err := l.Campaign(ctx)
		switch {
		case err == nil:
			began := time.Now()
			logged = false
			lost, err := l.serve(ctx, term, lead)
			if !lost {
				return err
			}
			if err != nil && !etcd.IsCtxError(err) && !errors.Is(err, l.Lost) {
				log.Warn("lead failed in a term that was lost", "token", term.Token(), "error", err)
			}
			if time.Since(began) > l.TTL(term) {
				retry.Reset()
			}
		case errors.Is(err, l.Lost), etcd.Alarm(err):
			// Somebody removed its entry; or etcd refuses all locks, for a while.
			if !logged {
				log.Warn("campaign failed, another one follows", "error", err)
			}
			logged = true
		default:
			return err
		}
		_ = retry.Wait(ctx) // ctx is looked at next
	}
}

// serve leads for a term, and resigns.
func (l *Lead[T]) serve(ctx context.Context, term T, lead func(context.Context, T) error) (lost bool, err error) {
	ctx, stop := etcd.Bind(ctx, term.Context())
	defer stop()
	end := l.Begin(term)
	defer func() { // also when lead panics
		end()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.TTL(term))
		defer cancel()
		lost = l.Resign(ctx, term)
	}()
	return false, lead(ctx, term)
}

package lead

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

var errLost, errReleased = errors.New("lost"), errors.New("released")

// term is a Term that ends when lose is called.
type term struct {
	ctx      context.Context
	lose     context.CancelCauseFunc
	deadline time.Time
}

func newTerm(ttl time.Duration) *term {
	ctx, cancel := context.WithCancelCause(context.Background())
	return &term{ctx, cancel, time.Now().Add(ttl)}
}

func (t *term) Context() context.Context { return t.ctx }
func (t *term) Err() error               { return context.Cause(t.ctx) }
func (t *term) Valid() bool              { return t.Err() == nil && time.Now().Before(t.deadline) }
func (t *term) Deadline() time.Time      { return t.deadline }

// A process that was asleep past the deadline of its term has led too long by all that time, also once the end of the
// term was noticed.
func TestOver_CountsFromTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := Lead[*term]{Lost: errLost, Released: errReleased}
		one := newTerm(10 * time.Second)
		end := l.Begin(one, func(error) {})
		<-time.After(30 * time.Second)
		_, over := l.Over()
		require.Equal(t, 20*time.Second, over)
		one.lose(errLost)
		synctest.Wait()
		_, over = l.Over()
		require.Equal(t, 20*time.Second, over)
		end()
	})
}

// A term that is lost before its deadline is lost when that is noticed, and no released term is lost.
func TestOver_CountsFromTheLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := Lead[*term]{Lost: errLost, Released: errReleased}
		one := newTerm(time.Hour)
		end := l.Begin(one, func(error) {})
		_, over := l.Over()
		require.Zero(t, over)
		one.lose(errLost)
		<-time.After(time.Second)
		_, over = l.Over()
		require.Equal(t, time.Second, over)
		end()
		_, over = l.Over()
		require.Zero(t, over)

		two := newTerm(time.Hour)
		end = l.Begin(two, func(error) {})
		two.lose(errReleased)
		<-time.After(2 * time.Hour)
		_, over = l.Over()
		require.Zero(t, over)
		end()
	})
}

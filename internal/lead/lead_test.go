package lead

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
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
func (t *term) Token() int64             { return 7 }

// campaigner is a Lead whose campaigns end as next says.
func campaigner(next func() (*term, error)) *Lead[*term] {
	return &Lead[*term]{
		Lost: errLost, Released: errReleased,
		Campaign: func(context.Context) (*term, error) { return next() },
		Resign: func(_ context.Context, term *term) (lost bool) {
			lost = errors.Is(term.Err(), errLost)
			term.lose(errReleased)
			return lost
		},
		TTL: func(*term) time.Duration { return 10 * time.Second },
	}
}

// Whatever the function returns for a term that was lost, another campaign follows; what it returns for a term that has
// lasted, Run returns.
func TestRun_LeadsUntilATermLasts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var text bytes.Buffer
		terms, failed := []*term{}, errors.New("failed")
		l := campaigner(func() (*term, error) {
			terms = append(terms, newTerm(time.Hour))
			return terms[len(terms)-1], nil
		})
		err := l.Run(t.Context(), slog.New(slog.NewTextHandler(&text, nil)), func(ctx context.Context, term *term) error {
			got, ok := l.Term()
			require.True(t, ok)
			require.Same(t, term, got)
			switch len(terms) {
			case 1:
				term.lose(errLost)
				<-ctx.Done()
				require.ErrorIs(t, context.Cause(ctx), errLost)
				return ctx.Err() // which is no failure
			case 2:
				term.lose(errLost)
				return fmt.Errorf("section: %w", errLost) // nor is this
			case 3:
				term.lose(errLost)
			}
			return failed
		})
		require.ErrorIs(t, err, failed)
		require.Len(t, terms, 4)
		require.Equal(t, 1, strings.Count(text.String(), "\n"))
		require.Contains(t, text.String(), `msg="lead failed in a term that was lost" token=7 error=failed`)
		_, ok := l.Term()
		require.False(t, ok)
		require.ErrorIs(t, terms[3].Err(), errReleased)
	})
}

// The pause between campaigns grows while terms are short, and a long term makes it short again.
func TestRun_Pauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var campaigns []time.Time
		ended := time.Now()
		var pauses []time.Duration
		l := campaigner(func() (*term, error) {
			campaigns, pauses = append(campaigns, time.Now()), append(pauses, time.Since(ended))
			return newTerm(time.Hour), nil
		})
		require.NoError(t, l.Run(t.Context(), slog.New(slog.DiscardHandler), func(_ context.Context, term *term) error {
			if len(campaigns) == 5 {
				<-time.After(11 * time.Second)
			}
			if len(campaigns) < 6 {
				term.lose(errLost)
			}
			ended = time.Now()
			return nil
		}))
		for i, pause := range pauses[1:5] {
			require.GreaterOrEqual(t, pause, PauseMin<<i/2)
		}
		require.Less(t, pauses[5], 3*PauseMin/2)
	})
}

// A campaign that was lost, or that etcd refuses for a while, is followed by another one, and the log has one line for all
// of them in a row. Any other error ends Run.
func TestRun_CampaignsFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var text bytes.Buffer
		refused := errors.New("refused")
		fails := []error{errLost, rpctypes.ErrNoSpace, errLost, nil, errLost, refused}
		l := campaigner(func() (_ *term, err error) {
			err, fails = fails[0], fails[1:]
			return newTerm(time.Hour), err
		})
		require.ErrorIs(t, l.Run(t.Context(), slog.New(slog.NewTextHandler(&text, nil)), func(_ context.Context, term *term) error {
			term.lose(errLost)
			return nil
		}), refused)
		require.Empty(t, fails)
		require.Equal(t, 2, strings.Count(text.String(), "campaign failed, another one follows"))
	})
}

// A function that panics has resigned.
func TestRun_Panics(t *testing.T) {
	one := newTerm(time.Hour)
	l := campaigner(func() (*term, error) { return one, nil })
	require.PanicsWithValue(t, "boom", func() {
		_ = l.Run(t.Context(), slog.New(slog.DiscardHandler), func(context.Context, *term) error { panic("boom") })
	})
	require.ErrorIs(t, one.Err(), errReleased)
	_, ok := l.Term()
	require.False(t, ok)
}

// A process that was asleep past the deadline of its term has led too long by all that time, also once the end of the
// term was noticed.
func TestOver_CountsFromTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := Lead[*term]{Lost: errLost, Released: errReleased}
		one := newTerm(10 * time.Second)
		end := l.Begin(one)
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
		end := l.Begin(one)
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
		end = l.Begin(two)
		two.lose(errReleased)
		<-time.After(2 * time.Hour)
		_, over = l.Over()
		require.Zero(t, over)
		end()
	})
}

// What has returned goes on no more, however long the call of Overrun takes that its end waits for.
func TestOver_BesideAnOverrunThatBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		told, release := make(chan struct{}), make(chan struct{})
		l := Lead[*term]{Lost: errLost, Released: errReleased, Grace: time.Second, Overrun: func(*term) {
			close(told)
			<-release
		}}
		one := newTerm(time.Hour)
		end := l.Begin(one)
		one.lose(errLost)
		<-told
		_, over := l.Over()
		require.Equal(t, time.Second, over)
		defer close(release)
		go end()
		<-time.After(time.Minute)
		_, over = l.Over()
		require.Zero(t, over, "it has returned")
	})
}

package keep

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

var errClosed = errors.New("closed")

// A fake is a session.
type fake struct{ ended, finished atomic.Bool }

// A scene is a Keeper whose grants take a second, and fail with err.
type scene struct {
	*Keeper[*fake]
	grants int
	err    error
	left   atomic.Bool // something is left of a grant that failed
}

func newScene() *scene {
	s := &scene{}
	s.Keeper = New(Config[*fake]{
		Grant: func(ctx context.Context) (*fake, func(context.Context), error) {
			s.grants++
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
				return nil, nil, ctx.Err()
			}
			if s.err != nil {
				return nil, func(closed context.Context) {
					s.left.Store(true)
					<-closed.Done()
					<-time.After(time.Second)
					s.left.Store(false)
				}, s.err
			}
			return &fake{}, nil, nil
		},
		Lives: func(f *fake) bool { return !f.ended.Load() },
		End:   func(f *fake) { f.ended.Store(true) },
		Finish: func(f *fake) error {
			<-time.After(time.Second)
			f.finished.Store(true)
			return errors.New("it is not known to be revoked")
		},
		Closed:   errClosed,
		CtxError: func(ctx context.Context) error { return ctx.Err() },
	})
	return s
}

// All who want a session at once share one grant. The end of a caller's ctx is that of the caller's own attempt.
func TestKeeper_SharesGrants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene()
		first, giveUp := context.WithTimeout(t.Context(), time.Second/2)
		defer giveUp()
		errs, got := make(chan error, 1), make(chan *fake, 9)
		go func() { _, err := s.Session(first); errs <- err }()
		synctest.Wait()
		for range cap(got) {
			go func() {
				f, err := s.Session(t.Context())
				if err != nil {
					t.Error(err)
				}
				got <- f
			}()
		}
		require.ErrorIs(t, <-errs, context.DeadlineExceeded)
		f := <-got
		for range cap(got) - 1 {
			require.Same(t, f, <-got)
		}
		require.Equal(t, 2, s.grants)
	})
}

// A session that has ended is finished when the next one is granted, in the background.
func TestKeeper_FinishesTheLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene()
		f, err := s.Session(t.Context())
		require.NoError(t, err)
		f.ended.Store(true)
		last, lives := s.Last()
		require.Same(t, f, last)
		require.False(t, lives)
		next, err := s.Session(t.Context())
		require.NoError(t, err)
		require.NotSame(t, f, next)
		require.False(t, f.finished.Load())
		done := s.Close()
		require.True(t, next.ended.Load(), "at once")
		<-done
		require.True(t, f.finished.Load())
		require.True(t, next.finished.Load())
		require.EqualError(t, s.Err(), "it is not known to be revoked")
	})
}

// Close ends the session at once, a grant under way, and what failed grants have left.
func TestKeeper_Close(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene()
		s.err = errors.New("the reply is lost")
		_, err := s.Session(t.Context())
		require.ErrorIs(t, err, s.err)
		synctest.Wait()
		require.True(t, s.left.Load())
		errs := make(chan error, 2)
		for range cap(errs) {
			go func() { _, err := s.Session(t.Context()); errs <- err }()
		}
		synctest.Wait()
		done := s.Close()
		for range cap(errs) {
			require.ErrorIs(t, <-errs, errClosed)
		}
		<-done
		require.False(t, s.left.Load())
		_, err = s.Session(t.Context())
		require.ErrorIs(t, err, errClosed)
		require.Equal(t, done, s.Close())
		require.NoError(t, s.Err())
	})
}

// A session that is granted while Close begins is ended and finished.
func TestKeeper_CloseBesideAGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene()
		f := &fake{}
		var done <-chan struct{}
		s.Grant = func(context.Context) (*fake, func(context.Context), error) {
			done = s.Close()
			<-time.After(time.Second)
			return f, nil, nil
		}
		got, err := s.Session(t.Context())
		require.NoError(t, err)
		require.Same(t, f, got)
		require.True(t, f.ended.Load())
		<-done
		require.True(t, f.finished.Load())
	})
}

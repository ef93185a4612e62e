package outbox

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// Calls are made in order, one at a time, and no goroutine stays when all are made.
func TestOutbox_Order(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o Outbox
		var got []int
		for i := range 100 {
			require.True(t, o.Tell(func() { got = append(got, i) }))
		}
		<-o.Delivered()
		require.Len(t, got, 100)
		require.IsIncreasing(t, got)
		<-o.Delivered() // at rest
	}) // which fails if a goroutine is left
}

// A call that ends its goroutine ends no others.
func TestOutbox_Goexit(t *testing.T) {
	var o Outbox
	o.Tell(runtime.Goexit)
	called := false
	o.Tell(func() { called = true })
	<-o.Delivered()
	require.True(t, called)
}

// While a call blocks, nobody waits who tells another one. What is too much is dropped, and counted in the log: new
// things, and not the end of what was begun.
func TestOutbox_Full(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o Outbox
		var text bytes.Buffer
		log := o.Logger(slog.New(slog.NewTextHandler(&text, nil)))
		block := make(chan struct{})
		began := time.Now()
		o.Tell(func() { <-block })
		synctest.Wait() // it is being made, and does not wait anymore
		var first, second Story
		var got []string
		first.Tell(&o, func() { got = append(got, "begins") })
		n := 0
		for range Limit - 1 {
			require.True(t, o.Tell(func() { n++ }))
		}
		require.False(t, o.Tell(func() { n++ }))
		second.Tell(&o, func() { got = append(got, "begins too late") })
		second.Tell(&o, func() { got = append(got, "ends") })
		first.Tell(&o, func() { got = append(got, "ends") })
		log.Info("dropped")
		require.Equal(t, began, time.Now())
		close(block)
		synctest.Wait()
		require.Equal(t, Limit-1, n)
		require.Equal(t, []string{"begins", "ends"}, got)
		second.Tell(&o, func() { got = append(got, "after that") })
		log.Info("delivered")
		synctest.Wait()
		require.Equal(t, []string{"begins", "ends"}, got, "a story that was not begun must not end")
		lines := strings.Split(strings.TrimSpace(text.String()), "\n")
		require.Len(t, lines, 2)
		require.Contains(t, lines[0], "dropped=3")
		require.Contains(t, lines[1], "delivered")
	})
}

// A line has the time at which it was made. A silent logger stays as it is.
func TestOutbox_Logger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o Outbox
		silent := slog.New(slog.DiscardHandler)
		require.Same(t, silent, o.Logger(silent))
		require.Nil(t, o.Logger(nil))
		var text bytes.Buffer
		log := o.Logger(slog.New(slog.NewTextHandler(&text, &slog.HandlerOptions{Level: slog.LevelWarn}))).With("a", 1).WithGroup("g")
		block := make(chan struct{})
		o.Tell(func() { <-block })
		log.Info("not wanted")
		made := time.Now()
		log.Warn("wanted", "b", 2)
		<-time.After(time.Hour)
		close(block)
		synctest.Wait()
		require.Equal(t, "time="+made.Format("2006-01-02T15:04:05.000Z07:00")+" level=WARN msg=wanted a=1 g.b=2\n", text.String())
	})
}

// Each calls the hook of each set that has it, and costs nothing without sets.
func TestEach(t *testing.T) {
	var got []int
	sets := []func(int){func(i int) { got = append(got, i) }, nil, func(i int) { got = append(got, -i) }}
	Each(sets, func(f func(int)) func(int) { return f }, 7)()
	require.Equal(t, []int{7, -7}, got)
	var o Outbox
	var s Story
	require.Zero(t, testing.AllocsPerRun(100, func() {
		s.Tell(&o, Each(nil, func(f func(int)) func(int) { return f }, 7))
		require.True(t, o.Tell(nil))
	}))
}

// AwaitAfter waits for both within its limit, and says what was not done in time.
func TestOutbox_AwaitAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o Outbox
		block, done := make(chan struct{}), make(chan struct{})
		o.Tell(func() { <-block })
		failed, late := errors.New("failed"), errors.New("late")
		end := func(err error) error { return o.AwaitAfter(done, time.Second, func() error { return err }, late) }
		began := time.Now()
		require.ErrorIs(t, end(failed), late)
		require.Equal(t, time.Second, time.Since(began))
		close(done)
		require.ErrorIs(t, end(nil), ErrBlocked)
		require.ErrorIs(t, end(failed), failed)
		require.Equal(t, 3*time.Second, time.Since(began))
		close(block)
		require.NoError(t, end(nil))
		require.ErrorIs(t, end(failed), failed)
		require.Equal(t, 3*time.Second, time.Since(began))
	})
}

// In has a hook called with its ctx, where there is one.
func TestIn(t *testing.T) {
	type word struct{}
	var got []string
	say := func(ctx context.Context, name string) { got = append(got, ctx.Value(word{}).(string)+" "+name) }
	sets := []func(context.Context, string){say, nil}
	hook := In(context.WithValue(t.Context(), word{}, "hello"), func(f func(context.Context, string)) func(context.Context, string) { return f })
	Each(sets, hook, "world")()
	require.Equal(t, []string{"hello world"}, got)
}

// Many tell at once.
func TestOutbox_Concurrent(t *testing.T) {
	var o Outbox
	var wg sync.WaitGroup
	n := 0
	for range 8 {
		wg.Go(func() {
			for range 1000 {
				o.Tell(func() { n++ })
			}
		})
	}
	wg.Wait()
	<-o.Delivered()
	require.Equal(t, 8000, n)
}

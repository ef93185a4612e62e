// Package harness has what the tests of several packages share: their server, the names and keys
// of their locks, what crosses the wire, and waiting for conditions. It does not import the
// library, so tests inside of the library's packages can use it too.
package harness

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/test/sample"
)

const (
	// Hang is a generous bound on the time of operations that must not hang.
	Hang = 30 * time.Second
	// Tick is the interval at which a test checks a condition.
	Tick = 5 * time.Millisecond
	// Told is how soon a holder must be told of a loss after etcd has confirmed its cause.
	Told = 500 * time.Millisecond
	// ToldLate is how soon it must be told each time: an etcd, or a message, may be late on a machine that stalls.
	ToldLate = 4 * Told
	// causeAsked is how long a session asks for the cause of a loss: confirmTimeout of internal/lease.
	causeAsked = 250 * time.Millisecond
)

// Ctx returns a ctx that ends with the test, or after Hang.
func Ctx(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), Hang)
	t.Cleanup(cancel)
	return ctx
}

var names atomic.Int64

// LockName returns a name that no other test of this process uses.
func LockName(t testing.TB) string {
	return fmt.Sprintf("test/%s/%d", strings.ReplaceAll(t.Name(), "/", "-"), names.Add(1))
}

// Elapse waits for a duration that is itself part of what a test shows, such as twice a TTL.
func Elapse(d time.Duration) { <-time.NewTimer(d).C }

// Stopwatch measures the time for which this process runs, in ticks, until stop. A machine that stalls, or that has too many
// processes, stops it too: what a test requires of a time must not depend on that. Call stop once.
func Stopwatch() (stop func() time.Duration) {
	end, ticks := make(chan struct{}), make(chan time.Duration)
	go func() {
		for n := time.Duration(0); ; n++ {
			select {
			case <-end:
				ticks <- n
				return
			case <-time.After(Tick):
			}
		}
	}()
	return func() time.Duration {
		close(end)
		return Tick * <-ticks
	}
}

// Quick reports that no request since then was sent again beside itself.
func Quick(began time.Time) bool { return time.Since(began) < etcd.HedgeMin }

// RequireTold requires that a holder is told in time, and returns how long that took, by a Stopwatch.
func RequireTold(t testing.TB, done <-chan struct{}, says ...any) time.Duration {
	t.Helper()
	stop := Stopwatch()
	select {
	case <-done:
	case <-time.After(Hang):
		require.FailNow(t, "the holder is not told", says...)
	}
	took := stop()
	require.Less(t, took, ToldLate, says...)
	return took
}

// RequireCause requires that an entry that was removed since then is said to have gone with its lease. If etcd does not answer
// in time whether it has, since the machine stalls, the error says no more than that the entry is lost.
func RequireCause(t testing.TB, since time.Time, err, lease, lost error, says ...any) {
	t.Helper()
	if !errors.Is(err, lease) && time.Since(since) >= causeAsked {
		lease = lost
	}
	require.ErrorIs(t, err, lease, says...)
}

// Runs is how often a test that depends on chance is tried: ETCDLOCK_RUNS times, by default 50 in full.
func Runs(t testing.TB) int {
	t.Helper()
	n, err := strconv.Atoi(cmp.Or(os.Getenv("ETCDLOCK_RUNS"), strconv.Itoa(sample.Rounds(t, 5, 50))))
	require.NoError(t, err, "ETCDLOCK_RUNS")
	require.Positive(t, n, "ETCDLOCK_RUNS must be positive")
	return n
}

// Async runs f, which may hang, and returns a channel that delivers its error.
func Async(f func() error) <-chan error {
	errs := make(chan error, 1)
	go func() { errs <- f() }()
	return errs
}

// Hangs requires that no error arrives for d.
func Hangs(t testing.TB, errs <-chan error, d time.Duration) {
	t.Helper()
	select {
	case err := <-errs:
		t.Fatalf("the call must hang, but returned: %v", err)
	case <-time.After(d):
	}
}

// Result waits for the error.
func Result(t testing.TB, errs <-chan error) error {
	t.Helper()
	select {
	case err := <-errs:
		return err
	case <-time.After(Hang):
		t.Fatal("the call hangs")
		return nil
	}
}

// A Lock is a method that takes a lock, such as Mutex.Lock. H is the type of a hold.
type Lock[H any] = func(context.Context) (H, error)

// Take takes a lock that must be granted.
func Take[H any](t testing.TB, lock Lock[H]) H {
	t.Helper()
	h, err := lock(Ctx(t))
	require.NoError(t, err)
	return h
}

// Quickly undoes what took so long that a request of it may have been sent again, and does it anew.
func Quickly[T any](t testing.TB, do Lock[T], undo func(T, context.Context) error) (got T) {
	t.Helper()
	for end := time.Now().Add(Hang); time.Now().Before(end); { // other tests may keep the machine busy for a while
		began := time.Now()
		got = Take(t, do)
		if Quick(began) {
			return got
		}
		require.NoError(t, undo(got, Ctx(t)))
	}
	t.Fatal("each request is slow")
	return got
}

// InBackground calls lock and sends the hold when it is granted, or nil after an error, which it
// reports to the test.
func InBackground[H any](t testing.TB, lock Lock[H]) <-chan H {
	granted := make(chan H, 1)
	go func() {
		h, err := lock(Ctx(t))
		if err != nil {
			t.Error(err)
		}
		granted <- h
	}()
	return granted
}

// A Locker is a lock with which Ways takes holds of the type H.
type Locker[H any] interface {
	Lock(context.Context) (H, error)
	TryLock(context.Context) (H, error)
}

// An RWLocker is a Locker with read locks.
type RWLocker[H any] interface {
	Locker[H]
	RLock(context.Context) (H, error)
	TryRLock(context.Context) (H, error)
}

// Ways returns all ways to take a lock. m and rw have the same name.
func Ways[H any](m Locker[H], rw RWLocker[H]) map[string]Lock[H] {
	return map[string]Lock[H]{
		"Mutex":        m.Lock,
		"RWMutex":      rw.Lock,
		"RWMutex read": rw.RLock,
		"Try":          m.TryLock,
		"Try write":    rw.TryLock,
		"Try read":     rw.TryRLock,
	}
}

// A Ticket is a place in a queue.
type Ticket interface {
	Ahead(context.Context) (int, error)
	Done() <-chan struct{}
}

// NotGranted requires that the ticket has that many acquisitions ahead and is not granted.
func NotGranted(t testing.TB, tk Ticket, ahead int) {
	t.Helper()
	n, err := tk.Ahead(Ctx(t))
	require.NoError(t, err)
	require.Equal(t, ahead, n)
	select {
	case <-tk.Done():
		t.Fatal("granted too early")
	default:
	}
}

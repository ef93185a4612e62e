package lease

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A step is an attempt that is sent (s), answered (a) or found not to have been sent (n).
func TestAttempts(t *testing.T) {
	epoch := time.Now()
	at := func(s int) time.Time { return epoch.Add(time.Duration(s) * time.Second) }
	for name, tc := range map[string]struct {
		steps string // of the attempts of the seconds 1, 2, ...
		sent  int    // the attempt that is sent then
		from  int    // from when that counts
	}{
		"alone":                            {"", 1, 1},
		"after an answer":                  {"s1 a1", 2, 2},
		"beside an earlier one":            {"s1", 2, 1},
		"beside two":                       {"s1 s2", 3, 1},
		"beside a later one than answered": {"s1 s2 a1", 3, 2},
		"behind all that is answered":      {"s1 s2 a2", 3, 3},
		"the one before was never sent":    {"s1 n1", 2, 2},
		"only one of two was sent":         {"s1 s2 n1", 3, 2},
		"a late answer to an earlier one":  {"s1 s2 a2 s3 a1", 4, 3},
	} {
		var a attempts
		for s := range strings.FieldsSeq(tc.steps) {
			n := at(int(s[1] - '0'))
			switch s[0] {
			case 's':
				a.send(n)
			case 'a':
				a.answered(n)
			case 'n':
				a.notSent(n)
			}
		}
		require.Equal(t, at(tc.from), a.send(at(tc.sent)), name)
	}
}

// An attempt on a member that hangs ends when a later one has its answer, and with it its stream. Later ones go on.
func TestLease_EarlierAttemptsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLease(t, 12*time.Second)
		began := time.Now()
		ended := make(map[int]time.Duration)
		n := 0
		l.KeepAlive = func(ctx context.Context) (int64, error) {
			l.mu.Lock()
			n++
			i := n
			l.mu.Unlock()
			wait := 4 * time.Second // of the second one, which is sent at 6 s
			if i != 2 {
				wait = time.Hour
			}
			select {
			case <-time.After(wait):
				return 12, nil
			case <-ctx.Done():
				l.mu.Lock()
				ended[i] = time.Since(began)
				l.mu.Unlock()
				return 0, ctx.Err()
			}
		}
		l.Record(began, 12)
		l.Run()
		<-time.After(10*time.Second + time.Millisecond)
		synctest.Wait()
		l.mu.Lock()
		require.Equal(t, map[int]time.Duration{1: 10 * time.Second}, ended)
		require.Greater(t, n, 2)
		l.mu.Unlock()
		l.End(errClosed, "test")
		l.NotFound()
		l.Wait()
	})
}

// Where answers may be shared, one counts from the earliest attempt that has none, and the next renewal is due as if it
// had been sent then.
func TestLease_SharedAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLease(t, 12*time.Second)
		l.Shared = func() bool { return true }
		began := time.Now()
		sent := make(chan time.Duration, 10)
		reply := make(chan struct{})
		l.KeepAlive = func(context.Context) (int64, error) {
			sent <- time.Since(began)
			<-reply
			return 12, nil
		}
		l.Record(began, 12)
		l.Run()
		require.Equal(t, 4*time.Second, <-sent)
		require.Equal(t, 6*time.Second, <-sent)
		reply <- struct{}{} // to either of them
		synctest.Wait()
		require.Equal(t, trustedUntil(began.Add(4*time.Second), 12), l.Deadline())
		reply <- struct{}{}
		synctest.Wait()
		require.Equal(t, trustedUntil(began.Add(4*time.Second), 12), l.Deadline())
		require.Equal(t, 8*time.Second, <-sent)
		close(reply)
		synctest.Wait()
		require.Equal(t, trustedUntil(began.Add(8*time.Second), 12), l.Deadline())
		l.End(errClosed, "test")
		l.NotFound()
		l.Wait()
	})
}

package lease

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/internal/etcd"
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
		finish(l)
	})
}

// An attempt ends at the deadline that was known when it was sent, also where a reply to an earlier one has moved that on:
// while it waits for a password check on the only member, no other stream is opened.
func TestLease_AttemptsEndAtTheirDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLease(t, 12*time.Second)
		began := time.Now()
		type attempt struct{ sent, ended time.Duration }
		hung := make(chan attempt, 100)
		first := make(chan struct{}, 1)
		first <- struct{}{}
		l.KeepAlive = func(ctx context.Context) (int64, error) {
			sent := time.Since(began)
			select {
			case <-first:
				<-time.After(2500 * time.Millisecond) // from 4 s to 6.5 s: the second attempt is sent at 6 s
				return 12, nil
			case <-ctx.Done():
				hung <- attempt{sent, time.Since(began)}
				return 0, ctx.Err()
			}
		}
		l.Record(began, 12)
		until := l.Deadline().Sub(began)
		l.Run()
		require.Equal(t, attempt{6 * time.Second, until}, <-hung)
		require.NoError(t, l.Err())
		require.Greater(t, l.Deadline().Sub(began), until)
		finish(l)
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
		finish(l)
	})
}

// An attempt that was never sent has made no proxy ask, so the next answer does not count from it. Any other failure may
// have, and the answer counts from that (I4).
func TestLease_AttemptWithoutRequest(t *testing.T) {
	for name, tc := range map[string]struct {
		err  error
		sent bool
	}{
		"no connection":                   {etcd.ErrNotSent, false},
		"the password is being checked":   {etcd.ErrOpening, false},
		"the reply may have been lost":    {errors.New("unavailable"), true},
		"the time of the attempt is over": {context.DeadlineExceeded, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLease(t, 9*time.Second)
				l.Shared = func() bool { return true }
				answer := tc.err
				l.KeepAlive = func(context.Context) (int64, error) { return 9, answer }
				first := time.Now()
				_, _, err := l.sendRenewal(t.Context())
				require.ErrorIs(t, err, tc.err)
				<-time.After(time.Second)
				answer = nil
				_, from, err := l.sendRenewal(t.Context())
				require.NoError(t, err)
				want := first
				if !tc.sent {
					want = time.Now()
				}
				require.Equal(t, want, from)
				require.Equal(t, trustedUntil(want, 9), l.Deadline())
				finish(l)
			})
		})
	}
}

// The answer to an earlier renewal that arrives after that to a later one moves nothing back, and the TTL, which is read
// without a lock, is that of the first answer.
func TestLease_AnswersOutOfOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLease(t, 0)
		began := time.Now()
		l.Record(began, 9)
		l.Record(began.Add(2*time.Second), 9)
		l.Record(began.Add(time.Second), 9)
		require.Equal(t, trustedUntil(began.Add(2*time.Second), 9), l.Deadline())
		require.Equal(t, began.Add(2*time.Second), l.sent, "the next renewal is due a third of the TTL after")
		l.Record(began.Add(3*time.Second), 60)
		require.Equal(t, 9*time.Second, l.TTL)
		finish(l)
	})
}

// An attempt that is on its way puts the next renewal off only if it was sent later than the answered one and goes on.
func TestLease_Due(t *testing.T) {
	l := newLease(t, 12*time.Second)
	epoch := time.Now()
	at := func(s float64) time.Time { return epoch.Add(time.Duration(s * float64(time.Second))) }
	for name, tc := range map[string]struct {
		sent, from, beside float64 // of the answered attempt, and when the one on its way was sent
		relayed            bool
		due                float64
	}{
		"a later attempt goes on":            {sent: 4, from: 4, beside: 7, due: 9},
		"a later attempt is late itself":     {sent: 4, from: 4, beside: 5, due: 8},
		"an earlier attempt was cancelled":   {sent: 7.5, from: 4, beside: 7, due: 8},
		"behind a proxy a later one is, too": {sent: 4, from: 4, beside: 7, relayed: true, due: 8},
	} {
		l.Relayed = func() bool { return tc.relayed }
		due := l.due(renewal{sent: at(tc.sent), from: at(tc.from)}, []renewal{{sent: at(tc.beside)}})
		require.Equal(t, at(tc.due), due, name)
	}
}

// Behind a proxy all attempts end with the first answer, the later ones too: the proxy renews the lease by itself while
// one of their streams is open, and the next attempt would wait for that.
func TestLease_AllAttemptsEndBehindAProxy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLease(t, 12*time.Second)
		l.Shared = func() bool { return true }
		l.Relayed = l.Shared
		began := time.Now()
		ended := make(chan time.Duration, 10)
		first := make(chan struct{}, 1)
		first <- struct{}{}
		l.KeepAlive = func(ctx context.Context) (int64, error) {
			select {
			case <-first:
				<-time.After(3 * time.Second) // from 4 s to 7 s: the second attempt is sent at 6 s
				return 12, nil
			case <-ctx.Done():
				ended <- time.Since(began)
				return 0, ctx.Err()
			}
		}
		l.Record(began, 12)
		l.Run()
		require.Equal(t, 7*time.Second, <-ended)
		finish(l)
	})
}

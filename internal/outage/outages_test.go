package outage

import (
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/etcdlock/etcdlock/internal/test/logtest"
)

var errAway = errors.New("connection refused")

// blips plays f in a bubble, with two parts of the outages of a source that tells them after Blip: those of a lock and of
// the renewals. lines are those of the log.
func blips(t *testing.T, f func(s *Source, lock, lease *Outage, lines func() []string)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s, log := newSource(t)
		s.Lease, s.All.Blip = logtest.NoLease{}, Blip
		lock, lease := s.Outage("a"), s.Outage("")
		f(s, &lock, &lease, func() []string { synctest.Wait(); return log.Messages() })
		synctest.Wait()
		require.Nil(t, s.All.timer, "it must not tell of what is over")
	})
}

func pass(d time.Duration) { <-time.After(d) }

// What is over within a moment has no line, and what lasts has one at its begin and one at its end.
func TestOutages_Blip(t *testing.T) {
	blips(t, func(s *Source, lock, lease *Outage, lines func() []string) {
		for range 3 {
			lock.Start(t.Context(), errAway)
			pass(Blip - time.Millisecond)
			require.ErrorIs(t, s.All.Why(), errAway, "a call that ends meanwhile says why")
			lock.Stop(true)
			require.NoError(t, s.All.Why())
		}
		pass(2 * Blip)
		require.Empty(t, lines())
		want := []string{}
		for range 2 {
			lock.Start(t.Context(), errAway)
			pass(Blip / 2)
			lease.Start(t.Context(), errAway)
			pass(Blip / 4)
			lock.Stop(true) // and the other one does not
			require.Equal(t, want, append([]string{}, lines()...))
			pass(Blip)
			want = append(want, logtest.Outage)
			require.Equal(t, want, lines())
			lock.Start(t.Context(), errAway)
			lock.Stop(true)
			require.Equal(t, want, lines(), "one for all")
			lease.Stop(true)
			want = append(want, logtest.Over)
			require.Equal(t, want, lines())
		}
	})
}

// Calls that gave up within a moment concern nobody, and a session that was granted has a line of its own.
func TestOutages_BlipOfNobody(t *testing.T) {
	blips(t, func(s *Source, lock, lease *Outage, lines func() []string) {
		lock.Start(t.Context(), errAway)
		pass(Blip / 2)
		lock.Stop(false)
		lease.Start(t.Context(), errAway)
		pass(Blip / 2)
		require.Equal(t, Blip/2, s.All.Up(), "it is over for a session that was granted")
		pass(2 * Blip)
		require.Empty(t, lines())
		lease.Stop(false)
	})
}

// Etcd denies the rights on a lock for as long as that is held. An outage has its cause and its lines beside that, and is over for all.
func TestOutages_BesideADenial(t *testing.T) {
	denied := fmt.Errorf("no watch: %w", rpctypes.ErrPermissionDenied)
	blips(t, func(s *Source, lock, lease *Outage, lines func() []string) {
		lock.Start(t.Context(), errAway) // it loses its watch
		require.ErrorIs(t, s.All.Why(), errAway)
		lock.Start(t.Context(), denied)
		require.NoError(t, s.All.Why(), "others get on")
		require.False(t, s.Client.Stalled())
		pass(2 * Blip)
		lock.Start(t.Context(), denied) // again and again
		want := []string{"WARN etcd refuses this client"}
		require.Equal(t, want, lines())
		lease.Start(t.Context(), errAway)
		lock.Start(t.Context(), errAway)
		require.ErrorIs(t, s.All.Why(), errAway)
		pass(2 * Blip)
		want = append(want, logtest.Outage)
		require.Equal(t, want, lines())
		lease.Stop(true)
		require.NoError(t, s.All.Why())
		want = append(want, logtest.Over)
		require.Equal(t, want, lines())
		lock.Stop(false)
		require.Len(t, lines(), 4)
	})
}

// An outage takes the session before the log has a line: it goes on for the next one, which is told at once.
func TestOutages_BlipTakesTheSession(t *testing.T) {
	blips(t, func(_ *Source, _, lease *Outage, lines func() []string) {
		lease.Start(t.Context(), errAway)
		pass(Blip / 2)
		lease.Stop(false)
		pass(2 * Blip)
		require.Empty(t, lines(), "nobody asks etcd")
		lease.Start(t.Context(), errAway)
		require.Equal(t, []string{logtest.Outage}, lines())
		lease.Stop(true)
		require.Equal(t, []string{logtest.Outage, logtest.Over}, lines())
	})
}

// idOf is a lease whose ID changes.
type idOf struct{ id *string }

func (l idOf) String() string { return *l.id }

// The line names the lease that could not be asked for when the outage began. Whoever grants it tries another ID
// meanwhile, so the timer must not look.
func TestOutages_LeaseOfTheBegin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, log := newSource(t)
		id := "first"
		s.Lease, s.All.Blip = idOf{&id}, Blip
		o := s.Outage("")
		o.Start(t.Context(), errAway)
		id = "second"
		pass(Blip)
		synctest.Wait()
		require.Len(t, log.Lines(), 1)
		require.Contains(t, log.Lines()[0], "lease=first ")
		o.Stop(false)
	})
}

// The outage ends while its line is made. The line of an end never comes before it.
func TestOutages_EndsMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &Outages{Blip: Blip}
		var made, written atomic.Int64
		line := func() func() {
			pass(50 * time.Millisecond)
			made.Add(1)
			return func() {
				require.False(t, o.mu.TryLock(), "end would not wait")
				written.Add(1)
			}
		}
		counts := func() []int64 { synctest.Wait(); return []int64{made.Load(), written.Load()} }
		o.begin(errAway, line)
		pass(Blip + 10*time.Millisecond)
		o.end(true, true)
		pass(10 * time.Millisecond)
		o.begin(errAway, line) // another one, whose line is due later
		o.begin(errAway, line) // and is made once
		pass(Blip / 2)
		require.Equal(t, []int64{1, 0}, counts())
		pass(Blip)
		require.Equal(t, []int64{2, 1}, counts())
		o.end(true, true)
		_, told, _ := o.end(true, true)
		require.True(t, told)
	})
}

// Nobody reads the log, so no line is made.
func TestOutages_Silent(t *testing.T) {
	blips(t, func(s *Source, lock, _ *Outage, _ func() []string) {
		s.Log = slog.New(slog.DiscardHandler)
		lock.Start(t.Context(), errAway)
		require.Nil(t, s.All.timer)
		pass(2 * Blip)
		lock.Stop(true)
	})
}

//go:build unix

package faults

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/test/harness"
	"github.com/etcdlock/etcdlock/internal/test/history"
	"github.com/etcdlock/etcdlock/internal/test/sample"
)

const (
	multiProcesses = 5
	multiTTL       = 2 // seconds
)

// A multiRun is what the processes have printed.
type multiRun struct {
	*testing.T
	endpoints []string
	readers   sync.WaitGroup
	granted   chan multiGrant // the first one since it was asked for

	mu     sync.Mutex
	steps  []history.Step
	grants int
	byName map[string]int
	odd    []string
}

type multiGrant struct {
	to    *multiChild
	lease int64
}

type multiChild struct {
	*process
	over   chan struct{} // all that it has printed was read
	ending bool          // it was told to end, or killed
	steps  []history.Step
}

func (r *multiRun) start() *multiChild {
	c := &multiChild{process: startHelper(r.T, "multi", lockerArg{Endpoints: r.endpoints, Seconds: multiTTL}), over: make(chan struct{})}
	r.readers.Go(func() {
		defer close(c.over)
		for {
			line, err := c.out.ReadBytes('\n')
			if err != nil {
				r.ended(c, err)
				return
			}
			var s history.Step
			if err := json.Unmarshal(line, &s); err != nil {
				r.oddly("%q: %v", line, err)
				return
			}
			r.add(c, s)
		}
	})
	return c
}

func (r *multiRun) ended(c *multiChild, err error) {
	r.mu.Lock()
	ending := c.ending
	r.mu.Unlock()
	if !ending || !errors.Is(err, io.EOF) {
		r.oddly("a process ended by itself: %v", err)
	}
}

// signalEnd tells the process to end, or kills it.
func (r *multiRun) signalEnd(c *multiChild, s os.Signal) {
	r.mu.Lock()
	c.ending = true
	r.mu.Unlock()
	c.signal(r.T, s)
}

func (r *multiRun) oddly(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.odd = append(r.odd, fmt.Sprintf(format, args...))
}

func (r *multiRun) add(c *multiChild, s history.Step) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c.steps = append(c.steps, s)
	if s.What != history.Granted {
		return
	}
	r.grants++
	for name := range strings.SplitSeq(s.Name, ", ") {
		r.byName[name]++
	}
	select {
	case r.granted <- multiGrant{c, s.Lease}:
	default:
	}
}

// count is how many acquisitions were granted, and odd what was wrong meanwhile.
func (r *multiRun) count() (n int, odd []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.grants, r.odd
}

// goesOn waits until the process was granted something in another session than that of lease, its last one.
func (r *multiRun) goesOn(c *multiChild, lease int64) {
	r.Helper()
	require.Eventually(r, func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		last := slices.IndexFunc(c.steps, func(s history.Step) bool { return s.Lease == lease })
		return slices.ContainsFunc(c.steps[last:], func(s history.Step) bool { return s.What == history.Granted && s.Lease != lease })
	}, harness.Hang, harness.Tick, "it does not go on in another session")
}

// holder waits until a process says that it was granted something.
func (r *multiRun) holder() (c *multiChild, lease int64) {
	select {
	case <-r.granted: // of the past
	default:
	}
	select {
	case g := <-r.granted:
		return g.to, g.lease
	case <-time.After(harness.Hang):
		r.Fatal("nobody gets in")
		return nil, 0
	}
}

// progress waits until n more acquisitions are granted, each soon after the one before: nobody waits in a circle, nor for somebody
// who was killed.
func (r *multiRun) progress(n int) {
	r.Helper()
	before, _ := r.count()
	for granted := before + 1; granted <= before+n; granted++ {
		require.Eventually(r, func() bool {
			now, odd := r.count()
			return now >= granted || len(odd) > 0
		}, harness.Hang, harness.Tick, "nobody gets in any more")
		_, odd := r.count()
		require.Empty(r, odd)
	}
}

// end takes the steps of a process that was told to end, or was killed at a time. What a killed process had
// begun ended at that time; in is whether it had a hold. A hold ends once: Unlock may find that it was lost,
// after the process has said that it gives it back.
func (r *multiRun) end(c *multiChild, killed time.Time) (in bool) {
	<-c.over
	ended, as := fmt.Sprint(c.cmd.Wait()), "signal: killed"
	if killed.IsZero() {
		as = fmt.Sprint(nil)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if ended != as {
		r.odd = append(r.odd, fmt.Sprintf("a process ended with %s, not with %s", ended, as))
	}
	type id struct{ lease, token int64 }
	open := map[id]history.Step{}
	leases := map[int64]bool{}
	slices.SortStableFunc(c.steps, func(a, b history.Step) int { return a.At.Compare(b.At) })
	for _, s := range c.steps {
		at := id{s.Lease, s.Token}
		_, begun := open[at]
		leases[s.Lease] = true
		switch {
		case s.What <= history.Granted:
			open[at] = s
		case s.What != history.Ended && !begun:
			continue
		default:
			delete(open, at)
		}
		r.take(s)
	}
	if killed.IsZero() {
		return false
	}
	for lease := range leases {
		r.steps = append(r.steps, history.Step{What: history.Ended, At: killed, Lease: lease})
	}
	for _, s := range open {
		held := s.What == history.Granted
		in = in || held
		s.What = history.Abandoned
		if held {
			s.What = history.Lost
		}
		if s.At.Before(killed) { // else it was done before the signal came
			s.At = killed
		}
		r.take(s)
	}
	return in
}

// take takes a step of each of the names.
func (r *multiRun) take(s history.Step) {
	for name := range strings.SplitSeq(s.Name, ", ") {
		s.Name = name
		r.steps = append(r.steps, s)
	}
}

// Processes take random overlapping sets of names, and some of them are killed and paused while they hold and
// wait. Whatever happens to them, nobody is in with whom it excludes, each queue keeps its order, nobody waits
// for ever, and nothing is left.
func TestMulti_ProcessesAreKilled(t *testing.T) {
	t.Parallel()
	own := etcdtest.Start(t)
	c := own.Client(t)
	log := history.NewLog(history.LockPrefix)
	t.Cleanup(log.Follow(c))
	least := sample.Rounds(t, 3, 6)      // kills: at least half of them must hit a holder
	progress := sample.Rounds(t, 30, 60) // acquisitions after each kill
	r := &multiRun{T: t, endpoints: own.Endpoints(), granted: make(chan multiGrant, 1), byName: map[string]int{}}
	t.Cleanup(r.readers.Wait) // after the processes have ended
	var all []*multiChild
	for range multiProcesses {
		all = append(all, r.start())
	}
	r.progress(progress)
	kills, in, paused := 0, 0, 0
	for ; kills < least || in < least/2; kills++ {
		require.Less(t, kills, 10*least, "no holder was killed")
		holder, _ := r.holder()
		i := slices.Index(all, holder)
		if kills%3 == 2 {
			i = rand.N(len(all)) // it probably waits
		}
		killed := time.Now()
		r.signalEnd(all[i], syscall.SIGKILL)
		if r.end(all[i], killed) {
			in++
		}
		all[i] = r.start()
		if kills%3 == 1 {
			p, lease := r.holder()
			p.signal(t, syscall.SIGSTOP)
			require.Eventually(t, func() bool {
				left, err := c.TimeToLive(harness.Ctx(t), clientv3.LeaseID(lease))
				return err == nil && left.TTL < 0
			}, harness.Hang, 10*harness.Tick)
			r.progress(progress)
			p.signal(t, syscall.SIGCONT)
			r.goesOn(p, lease)
			paused++
		}
		r.progress(progress)
	}
	for _, p := range all {
		r.signalEnd(p, syscall.SIGTERM)
	}
	for _, p := range all {
		r.end(p, time.Time{})
	}
	harness.RequireGone(t, c, strings.TrimSuffix(history.LockPrefix, "/"))
	require.Eventually(t, func() bool { return len(harness.Leases(t, c)) == 0 }, harness.Hang, 10*harness.Tick)
	require.NoError(t, log.Wait(harness.Ctx(t), harness.Revision(t, c)))

	require.Empty(t, r.odd)
	problems, broken := log.CheckGrants(nil)
	require.Empty(t, problems)
	require.Empty(t, broken)
	require.Empty(t, log.CheckTrace(r.steps, nil))
	require.Len(t, r.byName, multiNames, "somebody got each of the names")
	t.Logf("shown: %d acquisitions of 2 to 8 names, %d steps; %d processes killed, %d of them in; %d paused",
		r.grants, len(r.steps), kills, in, paused)
}

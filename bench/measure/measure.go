// Package measure measures the quantities that are compared. Each quantity is one
// function in one file. The functions know the peers only through their interface.
package measure

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Values are the results of one measurement, by name.
type Values map[string]float64

// newName returns a lock name that was never used.
func newName() string { return fmt.Sprintf("/bench/%x", rand.Uint64()) }

// each calls f(0) ... f(n-1), 64 at a time, and returns the first error.
func each(n int, f func(i int) error) error {
	var wg sync.WaitGroup
	var next atomic.Int64
	errs := make([]error, min(n, 64))
	for w := range errs {
		wg.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				if err := f(i); err != nil && errs[w] == nil {
					errs[w] = err
				}
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// start calls f(0) ... f(n-1) concurrently. When all have returned, it sends the
// first error, or nil.
func start(n int, f func(i int) error) <-chan error {
	done, each := make(chan error, 1), make(chan error, n)
	for i := range n {
		go func() { each <- f(i) }()
	}
	go func() {
		var errs []error
		for range n {
			errs = append(errs, <-each)
		}
		done <- errors.Join(errs...)
	}()
	return done
}

// section is the critical section that the lock protects. It counts how often a
// goroutine enters while another is still inside: such a lock has failed, even if it
// was fast.
type section struct{ inside, overlaps atomic.Int64 }

func (s *section) enter() {
	if s.inside.Add(1) > 1 {
		s.overlaps.Add(1)
	}
}

func (s *section) leave() { s.inside.Add(-1) }

// distribution adds the quantiles and the mean of the durations, in µs.
func (v Values) distribution(d []time.Duration) {
	if len(d) == 0 {
		return
	}
	slices.Sort(d)
	var sum time.Duration
	for _, x := range d {
		sum += x
	}
	v["p50_us"] = micros(quantile(d, 0.5))
	v["p99_us"] = micros(quantile(d, 0.99))
	v["mean_us"] = micros(sum) / float64(len(d))
	v["samples"] = float64(len(d))
}

func quantile(sorted []time.Duration, q float64) time.Duration {
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

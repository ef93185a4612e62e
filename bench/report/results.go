// Package report turns the raw results of runs into bench/README.md and its plots.
package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/etcdlock/etcdlock/bench/measure"
)

// A Result is the result of one measurement of one peer in one round.
type Result struct {
	Round    int            `json:"round"`
	Servers  string         `json:"servers"`
	Quantity string         `json:"quantity"`
	Peer     string         `json:"peer"`
	Values   measure.Values `json:"values,omitempty"`
	Error    string         `json:"error,omitempty"`
}

// A Run is all results of one run of the benchmark, with the machine and the versions.
type Run struct {
	Command  string            `json:"command"`
	Started  time.Time         `json:"started"`
	Ended    time.Time         `json:"ended"`
	Machine  map[string]string `json:"machine"`
	Versions map[string]string `json:"versions"`
	Results  []Result          `json:"results"`
}

// Write writes the run, each result on a line of its own.
func (r *Run) Write(path string) error {
	head := *r
	head.Results = []Result{}
	text, err := json.MarshalIndent(head, "", "  ")
	if err != nil {
		return err
	}
	text = bytes.TrimSuffix(text, []byte("]\n}"))
	for i, result := range r.Results {
		line, err := json.Marshal(result)
		if err != nil {
			return err
		}
		if i > 0 {
			text = append(text, ',')
		}
		text = append(append(text, "\n    "...), line...)
	}
	return os.WriteFile(path, append(text, "\n  ]\n}\n"...), 0o644)
}

// Rounds is the number of rounds that have results.
func (r *Run) Rounds() (n int) {
	for _, res := range r.Results {
		n = max(n, res.Round)
	}
	return n
}

// Failed are the measurements that failed.
func (r *Run) Failed() []Result {
	return slices.DeleteFunc(slices.Clone(r.Results), func(res Result) bool { return res.Error == "" })
}

// A Report is about the results of several runs.
type Report []*Run

// Read reads runs that were written by Write.
func Read(paths ...string) (Report, error) {
	var report Report
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		run := &Run{}
		if err := json.Unmarshal(text, run); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		report = append(report, run)
	}
	return report, nil
}

// A figure names a value of a quantity of a peer.
type figure struct{ servers, quantity, peer, value string }

// of is the same figure of another peer.
func (f figure) of(peer string) figure {
	f.peer = peer
	return f
}

// A sample is a figure over the rounds.
type sample struct {
	values []float64 // sorted
	// overlapped is the number of rounds in which two contenders held the lock at once.
	overlapped int
}

// get collects a figure over all rounds.
func (rep Report) get(f figure) sample { return rep.ratio(f, figure{}) }

// ratio returns, for each round, figure f divided by another one of the same round of
// the same run; or f itself, if there is no other.
func (rep Report) ratio(f, by figure) (s sample) {
	for _, run := range rep {
		divisors := make(map[int]float64)
		for _, res := range run.Results {
			if v, ok := res.value(by); ok {
				divisors[res.Round] = v
			}
		}
		for _, res := range run.Results {
			v, ok := res.value(f)
			if by != (figure{}) {
				ok = ok && divisors[res.Round] > 0
				v /= divisors[res.Round]
			}
			if !ok {
				continue
			}
			s.values = append(s.values, v)
			if res.Values["overlaps"] > 0 {
				s.overlapped++
			}
		}
	}
	slices.Sort(s.values)
	return s
}

func (res Result) value(f figure) (float64, bool) {
	if res.Servers != f.servers || res.Quantity != f.quantity || res.Peer != f.peer {
		return 0, false
	}
	v, ok := res.Values[f.value]
	return v, ok
}

func (s sample) ok() bool { return len(s.values) > 0 }

func (s sample) median() float64 {
	if !s.ok() {
		return 0
	}
	n := len(s.values)
	return (s.values[(n-1)/2] + s.values[n/2]) / 2
}

// plus adds to the values.
func (s sample) plus(v float64) sample {
	moved := make([]float64, len(s.values))
	for i := range moved {
		moved[i] = s.values[i] + v
	}
	return sample{moved, s.overlapped}
}

// times multiplies the values.
func (s sample) times(by float64) sample {
	scaled := make([]float64, len(s.values))
	for i, v := range s.values {
		scaled[i] = by * v
	}
	return sample{scaled, s.overlapped}
}

// Package report turns the raw results of a run into bench/README.md and its
// plots.
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

// Read reads a run that was written by Write.
func Read(path string) (*Run, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	run := &Run{}
	if err := json.Unmarshal(text, run); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return run, nil
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

// A sample is a quantity of a peer over the rounds.
type sample struct {
	values []float64 // sorted
	// overlapped is the number of rounds in which two sessions held the lock at once.
	overlapped int
}

// get collects a value over all rounds.
func (r *Run) get(servers, quantity, peer, value string) sample {
	var s sample
	for _, res := range r.Results {
		if res.Servers != servers || res.Quantity != quantity || res.Peer != peer {
			continue
		}
		if v, ok := res.Values[value]; ok {
			s.values = append(s.values, v)
			if res.Values["overlaps"] > 0 {
				s.overlapped++
			}
		}
	}
	slices.Sort(s.values)
	return s
}

func (s sample) ok() bool { return len(s.values) > 0 }

func (s sample) median() float64 {
	if !s.ok() {
		return 0
	}
	n := len(s.values)
	return (s.values[(n-1)/2] + s.values[n/2]) / 2
}

// ratio returns, for each round, value a of peer p divided by value b of peer q in
// the same round.
func (r *Run) ratio(servers, quantity, p, a, otherServers, otherQuantity, q, b string) sample {
	byRound := make(map[int]float64)
	for _, res := range r.Results {
		if v := res.Values[b]; res.Servers == otherServers && res.Quantity == otherQuantity && res.Peer == q && v > 0 {
			byRound[res.Round] = v
		}
	}
	var s sample
	for _, res := range r.Results {
		if res.Servers != servers || res.Quantity != quantity || res.Peer != p {
			continue
		}
		if v, ok := res.Values[a]; ok && byRound[res.Round] > 0 {
			s.values = append(s.values, v/byRound[res.Round])
			if res.Values["overlaps"] > 0 {
				s.overlapped++
			}
		}
	}
	slices.Sort(s.values)
	return s
}

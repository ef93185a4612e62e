package history

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// A Record is what the workers say, and what was broken meanwhile. It is safe for
// concurrent use.
type Record struct {
	mu       sync.Mutex
	claims   []Claim
	samples  []Sample
	ops      []SetOp
	steps    []Step
	faults   []Fault
	problems []string
}

// Claim notes that a worker acted as a holder.
func (r *Record) Claim(c Claim) { r.note(func() { r.claims = append(r.claims, c) }) }

// Sample notes that a hold said it was valid. Of those with one key and token
// the last one suffices.
func (r *Record) Sample(s Sample) { r.note(func() { r.samples = append(r.samples, s) }) }

// Op notes what a worker did to a set.
func (r *Record) Op(o SetOp) { r.note(func() { r.ops = append(r.ops, o) }) }

// Step notes what happened to an acquisition or a session.
func (r *Record) Step(s Step) { r.note(func() { r.steps = append(r.steps, s) }) }

// Trace returns the steps, and what holders did.
func (r *Record) Trace() ([]Step, []Claim) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.steps), slices.Clone(r.claims)
}

// Fault notes that something was broken.
func (r *Record) Fault(f Fault) { r.note(func() { r.faults = append(r.faults, f) }) }

// Problem notes something that must not be, such as an error that nothing excuses.
func (r *Record) Problem(format string, args ...any) {
	r.note(func() { r.problems = append(r.problems, fmt.Sprintf(format, args...)) })
}

func (r *Record) note(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
}

// A Verdict is what is wrong with a run: nothing, if there are no Problems.
type Verdict struct {
	Problems []string
	// Excused is for how long a hold said that it was valid after somebody else
	// had removed its entry: the worst case.
	Excused time.Duration
	Steps   int // that were followed through the model

	steps  []Step
	broken []Broken
	faults []Fault
	log    *Log
}

// LoseEvents is how the name of a fault begins that has watches lose events.
const LoseEvents = "lose events"

// Judge judges the record by etcd's history. Both must be complete.
func (r *Record) Judge(l *Log) *Verdict {
	r.mu.Lock()
	defer r.mu.Unlock()
	v := &Verdict{log: l, faults: r.faults}
	v.Problems = append(v.Problems, r.problems...)
	for _, f := range r.faults {
		if strings.HasPrefix(f.What, LoseEvents) {
			l.LostEvents(f.From, f.To)
		}
	}
	wrong, broken := l.CheckGrants(r.claims)
	v.Problems = append(v.Problems, wrong...)
	v.Steps, v.steps = len(r.steps), r.steps
	v.Problems = append(v.Problems, l.CheckTrace(r.steps, r.claims)...)
	late, excused := l.CheckValid(r.samples)
	v.Problems, v.Excused = append(v.Problems, late...), excused
	v.broken = append(broken, CheckSets(r.ops)...)
	for _, b := range v.broken {
		v.Problems = append(v.Problems, fmt.Sprintf("%s is not linearizable (%s)", b.What, b.Result))
	}
	return v
}

// Save writes into dir, which it makes, what is needed to look into a failure: a
// page for each set and each stretch of a queue that is not linearizable, and in text the problems, the faults,
// etcd's history of the locks and the steps of the acquisitions.
func (v *Verdict) Save(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var errs []error
	for _, b := range v.broken {
		errs = append(errs, b.SavePicture(filepath.Join(dir, unspecial.Replace(b.What)+".html"), v.faults))
	}
	var text strings.Builder
	for _, p := range v.Problems {
		fmt.Fprintln(&text, p)
	}
	text.WriteString("\nFaults\n")
	for _, f := range v.faults {
		fmt.Fprintf(&text, "%s to %s, %s: %s\n", f.From.Format(clock), f.To.Format(clock), f.Lane, f.What)
	}
	text.WriteString("\nEntries, by the revisions of their creation and deletion\n")
	text.WriteString(v.log.String())
	text.WriteString("\nSteps of acquisitions and sessions\n")
	for _, s := range v.steps {
		fmt.Fprintln(&text, s)
	}
	errs = append(errs, os.WriteFile(filepath.Join(dir, "history.txt"), []byte(text.String()), 0o644))
	return errors.Join(errs...)
}

// unspecial makes the name of a file.
var unspecial = strings.NewReplacer("/", "_", " ", "_", ",", "")

const clock = "15:04:05.000"

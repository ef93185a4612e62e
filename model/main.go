// Command model searches the protocol as it is written in lock.pml and the models beside it, with the
// model checker Spin: whether what doc.go promises holds in every order of
// events, within bounds that are printed, and whether that is noticed for each
// line of the protocol that is left out (a mutant).
//
//	make model                  search everything, two at a time
//	go run ./model -only fault  what has that in its name
//	go run ./model -write       and write README.md from it
//
// It needs spin and a C compiler. The searches are in searches.go, the mutants in
// mutants.go.
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"
)

// a job is one run of Spin; its result is printed in the order of the jobs.
type job struct {
	search *search
	mutant *mutant
	result result
	err    error
	done   chan struct{}
}

func (j *job) name() string {
	if j.mutant != nil {
		return fmt.Sprintf("mutant %d: %s", j.mutant.Number, j.mutant.Without)
	}
	return j.search.Name
}

func main() {
	write := flag.Bool("write", false, "write README.md from what is found")
	only := flag.String("only", "", "run what has this in its name or bounds")
	parallel := flag.Int("j", min(2, runtime.NumCPU()), "how many at a time; one takes up to 3.5 GB")
	dir := flag.String("dir", "model", "where the models are")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *dir, *only, *parallel, *write); err != nil {
		fmt.Fprintln(os.Stderr, "model:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, dir, only string, parallel int, write bool) error {
	began := time.Now()
	var jobs []*job
	for i := range searches {
		jobs = append(jobs, &job{search: &searches[i], done: make(chan struct{})})
	}
	for i := range mutants {
		jobs = append(jobs, &job{mutant: &mutants[i], done: make(chan struct{})})
	}
	if only != "" {
		kept := jobs[:0]
		for _, j := range jobs {
			if strings.Contains(j.name(), only) {
				kept = append(kept, j)
			}
		}
		jobs = kept
	}
	if len(jobs) == 0 || write && only != "" {
		return fmt.Errorf("nothing is called %q, or it is not all there is to write", only)
	}
	models, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	work := make(chan *job)
	go func() {
		defer close(work)
		for _, j := range jobs {
			work <- j
		}
	}()
	var wg sync.WaitGroup
	for range max(1, parallel) {
		wg.Go(func() {
			for j := range work {
				j.run(ctx, models)
				close(j.done)
			}
		})
	}
	failed := 0
	for _, j := range jobs {
		<-j.done
		if j.err != nil {
			failed++
			fmt.Printf("FAILED %s: %v\n", j.name(), j.err)
		} else {
			fmt.Println(j.line())
		}
	}
	wg.Wait()
	fmt.Printf("%d of %d as they should be, in %v\n", len(jobs)-failed, len(jobs), time.Since(began).Round(time.Second))
	if failed > 0 {
		return fmt.Errorf("%d are not as they should be", failed)
	}
	if write {
		return writeReadme(filepath.Join(dir, "README.md"), jobs)
	}
	return nil
}

func (j *job) run(ctx context.Context, dir string) {
	if j.search != nil {
		j.result, j.err = search1(ctx, dir, j.search)
	} else {
		j.result, j.err = findMutant(ctx, dir, j.mutant)
	}
}

// line tells what was searched, and how much that was; for a mutant, what found it.
func (j *job) line() string {
	r := j.result
	size := fmt.Sprintf("%d states, depth %d, %d MB, %v", r.States, r.Depth, r.Megabytes, r.Took.Round(100*time.Millisecond))
	if j.mutant != nil {
		return fmt.Sprintf("%s\n\tfound by %q after %d steps (%s; %s)", j.name(), r.Property, len(r.Trail), j.mutant.Bounds, size)
	}
	return fmt.Sprintf("%s\n\tholds: %s (%s; %s)", j.name(), cmp.Or(j.search.Formula, "all assertions"), j.search.Bounds, size)
}

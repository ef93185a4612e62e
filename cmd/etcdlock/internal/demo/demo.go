package demo

import (
	"context"
	"errors"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/cmd/etcdlock/internal/connect"
	"github.com/etcdlock/etcdlock/cmd/etcdlock/internal/screen"
)

const (
	// demoTTL is the TTL of the workers. No lease of theirs ends on a machine that stalls for seconds.
	demoTTL = 10 * time.Second
	// hungTTL is that of the holder that is killed. It is short, because the demo waits until that lease ends. It is not so
	// short that a busy machine ends it before.
	hungTTL = 4 * time.Second

	// timeLimit ends a demo that does not end by itself. The cleaning up comes after it.
	timeLimit = 45 * time.Second
)

var errTooLong = fmt.Errorf("the demo did not end within %v: a lock is stuck, or this machine or its etcd is very slow", timeLimit)

// specs are the phases of the demo.
func specs() []spec {
	const ms = time.Millisecond
	mutex := spec{name: "mutex", title: "1. One lock, six processes; one is killed while it holds the lock"}
	for i := range 6 {
		mutex.jobs = append(mutex.jobs, job{Worker: fmt.Sprintf("p%d", i+1), Mode: modeMutex, Rounds: 3, Section: 250 * ms, Pause: 400 * ms})
	}
	mutex.jobs[3].HangIn = 2

	rw := spec{name: "rwmutex", title: "2. A read-write lock, four readers and two writers", rw: true}
	for i := range 4 {
		rw.jobs = append(rw.jobs, job{Worker: fmt.Sprintf("r%d", i+1), Mode: modeRead, Rounds: 4, Section: 300 * ms, Pause: 400 * ms})
	}
	for i := range 2 {
		rw.jobs = append(rw.jobs, job{Worker: fmt.Sprintf("w%d", i+1), Mode: modeWrite, Rounds: 4, Section: 200 * ms, Pause: 600 * ms})
	}
	return []spec{mutex, rw}
}

// A demo is one run of it.
type demo struct {
	view    *screen.View
	store   *store
	workers *processes
	watch   clientv3.WatchChan
	phases  []*phase
	leases  []clientv3.LeaseID // of all workers
	zero    time.Time          // when the workers of the first phase were started

	caughtUp bool // the watch has delivered everything
}

// run runs the demo. It leaves no process, no key and no file.
func run(ctx context.Context, etcd connect.Config, launch Launch, v *screen.View) error {
	began := time.Now()
	ctx, cancel := context.WithTimeoutCause(ctx, timeLimit, errTooLong)
	defer cancel()
	st, err := openStore(ctx, etcd, launch)
	if err != nil {
		return err
	}
	d := &demo{view: v, store: st}
	if d.workers, err = newProcesses(); err != nil {
		return oneLine(err, st.shut())
	}
	v.Print(screen.Text(st.about))
	err = d.contend(ctx)
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		err = cause // err is only a consequence of it
	}
	v.Close()
	d.workers.killAll()
	err = oneLine(err, st.clean(ctx, d.leases), st.shut())
	if err == nil {
		v.Print(screen.Line{}, screen.Line{screen.Green(fmt.Sprintf("passed in %s", seconds(time.Since(began))))})
		err = v.Err()
	}
	return err
}

// contend is the demo without its start and its cleaning up.
func (d *demo) contend(ctx context.Context) error {
	if err := d.play(ctx); err != nil {
		return err
	}
	final, err := d.finals(ctx)
	if err != nil {
		return err
	}
	return d.judge(final)
}

// play runs the phases one after the other, under one watch.
func (d *demo) play(ctx context.Context) (err error) {
	if d.watch, err = d.store.watch(ctx); err != nil {
		return err
	}
	for _, s := range specs() {
		rec := newRecord(d.store.paths(s.name))
		p := &phase{demo: d, spec: s, rec: rec, story: &story{rec: rec, rw: s.rw}}
		d.phases = append(d.phases, p)
		if err := p.run(ctx); err != nil {
			return err
		}
	}
	// The watch delivers in order, so everything before the marker has come with it.
	revision, err := d.store.mark(ctx)
	if err != nil {
		return err
	}
	last := d.phases[len(d.phases)-1]
	if err := last.wait(ctx, func() bool { return d.caughtUp }); err != nil {
		return err
	}
	d.view.Close()
	d.view.Print(screen.Line{}, screen.Line{screen.Bold(fmt.Sprintf("Checked against etcd's own history (revisions %d to %d) and the workers' reports", d.store.revision, revision))})
	return nil
}

// finals reads what each phase has left in etcd.
func (d *demo) finals(ctx context.Context) ([]finalState, error) {
	var all []finalState
	for _, p := range d.phases {
		f, err := d.store.final(ctx, p.rec.paths)
		if err != nil {
			return nil, err
		}
		all = append(all, f)
	}
	return all, nil
}

// judge prints the summary, and returns an error if any check has failed.
func (d *demo) judge(final []finalState) error {
	var o outcome
	for i, p := range d.phases {
		l, ws := p.outcome(final[i])
		o.locks = append(o.locks, l)
		o.workers = append(o.workers, ws...)
		o.ttl = max(o.ttl, p.ttl)
	}
	lines, err := verdict(check(o))
	d.view.Print(lines...)
	return err
}

// verdict makes the lines of the summary, and an error if any check has failed.
func verdict(findings []finding) (lines []screen.Line, err error) {
	var errs []error
	for _, f := range findings {
		result := screen.Green("  ok    ")
		if len(f.problems) > 0 {
			result = screen.Red("  FAIL  ")
			errs = append(errs, fmt.Errorf("%s: %s", f.title, f.problems[0]))
		}
		lines = append(lines, screen.Line{result, screen.Plain(screen.Pad(f.title, 36)), screen.Dim(f.detail)})
		for _, problem := range f.problems {
			lines = append(lines, screen.Line{screen.Red("        " + problem)})
		}
	}
	if len(errs) > 0 {
		err = fmt.Errorf("the demo found a fault in the locks; please report it: %w", oneLine(errs...))
	}
	return lines, err
}

// oneLine is errors.Join in one line.
func oneLine(errs ...error) (err error) {
	for _, e := range errs {
		switch {
		case err == nil:
			err = e
		case e != nil:
			err = fmt.Errorf("%w; %w", err, e)
		}
	}
	return err
}

package demo

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"time"

	"github.com/etcdlock/etcdlock"
)

// errOrphan ends a worker whose parent is gone.
var errOrphan = errors.New("the demo that started this process is gone")

// work is the whole of a worker process. It makes a client and a session, takes the
// lock in rounds, and reports on out.
func work(ctx context.Context, in io.Reader, out io.Writer) error {
	// Ctrl-C goes to all processes of the terminal. The demo handles it and ends its
	// workers.
	signal.Ignore(os.Interrupt)
	lines := bufio.NewReader(in)
	var j job
	first, err := lines.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(first, &j)
	}
	if err != nil {
		return fmt.Errorf("only `etcdlock demo` uses this command: no job on standard input: %w", err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	start := make(chan struct{})
	go func() { // ends with the input; the process does not wait for it
		if _, err := lines.ReadBytes('\n'); err == nil {
			close(start)
			_, _ = io.Copy(io.Discard, lines)
		}
		cancel(errOrphan)
	}()

	client, err := j.Etcd.Client()
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }() // the process ends anyway
	s, err := etcdlock.NewSession(ctx, client, etcdlock.WithTTL(j.TTL), etcdlock.WithOwner(j.Worker))
	if err != nil {
		return err
	}
	w := &worker{job: j, out: json.NewEncoder(out)}
	err = w.run(ctx, s, start)
	if cerr := s.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = w.say(report{Event: eventDone})
	}
	return err
}

type worker struct {
	job
	out *json.Encoder
}

func (w *worker) say(r report) error {
	if r.At.IsZero() {
		r.At = time.Now()
	}
	return w.out.Encode(r)
}

func (w *worker) run(ctx context.Context, s *etcdlock.Session, start <-chan struct{}) error {
	if err := w.say(report{Event: eventReady, Lease: s.Lease(), TTL: s.TTL()}); err != nil {
		return err
	}
	select {
	case <-start:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	enqueue := etcdlock.NewMutex(s, w.Lock.Name).Enqueue
	rw := etcdlock.NewRWMutex(s, w.Lock.Name)
	switch w.Mode {
	case modeMutex:
	case modeRead:
		enqueue = rw.REnqueue
	case modeWrite:
		enqueue = rw.Enqueue
	default:
		return fmt.Errorf("no such mode: %q", w.Mode)
	}
	for round := 1; round <= w.Rounds; round++ {
		if err := w.round(ctx, round, enqueue); err != nil {
			return err
		}
		if err := pause(ctx, rand.N(w.Pause+1)); err != nil {
			return err
		}
	}
	return nil
}

// round is one acquisition.
func (w *worker) round(ctx context.Context, round int, enqueue func(context.Context) (*etcdlock.Ticket, error)) error {
	ticket, err := enqueue(ctx)
	if err != nil {
		return err
	}
	ahead, err := ticket.Ahead(ctx)
	if err != nil {
		return err
	}
	if err := w.say(report{Event: eventQueued, Round: round, Ahead: ahead}); err != nil {
		return err
	}
	h, err := ticket.Wait(ctx)
	granted := time.Now() // first of all: checkOverlaps uses it
	if err != nil {
		return err
	}
	if err := w.say(report{Event: eventGranted, At: granted, Round: round, Token: h.Token(), Deadline: h.Deadline()}); err != nil {
		return err
	}
	d := w.Section
	if round == w.HangIn {
		d = time.Hour
	}
	if err = section(ctx, h, w.job, d); err == nil {
		err = w.say(report{Event: eventReleasing, Round: round, Token: h.Token()})
	}
	if err == nil {
		err = h.Unlock(ctx)
	}
	if errors.Is(err, etcdlock.ErrLost) {
		_ = w.say(report{Event: eventLost, Round: round, Token: h.Token(), Error: err.Error()}) // err says it too
	}
	if err != nil {
		return err
	}
	return w.say(report{Event: eventReleased, Round: round, Token: h.Token()})
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

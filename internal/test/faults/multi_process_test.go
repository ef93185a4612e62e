//go:build unix

package faults

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/test/harness"
	"github.com/etcdlock/etcdlock/internal/test/history"
)

// A process that uses Multis, and prints the steps of their acquisitions; see TestMulti_ProcessesAreKilled.

const (
	multiNames   = 12
	multiWorkers = 2 // of a process, in one session
)

func multiName(i int) string { return fmt.Sprintf("%s%c", history.LockPrefix, 'a'+i) }

// multiProcess locks random names together, until SIGTERM or the end of the test.
func multiProcess(ctx context.Context, a lockerArg, c *clientv3.Client, in *bufio.Reader) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM)
	defer stop()
	go func() { _, _ = in.ReadByte(); stop() }()
	locks := etcdlock.New(c, etcdlock.WithTTL(time.Duration(a.Seconds)*time.Second), etcdlock.WithHooks(multiHooks()))
	errs := make(chan error, multiWorkers)
	for range multiWorkers {
		go func() {
			for ctx.Err() == nil {
				if err := multiTurn(ctx, locks); err != nil {
					errs <- err
					stop()
					return
				}
			}
			errs <- nil
		}()
	}
	var failed []error
	for range multiWorkers {
		failed = append(failed, <-errs)
	}
	_ = locks.Close() // it waits for a TTL, and etcd may need longer. The test sees whether anything is left.
	return errors.Join(failed...)
}

// multiHooks print the steps of acquisitions. The release of an acquisition is printed before Unlock: a
// process that is killed has then said so before anything was removed.
func multiHooks() *etcdlock.Hooks {
	return &etcdlock.Hooks{
		Enqueued: func(_ context.Context, i etcdlock.EnqueuedInfo) {
			multiStep(history.Enqueued, i.Enqueued, i.Acquisition)
		},
		Granted: func(_ context.Context, i etcdlock.GrantedInfo) { multiStep(history.Granted, i.Granted, i.Acquisition) },
		Abandoned: func(_ context.Context, i etcdlock.AbandonedInfo) {
			multiStep(history.Abandoned, time.Now(), i.Acquisition)
		},
		Lost: func(_ context.Context, i etcdlock.LostInfo) { multiStep(history.Lost, time.Now(), i.Acquisition) },
		SessionEnded: func(i etcdlock.SessionEndedInfo) {
			at := time.Now()
			if deadline := i.Session.Deadline(); deadline.Before(at) {
				at = deadline // a process that was paused says so late
			}
			multiStep(history.Ended, at, etcdlock.Acquisition{Session: i.Session})
		},
	}
}

// multiStep prints a step in one write, so that a process that is killed prints all of it or nothing.
func multiStep(what history.What, at time.Time, a etcdlock.Acquisition) {
	line, err := json.Marshal(history.Step{What: what, At: at, Name: a.Name, Token: a.Token, Lease: int64(a.Session.Lease())})
	if err != nil {
		panic(err)
	}
	_, _ = os.Stdout.Write(append(line, '\n'))
}

// multiTurn is one acquisition of 2 to 8 names in any order, about a third of them to read.
func multiTurn(ctx context.Context, locks *etcdlock.Client) error {
	var names []string
	var parts []etcdlock.Part
	for _, i := range rand.Perm(multiNames)[:2+rand.N(7)] {
		name := multiName(i)
		part := etcdlock.Write(name)
		if rand.N(3) == 0 {
			part = etcdlock.Read(name)
		}
		names, parts = append(names, name), append(parts, part)
	}
	var h *etcdlock.Held
	var err error
	switch rand.N(5) {
	case 0, 1: // of two, since more are hardly ever free
		names, parts = names[:2], parts[:2]
		h, err = locks.Multi(parts...).TryLock(ctx)
	case 2: // which may be granted when its ctx ends
		short, cancel := context.WithTimeout(ctx, rand.N(100*time.Millisecond))
		h, err = locks.Multi(parts...).Lock(short)
		cancel()
	default:
		h, err = locks.Multi(parts...).Lock(ctx)
	}
	switch {
	case err == nil:
	case errors.Is(err, etcdlock.ErrLocked), errors.Is(err, context.DeadlineExceeded), ctx.Err() != nil && errors.Is(err, context.Canceled):
		return nil
	default: // nobody removes an entry, and after the end of a session the Client goes on in another one
		return err
	}
	if rand.N(2) == 0 { // the other half has no fence in use, and is handed over at once
		var puts []clientv3.Op
		for i, key := range h.Keys() {
			claim, err := json.Marshal(history.SetValue{Worker: os.Getpid(), Key: key, Token: h.Token()})
			if err != nil {
				return err
			}
			puts = append(puts, clientv3.OpPut(history.SetPrefix+names[i], string(claim)))
		}
		if _, err := h.Txn(ctx).Then(puts...).Commit(); multiExcuse(ctx, h, err) != nil {
			return err
		}
	}
	harness.Elapse(rand.N(10 * time.Millisecond))
	defer rest()
	multiStep(history.GaveBack, time.Now(), etcdlock.Acquisition{Session: h.Session(), Name: strings.Join(names, ", "), Token: h.Token()})
	return multiExcuse(ctx, h, h.Unlock(context.WithoutCancel(ctx)))
}

// multiExcuse is nil for the errors of a hold whose session has ended, since its process was paused, and of a
// process that is to end.
func multiExcuse(ctx context.Context, h *etcdlock.Held, err error) error {
	if errors.Is(err, context.Canceled) && ctx.Err() != nil {
		return nil
	}
	if errors.Is(err, etcdlock.ErrLost) {
		select {
		case <-h.Session().Done():
			return nil
		case <-time.After(harness.Hang):
		}
	}
	return err
}

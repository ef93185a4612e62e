package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	model "github.com/etcdlock/etcdlock/internal/history"
)

// The tests of faults on the shared cluster are also runs of the model (model/lock.pml): what their
// sessions' hooks report is followed through it when all tests have ended.
var (
	faultLog   *model.Log // nil where the servers are not our own
	faultSteps model.Record
)

// followFaults starts to record what the shared cluster does.
func followFaults(c *clientv3.Client) (stop func()) {
	faultLog = model.NewLog("test/TestFault_")
	return faultLog.Follow(c)
}

// heard waits until the record has rev, so that its history may be compacted.
func heard(t testing.TB, rev int64) {
	t.Helper()
	if faultLog != nil {
		require.NoError(t, faultLog.Wait(testCtx(t), rev))
	}
}

// checkFaults returns an error if a step of a test of faults is not as the model allows it. Where many
// of these tests have run, there must be steps.
func checkFaults(c *clientv3.Client) error {
	ctx, cancel := context.WithTimeout(context.Background(), hang)
	defer cancel()
	mark, err := c.Put(ctx, "mark", "")
	if err != nil {
		return err
	}
	if err := faultLog.Wait(ctx, mark.Header.Revision); err != nil {
		return err
	}
	steps, _ := faultSteps.Trace()
	locks, problems := faultLog.CheckPart(steps)
	if len(steps) > 0 {
		fmt.Printf("tests of faults: %d locks and %d steps followed through the model\n", locks, len(steps))
	}
	if len(problems) > 0 {
		return fmt.Errorf("the tests of faults:\n%s", strings.Join(problems, "\n"))
	}
	return nil
}

// traced has a session of a test of faults report its steps.
func traced(t testing.TB) []Option {
	if faultLog == nil || !strings.HasPrefix(t.Name(), "TestFault_") {
		return nil
	}
	note := func(what model.What, at time.Time, a Acquisition) {
		faultSteps.Step(model.Step{What: what, At: at, Name: a.Name, Token: a.Token, Lease: int64(a.Session.Lease())})
	}
	return []Option{WithHooks(&Hooks{
		Enqueued:  func(_ context.Context, i EnqueuedInfo) { note(model.Enqueued, i.Enqueued, i.Acquisition) },
		Granted:   func(_ context.Context, i GrantedInfo) { note(model.Granted, i.Granted, i.Acquisition) },
		Abandoned: func(_ context.Context, i AbandonedInfo) { note(model.Abandoned, i.Asked.Add(i.Wait), i.Acquisition) },
		Released:  func(_ context.Context, i ReleasedInfo) { note(model.GaveBack, i.Granted.Add(i.Held), i.Acquisition) },
		Lost:      func(_ context.Context, i LostInfo) { note(model.Lost, i.Granted.Add(i.Held), i.Acquisition) },
		SessionEnded: func(i SessionEndedInfo) {
			at := time.Now()
			if deadline := i.Session.Deadline(); errors.Is(i.Cause, ErrSessionExpired) && deadline.Before(at) {
				at = deadline // the hook may come later
			}
			faultSteps.Step(model.Step{What: model.Ended, At: at, Lease: int64(i.Session.Lease())})
		},
	})}
}

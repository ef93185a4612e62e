package faults

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/test/harness"
	"github.com/etcdlock/etcdlock/internal/test/history"
	"github.com/etcdlock/etcdlock/internal/test/history/hooks"
)

// The tests of faults on the shared cluster are also runs of the model (model/lock.pml): what their
// sessions' hooks report is followed through it when all tests have ended.
var (
	faultLog   *history.Log // nil where the servers are not our own
	faultSteps history.Record
)

// followFaults starts to record what the shared cluster does.
func followFaults(c *clientv3.Client) (stop func()) {
	faultLog = history.NewLog("test/TestFault_")
	return faultLog.Follow(c)
}

// heard waits until the record has rev, so that its history may be compacted.
func heard(t testing.TB, rev int64) {
	t.Helper()
	if faultLog != nil {
		require.NoError(t, faultLog.Wait(harness.Ctx(t), rev))
	}
}

// checkFaults returns an error if a step of a test of faults is not as the model allows it. Where many
// of these tests have run, there must be steps.
func checkFaults(c *clientv3.Client) error {
	ctx, cancel := context.WithTimeout(context.Background(), harness.Hang)
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
func traced(t testing.TB) []etcdlock.Option {
	if faultLog == nil || !strings.HasPrefix(t.Name(), "TestFault_") {
		return nil
	}
	return []etcdlock.Option{etcdlock.WithHooks(hooks.For(&faultSteps))}
}

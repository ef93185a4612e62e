package outage

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/etcdlock/etcdlock/internal/test/logtest"
)

// That etcd refuses rights has one line for all calls, and again after a while. Other errors have none.
func TestRefused_OneLineAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, log := newSource(t)
		s.Lease = logtest.NoLease{}
		call := func(name string, err error) {
			s.Refused("take", err, func(op string, err error) error { return fmt.Errorf("%s %s: %w", op, name, err) })
		}
		for _, err := range []error{nil, errors.New("held by permission denied"), rpctypes.ErrNoSpace, rpctypes.ErrLeaseNotFound} {
			call("a", err)
		}
		require.Empty(t, log.Messages())
		for range 3 {
			for _, name := range []string{"a", "b", "c"} {
				call(name, fmt.Errorf("wrapped: %w", rpctypes.ErrPermissionDenied))
			}
			pass(again / 2)
		}
		call("d", rpctypes.ErrUserEmpty) // the half of a minute after the second line
		pass(again)
		call("e", rpctypes.ErrUserEmpty)
		const refused = "WARN etcd refuses this client"
		require.Equal(t, []string{refused, refused, refused}, log.Messages())
		require.Contains(t, log.Lines()[0], `error="take a: wrapped: etcdserver: permission denied" check="the client's user and password,`)
		require.Contains(t, log.Lines()[2], `error="take e: etcdserver: user name is empty"`)
	})
}

// On a member that hangs all transactions are late: one line tells of them, and another one if that goes on.
func TestLate_OneLineAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, log := newSource(t)
		for i := range 10 {
			defer s.Late("a", int64(i))()
		}
		pass(2 * LateAfter)
		const late = "WARN a transaction under a lock has no answer from etcd yet"
		require.Equal(t, []string{late}, log.Messages())
		stop := s.Late("b", 7)
		pass(LateAfter / 2)
		require.True(t, stop(), "it has its answer")
		pass(again)
		require.Equal(t, []string{late}, log.Messages())
		s.Late("c", 8)
		pass(2 * LateAfter)
		require.Equal(t, []string{late, late}, log.Messages())
		require.Contains(t, log.Lines()[1], "lock=c token=8")
	})
}

package outage

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/test/logtest"
)

const (
	refuses = "WARN etcd refuses new locks"
	takes   = "INFO etcd takes new locks again"
)

func newSource(t *testing.T) (*Source, *logtest.Log) {
	log := &logtest.Log{}
	return &Source{All: &Outages{}, Client: etcd.NewClient(clientv3.NewCtxClient(t.Context())), Life: t.Context(), Log: log.Logger()}, log
}

// An alarm has one line at its beginning and one at its end, in whatever order answers come.
func TestAlarm_OneLineEach(t *testing.T) {
	s, log := newSource(t)
	before := s.All.Alarm()
	s.Answered(before, "a", nil)
	require.Empty(t, log.Messages())
	s.Answered(before, "a", rpctypes.ErrNoSpace)
	s.Answered(before, "b", rpctypes.ErrNoSpace)
	s.Answered(before, "c", nil) // sent before it began
	s.Answered(s.All.Alarm(), "c", rpctypes.ErrPermissionDenied)
	require.Equal(t, []string{refuses}, log.Messages())
	first := s.All.Alarm()
	s.Answered(first, "a", rpctypes.ErrCorrupt)
	s.Answered(first, "c", nil) // one that was sent since was refused
	require.Equal(t, []string{refuses}, log.Messages())
	before = s.All.Alarm()
	s.Answered(before, "", nil)
	s.Answered(before, "", nil)
	s.Answered(before, "a", rpctypes.ErrNoSpace) // sent before it was over
	require.Nil(t, s.All.Alarm())
	require.Equal(t, []string{refuses, takes}, log.Messages())
	s.Answered(s.All.Alarm(), "a", rpctypes.ErrNoSpace)
	require.Equal(t, []string{refuses, takes, refuses}, log.Messages())
}

// A client that etcd does not know has a line of another kind. If there is an alarm too, that has its own two.
func TestAlarm_UnknownUser(t *testing.T) {
	s, log := newSource(t)
	s.Answered(nil, "a", rpctypes.ErrAuthFailed)
	require.Equal(t, "a", s.All.Alarm().key)
	s.Answered(s.All.Alarm(), "a", nil)
	require.Nil(t, s.All.Alarm())
	require.Empty(t, log.Messages())
	s.Answered(nil, "a", rpctypes.ErrAuthFailed)
	s.Answered(s.All.Alarm(), "a", rpctypes.ErrNoSpace)
	s.Answered(s.All.Alarm(), "a", rpctypes.ErrAuthFailed)
	s.Answered(s.All.Alarm(), "a", nil)
	require.Equal(t, []string{refuses, takes}, log.Messages())
}

// Of leases that were refused a session that lives knows that this is over. An entry's key is not forgotten for a lease.
func TestAlarm_OfLeases(t *testing.T) {
	s, _ := newSource(t)
	s.Client.Client = &clientv3.Client{KV: nil} // a request would panic
	s.All.alarm.Store(&Alarm{})
	require.NoError(t, s.Ready(t.Context()))
	s, _ = newSource(t)
	s.Answered(nil, "a", rpctypes.ErrNoSpace)
	s.Answered(s.All.Alarm(), "", rpctypes.ErrNoSpace)
	require.Equal(t, "a", s.All.Alarm().key)
}

// A client that etcd refuses has no outage to wait for: its user or its role must be mended.
func TestOutage_Refused(t *testing.T) {
	s, log := newSource(t)
	s.Lease = logtest.NoLease{}
	o := s.Outage("")
	o.Start(t.Context(), rpctypes.ErrUserEmpty)
	o.Stop(true)
	require.Equal(t, []string{"WARN etcd refuses this client", logtest.Over}, log.Messages())
	require.Contains(t, log.Lines()[0], `check="the client's user and password, or its certificate, and the user's role"`)
}

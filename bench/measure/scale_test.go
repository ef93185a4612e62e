package measure

import (
	"math"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/etcdlock/etcdlock/etcdtest"
)

func newRest(t *testing.T) *Rest {
	c := etcdtest.Start(t)
	r := &Rest{Count: &Counter{}, Look: c.Client(t), PID: os.Getpid(), TTL: 10 * time.Second, Window: 100 * time.Millisecond}
	r.Connect = func() (*clientv3.Client, error) {
		return clientv3.New(clientv3.Config{Endpoints: c.Endpoints(), DialOptions: []grpc.DialOption{r.Count.Option()}})
	}
	t.Cleanup(func() { require.NoError(t, r.close()) })
	return r
}

// Every kind is set up and measured: the sessions that it needs, and what both processes use.
func TestScale(t *testing.T) {
	for kind, sessions := range map[string]float64{"idle": 0, "waiters": 9, "held": 1, "watched": 1, "names": 2, "sessions": 3} {
		t.Run(kind, func(t *testing.T) {
			r := newRest(t)
			v, err := r.Scale(t.Context(), kind, 3)
			require.NoError(t, err)
			require.InDelta(t, sessions, v["sessions"], 0)
			require.Positive(t, v["client_cpu"]+v["etcd_cpu"])
			require.Less(t, v["requests"], 1000.0, "it is not at rest: %v", v)
			for _, name := range []string{"etcd_cpu", "etcd_memory_bytes", "etcd_file_bytes", "heap_bytes"} {
				require.Contains(t, v, name)
				require.False(t, math.IsNaN(v[name]), name)
			}
			if sessions > 0 {
				require.Positive(t, r.Count.count()["commits"], "its clients do not count")
			}
			left, err := entries(t.Context(), r.Look, "/bench")
			require.NoError(t, err)
			require.Zero(t, left, "keys that it left")
		})
	}
	_, err := newRest(t).Scale(t.Context(), "no such kind", 3)
	require.Error(t, err)
}

// A measurement in which an entry or a session was lost is void.
func TestScale_Lost(t *testing.T) {
	r := newRest(t)
	name := newName()
	require.NoError(t, r.hold(t.Context(), name, 3, false))
	require.NoError(t, r.lost(t.Context(), name, 3))
	_, err := r.Look.Delete(t.Context(), name+"/1/", clientv3.WithPrefix())
	require.NoError(t, err)
	require.ErrorContains(t, r.lost(t.Context(), name, 3), "2 of 3 keys")
	require.NoError(t, r.opened[0].Close())
	require.ErrorContains(t, r.lost(t.Context(), name, 0), "closed")
}

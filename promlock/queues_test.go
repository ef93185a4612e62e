package promlock_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/promlock"
)

// Queues shows the entries in etcd, whoever made them.
func TestQueues(t *testing.T) {
	cluster := etcdtest.Start(t)
	client := cluster.Client(t)
	s := newSession(t, client, etcdlock.WithTTL(time.Minute))
	_, err := client.Put(testCtx(t), "a/1234", "", clientv3.WithLease(s.Lease())) // by etcdctl lock, say
	require.NoError(t, err)
	_, err = etcdlock.NewMutex(s, "a").Enqueue(testCtx(t))
	require.NoError(t, err)
	for range 2 {
		mustLock(t, etcdlock.NewRWMutex(s, "r").RLock)
	}
	reg := registry(t, promlock.NewQueues(etcdlock.New(client), "a", "r", "free", "a"))
	require.Equal(t, map[string]float64{
		"etcdlock_queue_length{name=a,state=holding}": 1, "etcdlock_queue_length{name=a,state=waiting}": 1,
		"etcdlock_queue_length{name=r,state=holding}": 2, "etcdlock_queue_length{name=r,state=waiting}": 0,
		"etcdlock_queue_length{name=free,state=holding}": 0, "etcdlock_queue_length{name=free,state=waiting}": 0,
	}, gather(t, reg))
	requireLint(t, reg)
}

// A scrape while etcd hangs ends soon, and still has the metrics of other collectors.
func TestQueues_EtcdAway(t *testing.T) {
	cluster := etcdtest.Start(t)
	proxy := cluster.Proxy(t)
	locks := promlock.New()
	reg := registry(t, promlock.NewQueues(etcdlock.New(cluster.Client(t, proxy)), "a"), locks)
	require.Contains(t, gather(t, reg), "etcdlock_queue_length{name=a,state=holding}")
	proxy.Blackhole(etcdtest.Both)
	start := time.Now()
	got := gather(t, reg)
	require.Less(t, time.Since(start), hang)
	require.NotContains(t, got, "etcdlock_queue_length{name=a,state=holding}")
	require.Contains(t, got, "etcdlock_sessions", "of another collector")
}

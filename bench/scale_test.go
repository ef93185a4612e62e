package main

import (
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/bench/report"
)

// Every kind that the report shows is measured, in a process of its own and with etcd in another one.
func TestScale(t *testing.T) {
	path, err := builtEtcd()
	require.NoError(t, err)
	every := regexp.MustCompile("")
	b := &bench{etcd: path, most: 10, window: 100 * time.Millisecond, servers: every, quantity: every, peers: every, on: "scale", round: 1}
	require.NoError(t, b.onScale(t.Context()))
	require.Len(t, b.result.Results, len(report.Kinds)-1) // all but that of 1,000
	for _, res := range b.result.Results {
		require.Empty(t, res.Error, res.Quantity)
		require.Positive(t, res.Values["etcd_memory_bytes"]+res.Values["etcd_cpu"], res.Quantity)
		if res.Quantity != "idle/0" {
			require.Positive(t, res.Values["sessions"], res.Quantity)
		}
	}
}

// Go doubles a stack: a few words more on the way to where a waiter waits are 4 KiB more.
func TestScale_WaiterMemory(t *testing.T) {
	path, err := builtEtcd()
	require.NoError(t, err)
	b := &bench{etcd: path, settle: time.Second, window: 100 * time.Millisecond}
	v, err := b.inOwnProcess(t.Context(), "waiters", 1000, report.TTL)
	require.NoError(t, err)
	require.Less(t, v["heap_bytes"]+v["stack_bytes"]-report.GoroutineBytes, float64(report.WaiterBytes), "%v", v)
}

// What fails in the other process is in the results, with its reason.
func TestScale_Failure(t *testing.T) {
	path, err := builtEtcd()
	require.NoError(t, err)
	_, err = (&bench{etcd: path}).inOwnProcess(t.Context(), "no such kind", 1, time.Minute)
	require.ErrorContains(t, err, `no kind "no such kind"`)
}

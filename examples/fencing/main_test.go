//go:build unix

package main

import (
	"bytes"
	"context"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The test binary also runs as process A.
func TestMain(m *testing.M) {
	if os.Getenv(envEtcd) != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestFencing(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	began := time.Now()
	var out bytes.Buffer
	require.NoError(t, show(ctx, &out))
	require.Less(t, time.Since(began), timeout)
	for _, line := range []string{
		"A is stopped for 4s, twice its TTL\n",
		"A: the store has updated 0 rows, because it has seen a higher token\n",
		"A: Valid says false\n",
		"A: Txn says etcdlock: transaction under \"report\": lock lost: session expired\n",
		"the store has B's report, and B still has the lock\n",
	} {
		require.Contains(t, out.String(), line)
	}
}

func TestStore(t *testing.T) {
	s := &Store{}
	require.Equal(t, 1, s.update("a", 3))
	require.Equal(t, 0, s.update("b", 2))
	require.Equal(t, 1, s.update("c", 3), "a holder may write repeatedly")
	require.Equal(t, 1, s.update("d", 5))
	require.Equal(t, "d", s.read())
}

package etcdtest_test

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// patience is how long a test waits for something that must happen.
const patience = 20 * time.Second

func short(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func eventually(t *testing.T, condition func() bool, msg string) {
	t.Helper()
	require.Eventually(t, condition, patience, 5*time.Millisecond, msg)
}

// result starts f and returns a channel that delivers its error.
func result(f func() error) <-chan error {
	c := make(chan error, 1)
	go func() { c <- f() }()
	return c
}

func await(t *testing.T, c <-chan error) error {
	t.Helper()
	select {
	case err := <-c:
		return err
	case <-time.After(patience):
		require.Fail(t, "still waiting")
		return nil
	}
}

func awaitClosed(t *testing.T, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(patience):
		require.Fail(t, "still waiting")
	}
}

// askNameServers is called before a name server is asked, unless it is nil.
var askNameServers atomic.Pointer[func()]

// resolver is the resolver of all tests.
var resolver = &net.Resolver{
	PreferGo: true,
	Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
		if ask := askNameServers.Load(); ask != nil {
			(*ask)()
		}
		return new(net.Dialer).DialContext(ctx, network, address)
	},
}

// hangNameServers blocks all requests to name servers while the test runs. The channel is
// closed at the first such request.
func hangNameServers(t *testing.T) (asked <-chan struct{}) {
	first, over := make(chan struct{}), make(chan struct{})
	note := sync.OnceFunc(func() { close(first) })
	ask := func() { note(); <-over }
	askNameServers.Store(&ask)
	t.Cleanup(func() { askNameServers.Store(nil); close(over) })
	return first
}

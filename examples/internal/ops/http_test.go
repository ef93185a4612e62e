package ops

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/internal/test/loopback"
)

// A request that takes longer than the limit is ended, and Serve ends well: it was only asked to end.
func TestServe_Limit(t *testing.T) {
	addrs, err := loopback.FreeAddrs(1)
	require.NoError(t, err)
	ctx, stop := context.WithCancel(bounded(t))
	defer stop()
	entered, left := make(chan struct{}), make(chan struct{})
	handler := http.NewServeMux()
	handler.HandleFunc("GET /", func(http.ResponseWriter, *http.Request) {})
	handler.HandleFunc("GET /slow", func(_ http.ResponseWriter, r *http.Request) {
		close(entered)
		<-r.Context().Done()
		close(left)
	})
	served := make(chan error, 1)
	go func() { served <- Serve(ctx, addrs[0], handler, time.Millisecond) }()
	get := func(path string) error {
		req, err := http.NewRequestWithContext(bounded(t), http.MethodGet, "http://"+addrs[0]+path, http.NoBody)
		if err != nil {
			return err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		return resp.Body.Close()
	}
	require.Eventually(t, func() bool { return get("/") == nil }, hang, 10*time.Millisecond)
	answered := make(chan error, 1)
	go func() { answered <- get("/slow") }()
	<-entered
	stop()
	require.NoError(t, <-served)
	<-left
	require.Error(t, <-answered)
}

package ops

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Handler answers what Kubernetes and Prometheus ask:
//
//	/healthz  live:  an error means that only a restart helps, such as Elector.Check's
//	/readyz   ready: an error means that no lock can be had now, such as Client.Ready's
//	/metrics  for Prometheus
//
// Liveness must not depend on etcd: a process that is restarted because etcd is
// away finds etcd away again, and a leader would give up what it may still have.
func Handler(live func() error, ready func(context.Context) error, metrics prometheus.Gatherer) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", answer(func(context.Context) error { return live() }))
	mux.HandleFunc("GET /readyz", answer(ready))
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{}))
	return mux
}

// checkTimeout is less than the second that Kubernetes waits for the answer.
const checkTimeout = 500 * time.Millisecond

func answer(check func(context.Context) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), checkTimeout)
		defer cancel()
		if err := check(ctx); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		_, _ = fmt.Fprintln(w, "ok")
	}
}

// Serve serves HTTP at an address until ctx ends. Then it takes no new requests, and returns nil when those that are
// under way are answered. It ends what is not answered within limit, which must be more than a request may take.
func Serve(ctx context.Context, addr string, handler http.Handler, limit time.Duration) error {
	server := &http.Server{Addr: addr, Handler: handler, ReadHeaderTimeout: 5 * time.Second}
	stopped := make(chan error, 1)
	defer context.AfterFunc(ctx, func() {
		bounded, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		err := server.Shutdown(bounded)
		if errors.Is(err, context.DeadlineExceeded) {
			err = server.Close() // it was only asked to end
		}
		stopped <- err
	})()
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return <-stopped
}

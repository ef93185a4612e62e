package main

import (
	"context"
	"errors"
	"log"
	"log/slog"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/examples/internal/ops"
	"github.com/etcdlock/etcdlock/promlock"
)

// grace is how long the job may take to return after this replica has lost the
// lead. Then the process is restarted, since it may act beside another leader.
const grace = 5 * time.Second

// serve is one replica as it runs in production. It campaigns, leads and answers
// health checks until ctx ends. Then it resigns, so that the next replica leads at
// once.
func serve(ctx context.Context) error {
	client, err := ops.Client()
	if err != nil {
		return err
	}
	defer client.Close()
	metrics, registry := promlock.New(), prometheus.NewRegistry()
	registry.MustRegister(metrics)
	locks := etcdlock.New(client, etcdlock.WithOwner(os.Getenv("POD_NAME")), etcdlock.WithLogger(slog.Default()),
		etcdlock.WithHooks(metrics.Hooks()))
	defer locks.Close()
	elector := locks.Elector("cron/nightly")

	// A replica that waits, or that etcd is away from, is alive. It is ready when it
	// has a session, so a rollout stops if etcd is not reached.
	live := func() error { return elector.Check(grace) }
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	served := make(chan error, 1)
	go func() { // until ctx ends
		defer cancel() // without its health checks, the replica ends too
		served <- ops.Serve(ctx, os.Getenv("LISTEN"), ops.Handler(live, locks.Ready, registry), time.Second)
	}()
	err = elector.Run(ctx, lead(time.Minute, func(_ context.Context, term *etcdlock.Held) error {
		log.Printf("the job is due, and done here: token %d", term.Token())
		return nil
	}))
	cancel()
	if errors.Is(err, context.Canceled) {
		err = nil // it was asked to end
	}
	return errors.Join(err, <-served)
}

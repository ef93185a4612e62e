package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
)

// serve is one replica in earnest: it campaigns, leads and answers health checks
// until ctx ends, then resigns, so that the next replica leads at once.
func serve(ctx context.Context) error {
	client, err := connect()
	if err != nil {
		return err
	}
	defer client.Close()
	locks := etcdlock.New(client, etcdlock.WithOwner(os.Getenv("POD_NAME")), etcdlock.WithLogger(slog.Default()))
	defer locks.Close()
	elector := locks.Elector("cron/nightly")

	// One check for both probes: it fails when a job goes on although this
	// replica has lost the lead, and only a restart helps. Who waits is well.
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		if err := elector.Check(5 * time.Second); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		_, _ = fmt.Fprintln(w, "leads:", elector.IsLeader())
	})
	server := &http.Server{Addr: os.Getenv("LISTEN"), Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	failed := make(chan error, 1)
	go func() { failed <- server.ListenAndServe() }() // until Shutdown
	defer func() {
		bounded, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = server.Shutdown(bounded)
	}()

	ctx, cancel := context.WithCancelCause(ctx)
	go func() { // until ListenAndServe returns
		if err := <-failed; !errors.Is(err, http.ErrServerClosed) {
			cancel(err)
		}
	}()
	err = elector.Run(ctx, lead(time.Minute, func(_ context.Context, term *etcdlock.Held) error {
		log.Printf("the job is due, and done here: token %d", term.Token())
		return nil
	}))
	if errors.Is(err, context.Canceled) && errors.Is(context.Cause(ctx), context.Canceled) {
		return nil // it was asked to end
	}
	return errors.Join(err, context.Cause(ctx))
}

// connect makes a client with the environment variables that etcdctl has.
func connect() (*clientv3.Client, error) {
	config := clientv3.Config{
		Endpoints:   strings.Split(os.Getenv("ETCDCTL_ENDPOINTS"), ","),
		Username:    os.Getenv("ETCDCTL_USER"),
		Password:    os.Getenv("ETCDCTL_PASSWORD"),
		DialTimeout: 5 * time.Second,
	}
	if file := os.Getenv("ETCDCTL_CACERT"); file != "" {
		ca, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		config.TLS = &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS12}
		if !config.TLS.RootCAs.AppendCertsFromPEM(ca) {
			return nil, fmt.Errorf("%s holds no certificate", file)
		}
	}
	if cert := os.Getenv("ETCDCTL_CERT"); cert != "" && config.TLS != nil {
		pair, err := tls.LoadX509KeyPair(cert, os.Getenv("ETCDCTL_KEY"))
		if err != nil {
			return nil, err
		}
		config.TLS.Certificates = []tls.Certificate{pair}
	}
	return clientv3.New(config)
}

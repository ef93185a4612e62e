package main

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/examples/internal/ops"
	"github.com/etcdlock/etcdlock/otellock"
	"github.com/etcdlock/etcdlock/promlock"
)

const (
	// patience is how long a request may wait for the lock of its account.
	patience = 2 * time.Second
	// grace is how long the statistics may go on after this replica has lost the lead.
	grace = 5 * time.Second
)

// A service keeps accounts in etcd. Any replica answers any request. Two requests for one account
// exclude each other by a lock of that account. One replica, the leader, makes statistics.
type service struct {
	etcd     *clientv3.Client
	locks    *etcdlock.Client
	elector  *etcdlock.Elector
	registry *prometheus.Registry
	log      *slog.Logger
}

// newService makes no request: it may start before etcd does. Its spans go to the global TracerProvider, which is
// that of the program, or none.
func newService(client *clientv3.Client, owner string, log *slog.Logger, opts ...etcdlock.Option) *service {
	metrics, registry := promlock.New(promlock.WithName(func(lock string) string {
		if lock == leadership {
			return lock
		}
		return "accounts/*" // not a time series for each account
	})), prometheus.NewRegistry()
	registry.MustRegister(metrics)
	locks := etcdlock.New(client, append(opts, etcdlock.WithOwner(owner), etcdlock.WithLogger(log),
		etcdlock.WithHooks(metrics.Hooks(), otellock.Hooks()))...)
	return &service{client, locks, locks.Elector(leadership), registry, log}
}

const leadership = "service/leader"

// run serves until ctx ends. Then requests that are under way are answered, this replica resigns, and
// its session is closed: nothing of it is in anybody's way any more.
func (s *service) run(ctx context.Context, addr string) error {
	defer func() {
		if err := s.locks.Close(); err != nil {
			s.log.Warn("what is left in etcd expires with its lease", "error", err)
		}
	}()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	led := make(chan error, 1)
	go func() { led <- s.elector.Run(ctx, s.lead) }() // until ctx ends, or etcd refuses
	served := make(chan error, 1)
	go func() { served <- ops.Serve(ctx, addr, s.handler(), patience+time.Second) }() // until ctx ends
	var err error
	select { // the first to end ends the other
	case err = <-led:
		cancel()
		err = errors.Join(ended(err), <-served)
	case err = <-served:
		cancel()
		err = errors.Join(err, ended(<-led))
	}
	return err
}

// ended is the error of Run, nil if it was only asked to end.
func ended(err error) error {
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

func (s *service) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /accounts/{account}/deposits", s.deposit)
	mux.Handle("/", ops.Handler(func() error { return s.elector.Check(grace) }, s.locks.Ready, s.registry))
	return mux
}

// deposit adds to an account. It reads and writes under the account's lock, and writes by a
// transaction of the hold: if the lock is lost in between, nothing is written.
func (s *service) deposit(w http.ResponseWriter, r *http.Request) {
	account := r.PathValue("account")
	amount, err := strconv.ParseInt(r.FormValue("amount"), 10, 64)
	if err != nil {
		http.Error(w, "amount is not a number", http.StatusBadRequest)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	defer cancel()
	var balance int64
	err = s.locks.Mutex("service/accounts/"+account).Do(ctx, func(ctx context.Context, h *etcdlock.Held) error {
		key := "service/balances/" + account
		got, err := s.etcd.Get(ctx, key)
		if err != nil {
			return err
		}
		for _, kv := range got.Kvs {
			if balance, err = strconv.ParseInt(string(kv.Value), 10, 64); err != nil {
				return err
			}
		}
		balance += amount
		_, err = h.Txn(ctx).Then(clientv3.OpPut(key, strconv.FormatInt(balance, 10))).Commit()
		return err
	})
	switch {
	case errors.Is(err, etcdlock.ErrInvalidName):
		http.Error(w, err.Error(), http.StatusBadRequest)
	case errors.Is(err, etcdlock.ErrOutcomeUnknown):
		// Asked before other errors: ctx's is in it too, and would say that nothing was done. A service that must not
		// repeat a deposit gives requests an ID, and keeps that beside the balance.
		s.log.Warn("deposit may have been made", "account", account, "error", err)
		http.Error(w, err.Error(), http.StatusGatewayTimeout)
	case err != nil:
		s.log.Warn("deposit failed", "account", account, "error", err)
		w.Header().Set("Retry-After", "1")
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	default:
		_ = json.NewEncoder(w).Encode(map[string]int64{"balance": balance})
	}
}

// lead counts the accounts, in one replica at a time.
func (s *service) lead(ctx context.Context, term *etcdlock.Held) error {
	due := time.NewTicker(100 * time.Millisecond)
	defer due.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-due.C:
			if err := s.count(ctx, term); err != nil && ctx.Err() == nil {
				s.log.Warn("statistics failed, they are made again when they are due", "error", err)
			}
		}
	}
}

func (s *service) count(ctx context.Context, term *etcdlock.Held) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	accounts, err := s.etcd.Get(ctx, "service/balances/", clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		return err
	}
	_, err = term.Txn(ctx).Then(clientv3.OpPut("service/statistics", strconv.FormatInt(accounts.Count, 10))).Commit()
	return err
}

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/etcdlock/etcdlock/bench/measure"
	"github.com/etcdlock/etcdlock/bench/peer"
	"github.com/etcdlock/etcdlock/bench/report"
	"github.com/etcdlock/etcdlock/bench/server"
)

// bench is a run of the benchmark.
type bench struct {
	rounds, used, most       int
	d, settle, window        time.Duration
	servers, quantity, peers *regexp.Regexp

	etcd   string // path of etcd's server
	round  int
	on     string // the servers that are running
	failed int
	result report.Run
}

// limit bounds a measurement that hangs.
const limit = 10 * time.Minute

// measureAll measures everything in each round, on newly started servers. A
// measurement that fails is recorded, and the run continues.
func (b *bench) measureAll(ctx context.Context, dir string) (err error) {
	b.result.Command = command()
	b.result.Started = time.Now().UTC().Truncate(time.Second)
	b.result.Machine, b.result.Versions = machine(), versions()
	if b.etcd, err = server.BuildEtcd(dir); err != nil {
		return err
	}
	for b.round = 1; b.round <= b.rounds; b.round++ {
		for _, s := range []struct {
			name    string
			measure func(context.Context) error
		}{
			{"embedded", b.onEmbedded},
			{"three", b.onThree},
			{"far", b.onFar},
			{"names, one", b.onNames(1, 0)},
			{"names, three", b.onNames(3, 0)},
			{"names, far", b.onNames(3, time.Millisecond/2)},
			{"names, away", b.onNames(3, 5*time.Millisecond)},
			{"scale", b.onScale},
		} {
			if !b.servers.MatchString(s.name) {
				continue
			}
			b.on = s.name
			if err := errors.Join(s.measure(ctx), ctx.Err()); err != nil {
				return fmt.Errorf("round %d on %s: %w", b.round, s.name, err)
			}
		}
	}
	b.result.Ended = time.Now().UTC().Truncate(time.Second)
	if b.failed > 0 {
		return fmt.Errorf("%d measurements failed", b.failed)
	}
	return nil
}

// command is what was called, without the place of the results.
func command() string {
	called := "go run ."
	flag.Visit(func(f *flag.Flag) {
		if f.Name != "out" {
			called += fmt.Sprintf(" -%s '%s'", f.Name, f.Value)
		}
	})
	return called
}

// each measures a quantity of each peer in turn.
func (b *bench) each(ctx context.Context, quantity string, peers []peer.Peer, f func(context.Context, peer.Peer) (measure.Values, error)) {
	for _, p := range peers {
		b.one(ctx, quantity, p.Name, func(ctx context.Context) (measure.Values, error) { return f(ctx, p) })
	}
}

func (b *bench) one(ctx context.Context, quantity, name string, f func(context.Context) (measure.Values, error)) {
	if !b.quantity.MatchString(quantity) || !b.peers.MatchString(name) || ctx.Err() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	v, err := f(ctx)
	b.note(quantity, name, v, err)
}

// together measures a quantity of all peers at once.
func (b *bench) together(ctx context.Context, quantity string, peers []peer.Peer, f func(context.Context, []peer.Peer) ([]measure.Values, error)) {
	var chosen []peer.Peer
	for _, p := range peers {
		if b.peers.MatchString(p.Name) {
			chosen = append(chosen, p)
		}
	}
	if !b.quantity.MatchString(quantity) || len(chosen) == 0 || ctx.Err() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	vs, err := f(ctx, chosen)
	for i, p := range chosen {
		if err != nil {
			b.note(quantity, p.Name, nil, err)
		} else {
			b.note(quantity, p.Name, vs[i], nil)
		}
	}
}

func (b *bench) note(quantity, name string, v measure.Values, err error) {
	r := report.Result{Round: b.round, Servers: b.on, Quantity: quantity, Peer: name, Values: v}
	if err != nil {
		r.Error = err.Error()
		b.failed++
	}
	b.result.Results = append(b.result.Results, r)
	fmt.Printf("%s round %d %-9s %-26s %-18s %s %s\n", time.Now().Format(time.TimeOnly), b.round, b.on, quantity, name, shorten(v), r.Error)
}

// shorten formats the values for the progress output.
func shorten(v measure.Values) string {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(v)) {
		fmt.Fprintf(&b, "%s %.4g  ", k, v[k])
	}
	return b.String()
}

package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/etcdlock/etcdlock/bench/measure"
	"github.com/etcdlock/etcdlock/bench/server"
)

// inOwnProcess measures what a lock costs in a process that does nothing else:
// it runs this program with cost as its first argument.
func inOwnProcess(ctx context.Context, etcd *server.Etcd, quantity, name string) (measure.Values, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, "cost", "-endpoints", strings.Join(etcd.Endpoints, ","), "-quantity", quantity, "-peer", name)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", cmd, err)
	}
	v := measure.Values{}
	return v, json.Unmarshal(out, &v)
}

func cost(args []string) (err error) {
	fs := flag.NewFlagSet("cost", flag.ExitOnError)
	endpoints := fs.String("endpoints", "", "of etcd")
	quantity := fs.String("quantity", "", "waiting or holding")
	name := fs.String("peer", "", "whose")
	if err := fs.Parse(args); err != nil {
		return err
	}
	etcd := &server.Etcd{Endpoints: strings.Split(*endpoints, ",")}
	clients, err := etcd.Connect(8)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, clients.Close()) }()
	for _, p := range locksOnEtcd(clients.Get) {
		if p.Name != *name {
			continue
		}
		var v measure.Values
		if *quantity == "waiting" {
			v, err = measure.Waiting(context.Background(), p, clients[0], 512)
		} else {
			v, err = measure.Holding(context.Background(), p, 10_000)
		}
		if err != nil {
			return err
		}
		return json.NewEncoder(os.Stdout).Encode(v)
	}
	return fmt.Errorf("no peer %q", *name)
}

package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/bench/measure"
	"github.com/etcdlock/etcdlock/bench/report"
	"github.com/etcdlock/etcdlock/bench/server"
)

// onScale measures what things cost at rest, each number of each kind on a new server
// and in a new process of this program, which is run with scale as its first argument.
func (b *bench) onScale(ctx context.Context) error {
	for _, k := range report.Kinds {
		for _, n := range k.Sizes {
			if n > b.most {
				continue
			}
			quantity := fmt.Sprintf("%s/%d", k.Name, n)
			b.one(ctx, quantity, "etcdlock", func(ctx context.Context) (measure.Values, error) {
				return b.inOwnProcess(ctx, k.Name, n, k.TTL)
			})
		}
	}
	return nil
}

func (b *bench) inOwnProcess(ctx context.Context, kind string, n int, ttl time.Duration) (v measure.Values, err error) {
	etcd, err := server.Processes(b.etcd, 1, nil)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, etcd.Close()) }()
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	longer := ttl / report.TTL
	cmd := exec.CommandContext(ctx, self, "scale", "-endpoints", strings.Join(etcd.Endpoints, ","), "-pid", strconv.Itoa(etcd.PIDs[0]),
		"-kind", kind, "-n", strconv.Itoa(n), "-ttl", ttl.String(),
		"-settle", (longer * b.settle).String(), "-window", (longer * b.window).String())
	out, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		text, _, _ := strings.Cut(string(exit.Stderr), "\n") // the first of perhaps many
		return nil, fmt.Errorf("%w: %s", err, text)
	} else if err != nil {
		return nil, err
	}
	return v, json.Unmarshal(out, &v)
}

// scale is the process that inOwnProcess runs.
func scale(args []string) (err error) {
	fs := flag.NewFlagSet("scale", flag.ExitOnError)
	endpoints := fs.String("endpoints", "", "of etcd")
	kind := fs.String("kind", "", "of the things")
	n := fs.Int("n", 0, "how many things")
	r := measure.Rest{Count: &measure.Counter{}}
	fs.IntVar(&r.PID, "pid", 0, "of etcd")
	fs.DurationVar(&r.TTL, "ttl", 10*time.Second, "of sessions")
	fs.DurationVar(&r.Settle, "settle", 0, "before the window")
	fs.DurationVar(&r.Window, "window", time.Second, "of the measurement")
	if err := fs.Parse(args); err != nil {
		return err
	}
	etcd := &server.Etcd{Endpoints: strings.Split(*endpoints, ",")}
	look, err := etcd.Connect(1)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, look.Close()) }()
	r.Look = look[0]
	r.Connect = func() (*clientv3.Client, error) {
		c, err := etcd.Connect(1, r.Count.Option())
		if err != nil {
			return nil, err
		}
		return c[0], nil
	}
	v, err := r.Scale(context.Background(), *kind, *n)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(v)
}

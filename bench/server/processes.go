package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/etcdlock/etcdlock/internal/test/loopback"
)

// BuildEtcd builds etcd's server into dir, from the version that the bench module
// requires. It must be called in the folder of that module.
func BuildEtcd(dir string) (path string, err error) {
	path = filepath.Join(dir, "etcd")
	out, err := exec.Command("go", "build", "-o", path, "go.etcd.io/etcd/server/v3").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build etcd (in the folder bench/?): %w: %s", err, out)
	}
	return path, nil
}

// Delays are the delays that the network adds to each message, in one direction.
type Delays struct{ Peer, Client *Delay }

// Processes starts n members, each a process of the etcd at path, with fsync and
// etcd's defaults. With delays, members and clients connect to them through proxies.
func Processes(path string, n int, delays *Delays) (*Etcd, error) {
	dir, err := os.MkdirTemp("", "etcdlock-bench-")
	if err != nil {
		return nil, err
	}
	var closers []func() error
	e := &Etcd{stop: func() error {
		var err error
		for i := len(closers) - 1; i >= 0; i-- {
			err = errors.Join(err, closers[i]())
		}
		return errors.Join(err, os.RemoveAll(dir))
	}}
	// through returns the address at which others reach addr.
	through := func(addr string, d *Delay) (string, error) {
		p, err := Proxy(addr, d)
		if err != nil {
			return "", err
		}
		closers = append(closers, p.Close)
		return p.Addr(), nil
	}
	addrs, err := loopback.FreeAddrs(2 * n)
	if err != nil {
		return nil, errors.Join(err, e.Close())
	}
	var initial, peers []string
	for i := range n {
		client, peer := addrs[2*i], addrs[2*i+1]
		if delays != nil {
			c, cerr := through(client, delays.Client)
			p, perr := through(peer, delays.Peer)
			if err := errors.Join(cerr, perr); err != nil {
				return nil, errors.Join(err, e.Close())
			}
			client, peer = c, p
		}
		e.Endpoints = append(e.Endpoints, "http://"+client)
		peers = append(peers, "http://"+peer)
		initial = append(initial, fmt.Sprintf("m%d=http://%s", i, peer))
	}
	for i := range n {
		pid, stop, err := start(filepath.Join(dir, fmt.Sprintf("m%d.log", i)), path,
			"--name", fmt.Sprintf("m%d", i),
			"--data-dir", filepath.Join(dir, fmt.Sprintf("m%d", i)),
			"--listen-client-urls", "http://"+addrs[2*i],
			"--advertise-client-urls", e.Endpoints[i],
			"--listen-peer-urls", "http://"+addrs[2*i+1],
			"--initial-advertise-peer-urls", peers[i],
			"--initial-cluster", strings.Join(initial, ","),
			"--log-level", "error")
		if err != nil {
			return nil, errors.Join(err, e.Close())
		}
		closers = append(closers, stop)
		e.PIDs = append(e.PIDs, pid)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := e.ready(ctx); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return e, nil
}

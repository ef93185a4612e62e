// Package server starts and stops the servers of the peers. All of them run on
// loopback and keep their data in temporary folders.
package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/etcdlock/etcdlock/etcdtest"
)

// Etcd is a running etcd cluster.
type Etcd struct {
	Endpoints []string
	PIDs      []int // of its processes; an embedded one has none of its own
	stop      func() error
}

// Embedded starts one member inside this process, with fsync.
func Embedded() (*Etcd, error) {
	c, err := etcdtest.New("", etcdtest.WithFsync())
	if err != nil {
		return nil, err
	}
	return &Etcd{Endpoints: c.Endpoints(), stop: func() error { c.Close(); return nil }}, nil
}

// Close stops the servers and removes their data.
func (e *Etcd) Close() error { return e.stop() }

// Leader returns the endpoint of the leader.
func (e *Etcd) Leader(ctx context.Context) (endpoint string, err error) {
	clients, err := e.Connect(1)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, clients.Close()) }()
	for _, endpoint := range e.Endpoints {
		st, err := clients[0].Status(ctx, endpoint)
		if err == nil && st.Leader == st.Header.MemberId {
			return endpoint, nil
		}
	}
	return "", errors.New("etcd has no leader")
}

// Clients are connections to an etcd.
type Clients []*clientv3.Client

// Connect opens n connections. Each uses all members in turn, which is the default
// of etcd's client.
func (e *Etcd) Connect(n int, opts ...grpc.DialOption) (Clients, error) {
	clients := make(Clients, n)
	for i := range clients {
		c, err := clientv3.New(clientv3.Config{Endpoints: e.Endpoints, Logger: zap.NewNop(), DialOptions: opts})
		if err != nil {
			return nil, errors.Join(fmt.Errorf("connect to etcd: %w", err), clients[:i].Close())
		}
		clients[i] = c
	}
	return clients, nil
}

// Get returns the connection of the i-th process.
func (c Clients) Get(i int) *clientv3.Client { return c[i%len(c)] }

// Close closes all connections.
func (c Clients) Close() (err error) {
	for _, client := range c {
		err = errors.Join(err, client.Close())
	}
	return err
}

// ready waits until every member answers a read that needs the quorum.
func (e *Etcd) ready(ctx context.Context) (err error) {
	for _, endpoint := range e.Endpoints {
		member := &Etcd{Endpoints: []string{endpoint}}
		clients, err := member.Connect(1)
		if err != nil {
			return err
		}
		for err = ctx.Err(); err == nil; err = ctx.Err() {
			try, cancel := context.WithTimeout(ctx, time.Second)
			_, gerr := clients[0].Get(try, "ready")
			cancel()
			if gerr == nil {
				break
			}
		}
		if err = errors.Join(err, clients.Close()); err != nil {
			return fmt.Errorf("etcd at %s does not answer: %w", endpoint, err)
		}
	}
	return nil
}

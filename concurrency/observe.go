// Who leads.

package concurrency

import (
	"context"
	"errors"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
)

// Leader reads the leader's key and value: the response has one key. It returns ErrElectionNoLeader if nobody leads.
// Keys below the name that are no entries lead nobody. It costs two reads.
func (e *Election) Leader(ctx context.Context) (*clientv3.GetResponse, error) {
	if e.s == nil {
		return nil, errNilSession
	}
	elector := e.s.looks.Elector(e.name)
	for {
		leader, err := elector.Leader(ctx)
		switch {
		case errors.Is(err, etcdlock.ErrElectionNoLeader):
			return nil, ErrElectionNoLeader
		case err != nil:
			return nil, plain(ctx, err)
		}
		got, err := e.s.Client().Get(ctx, leader.Key, clientv3.WithRange(leader.Key+"\x00")) // a range, which clientv3/leasing does not cache
		if err != nil {
			return nil, err
		}
		if len(got.Kvs) == 0 || got.Kvs[0].CreateRevision != leader.Token {
			continue // another one leads meanwhile
		}
		if got.Kvs[0].ModRevision == leader.ModRevision {
			got.Kvs[0].Value = []byte(leader.Value) // for an entry of package etcdlock this is less than the key's
		}
		return got, nil
	}
}

// Observe sends the leader's key and value as they are, and again whenever another one leads or the leader proclaims
// another value: the newest each time. The channel is closed when ctx ends, or when etcd refuses to be asked.
func (e *Election) Observe(ctx context.Context) <-chan *clientv3.GetResponse {
	ch := make(chan *clientv3.GetResponse)
	go e.observe(ctx, ch) // ends with ctx
	return ch
}

func (e *Election) observe(ctx context.Context, ch chan<- *clientv3.GetResponse) {
	defer close(ch)
	if e.s == nil {
		return
	}
	var last etcdlock.Entry
	for q, err := range e.s.looks.Watch(ctx, e.name) {
		if err != nil {
			return
		}
		leader, ok := leaderOf(q)
		if !ok || leader.Key == last.Key && leader.Token == last.Token && leader.ModRevision == last.ModRevision {
			continue
		}
		last = leader
		select {
		case ch <- response(q.Revision, leader):
		case <-ctx.Done():
			return
		}
	}
}

// leaderOf is the entry that leads. Readers of the name lead nobody.
func leaderOf(q etcdlock.Queue) (etcdlock.Entry, bool) {
	if len(q.Entries) == 0 || q.Entries[0].Read {
		return etcdlock.Entry{}, false
	}
	return q.Entries[0], true
}

// response is an entry as etcd's package has it.
func response(rev int64, e etcdlock.Entry) *clientv3.GetResponse {
	kv := &mvccpb.KeyValue{
		Key: []byte(e.Key), Value: []byte(e.Value), Lease: int64(e.Lease),
		CreateRevision: e.Token, ModRevision: e.ModRevision, Version: e.Version,
	}
	return &clientv3.GetResponse{Header: &pb.ResponseHeader{Revision: rev}, Kvs: []*mvccpb.KeyValue{kv}, Count: 1}
}

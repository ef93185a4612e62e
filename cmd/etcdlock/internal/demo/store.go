package demo

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/cmd/etcdlock/internal/connect"
)

const (
	connectTimeout = 5 * time.Second
	cleanTimeout   = 5 * time.Second
)

// A store is the demo's etcd, inside this process or elsewhere.
type store struct {
	client   *clientv3.Client
	etcd     connect.Config
	about    string // a line for people
	prefix   string // of all keys of this demo
	revision int64  // when the demo began

	launch Launch
	server Server // nil if etcd runs elsewhere
	dir    string // the data directory of server
}

// A Server is an etcd inside this process.
type Server interface {
	Endpoints() []string
	Close()
}

// Launch starts a Server that keeps its data in a directory, and syncs it. It is the caller's, so that the tests of this
// package need not link a server.
type Launch func(dir string) (Server, error)

// openStore connects to the etcd that etcd names, or else starts one.
func openStore(ctx context.Context, etcd connect.Config, launch Launch) (*store, error) {
	st := &store{etcd: etcd, launch: launch, prefix: fmt.Sprintf("etcdlock-demo/%08x/", rand.Uint32())}
	if err := st.open(ctx); err != nil {
		return nil, oneLine(err, st.shut())
	}
	return st, nil
}

func (st *store) open(ctx context.Context) (err error) {
	if len(st.etcd.Endpoints) == 0 {
		if err := st.start(); err != nil {
			return err
		}
	}
	var none *connect.Error
	st.client, err = st.etcd.Open(ctx)
	switch {
	case errors.As(err, &none) && none.Advice != "":
		return none
	case errors.As(err, &none):
		return fmt.Errorf("%s: start one there, or remove --endpoints and ETCDCTL_ENDPOINTS to run one inside this process", none.Why())
	case err != nil:
		return err
	}
	bounded, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	// A read of the demo's prefix also shows whether the user has the right.
	resp, err := st.client.Get(bounded, st.prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return fmt.Errorf("etcd at %s refuses to read below etcdlock-demo/: %w; remove --endpoints and ETCDCTL_ENDPOINTS to run one inside this process",
			st.etcd.At(), err)
	}
	st.revision = resp.Header.Revision
	st.about = st.describe(bounded)
	return nil
}

func (st *store) start() (err error) {
	if st.dir, err = os.MkdirTemp("", "etcdlock-demo-"); err != nil {
		return fmt.Errorf("no directory for etcd's data: %w; set TMPDIR to a directory that can be written", err)
	}
	server, err := st.launch(st.dir)
	if err != nil {
		return fmt.Errorf("can't run etcd in this process: %w; --endpoints uses a running one", err)
	}
	st.server = server
	st.etcd = connect.Config{Endpoints: server.Endpoints(), DialTimeout: connectTimeout} // no TLS, no users
	return nil
}

func (st *store) describe(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	version := "etcd"
	if s, err := st.client.Status(ctx, st.etcd.Endpoints[0]); err == nil { // only the title needs it
		version += " " + s.Version
	}
	if st.server != nil {
		return version + " inside this process, with fsync; data in " + st.dir
	}
	return version + " at " + st.etcd.At() + "; keys below " + st.prefix
}

// paths are the prefixes of one of the demo's locks.
func (st *store) paths(name string) lockPaths {
	return lockPaths{Name: st.prefix + name, Data: st.prefix + "data/" + name}
}

// watch delivers all events below the prefix, in etcd's order. The watch is open when
// it returns.
func (st *store) watch(ctx context.Context) (clientv3.WatchChan, error) {
	wch := st.client.Watch(ctx, st.prefix, clientv3.WithPrefix(), clientv3.WithCreatedNotify())
	select {
	case wr, ok := <-wch:
		if !ok || wr.Err() != nil {
			return nil, fmt.Errorf("watch etcd: %w", errors.Join(wr.Err(), ctx.Err()))
		}
		return wch, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// marker is the last key that the demo writes.
func (st *store) marker() string { return st.prefix + "data/end" }

func (st *store) mark(ctx context.Context) (revision int64, err error) {
	resp, err := st.client.Put(ctx, st.marker(), "")
	if err != nil {
		return 0, fmt.Errorf("write to etcd: %w", err)
	}
	return resp.Header.Revision, nil
}

// final reads all keys of a lock and its data.
func (st *store) final(ctx context.Context, p lockPaths) (f finalState, err error) {
	f.sections = make(map[int64]sectionValue)
	resp, err := st.client.Txn(ctx).Then(
		clientv3.OpGet(p.Name+"/", clientv3.WithPrefix()),
		clientv3.OpGet(p.counter()),
		clientv3.OpGet(p.sections(), clientv3.WithPrefix()),
	).Commit()
	if err != nil {
		return f, fmt.Errorf("read from etcd: %w", err)
	}
	for _, kv := range resp.Responses[0].GetResponseRange().Kvs {
		f.entries = append(f.entries, string(kv.Key))
	}
	c, err := parseCounter(resp.Responses[1].GetResponseRange().Kvs)
	if err != nil {
		return f, err
	}
	f.counter = c.N
	for _, kv := range resp.Responses[2].GetResponseRange().Kvs {
		token, v, err := parseSection(p, kv)
		if err != nil {
			return f, err
		}
		f.sections[token] = v
	}
	return f, nil
}

// leaseGone reports whether a lease does not exist any more.
func (st *store) leaseGone(ctx context.Context, id clientv3.LeaseID) (bool, error) {
	resp, err := st.client.TimeToLive(ctx, id)
	if err != nil {
		return false, fmt.Errorf("ask etcd about a lease: %w", err)
	}
	return resp.TTL < 0, nil
}

// clean removes everything that the demo and its workers have left in etcd. The workers
// must have ended. Some of their requests may still be under way: without their
// leases these can't write entries, and without entries they can't write anything
// else.
func (st *store) clean(ctx context.Context, leases []clientv3.LeaseID) error {
	if st.server != nil {
		return nil // shut removes all of it
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTimeout)
	defer cancel()
	for _, id := range leases {
		_, _ = st.client.Revoke(ctx, id) // it is mostly revoked already; if not, it ends in seconds
	}
	if _, err := st.client.Delete(ctx, st.prefix, clientv3.WithPrefix()); err != nil {
		return fmt.Errorf("keys are left in etcd: %w; remove them with: etcdctl del --prefix %s", err, st.prefix)
	}
	return nil
}

// shut closes the connection, and stops the etcd inside this process.
func (st *store) shut() error {
	if st.client != nil {
		_ = st.client.Close() // the process ends anyway
	}
	if st.server != nil {
		st.server.Close()
	}
	if st.dir == "" {
		return nil
	}
	if err := os.RemoveAll(st.dir); err != nil {
		return fmt.Errorf("the directory of etcd's data is left: %w", err)
	}
	return nil
}

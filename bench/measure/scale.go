package measure

import (
	"context"
	"errors"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
)

// Rest is a measurement of what a number of things of etcdlock costs while nothing
// happens: no lock is taken or released.
type Rest struct {
	Connect        func() (*clientv3.Client, error) // its clients count with Count
	Count          *Counter
	Look           *clientv3.Client // does not count
	PID            int              // of etcd's server, another process
	TTL            time.Duration    // of the sessions
	Settle, Window time.Duration    // at rest, before the measurement and for it

	memory  Values    // of this process without what is counted
	began   time.Time // to set up what is counted
	clients []*clientv3.Client
	opened  []*etcdlock.Session
	holds   []*etcdlock.Held // as a caller keeps them
	ended   chan error       // receives from waits that end
}

// Scale is what n things of a kind cost at rest: messages and processor time a second,
// of this process and of etcd's, and memory of this process, which should do nothing
// else, and of etcd's.
func (r *Rest) Scale(ctx context.Context, what string, n int) (v Values, err error) {
	set, ok := stages[what]
	if !ok {
		return nil, fmt.Errorf("no kind %q", what)
	}
	ctx, cancel := context.WithCancel(ctx)
	r.ended = make(chan error, n)
	defer func() {
		cancel()
		err = errors.Join(err, r.close())
	}()
	stored, err := r.stored(ctx)
	if err != nil {
		return nil, err
	}
	r.begin()
	name := newName()
	keys, err := set(ctx, r, name, n)
	if err == nil {
		err = queued(ctx, r.Look, name, keys)
	}
	if err != nil {
		return nil, fmt.Errorf("set up: %w", err)
	}
	took := time.Since(r.began)
	sleep(ctx, r.Settle)

	before, start := r.used(), time.Now()
	select {
	case err := <-r.ended:
		return nil, fmt.Errorf("a wait has ended: %w", err)
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(r.Window):
	}
	v = r.used().per(before, time.Since(start).Seconds())
	if err := r.lost(ctx, name, keys); err != nil {
		return nil, err
	}
	per := float64(max(n, 1))
	for k, bytes := range measureMemory().per(r.memory, per) {
		v[k] = bytes
	}
	after, err := r.stored(ctx)
	if err != nil {
		return nil, err
	}
	for k, bytes := range after.per(stored, per) {
		v[k] = bytes
	}
	v["sessions"], v["set_up_us"] = float64(len(r.opened)), micros(took)
	cancel()
	start = time.Now()
	err = r.close()
	v["close_us"] = micros(time.Since(start))
	return v, err
}

// begin is called before what is counted is set up; a stage that sets up other things
// first calls it again.
func (r *Rest) begin() { r.memory, r.began = measureMemory(), time.Now() }

// used is what was used so far: messages, and seconds of processor time.
func (r *Rest) used() Values {
	v := r.Count.count()
	v["client_cpu"], v["etcd_cpu"] = processorTime().Seconds(), processorTimeOf(r.PID)
	return v
}

// stored is what etcd has in its file and in memory.
func (r *Rest) stored(ctx context.Context) (Values, error) {
	st, err := r.Look.Status(ctx, r.Look.Endpoints()[0])
	if err != nil {
		return nil, err
	}
	return Values{"etcd_file_bytes": float64(st.DbSizeInUse), "etcd_memory_bytes": residentOf(r.PID)}, nil
}

// lost says whether a session or an entry was lost: then the measurement is void.
func (r *Rest) lost(ctx context.Context, name string, keys int) error {
	for _, s := range r.opened {
		if err := s.Err(); err != nil {
			return err
		}
	}
	left, err := entries(ctx, r.Look, name)
	if err == nil && left != keys {
		err = fmt.Errorf("etcd has %d of %d keys", left, keys)
	}
	return err
}

// close closes all sessions and clients. It can be called twice.
func (r *Rest) close() error {
	err := each(len(r.opened), func(i int) error { return r.opened[i].Close() })
	for _, c := range r.clients {
		err = errors.Join(err, c.Close())
	}
	r.opened, r.clients = nil, nil
	return err
}

// sessions opens n sessions, each on a connection of its own.
func (r *Rest) sessions(ctx context.Context, n int) ([]*etcdlock.Session, error) {
	ss := make([]*etcdlock.Session, n)
	clients := make([]*clientv3.Client, n)
	err := each(n, func(i int) (err error) {
		if clients[i], err = r.Connect(); err == nil {
			ss[i], err = etcdlock.NewSession(ctx, clients[i], etcdlock.WithTTL(r.TTL))
		}
		return err
	})
	for i := range n {
		if clients[i] != nil {
			r.clients = append(r.clients, clients[i])
		}
		if ss[i] != nil {
			r.opened = append(r.opened, ss[i])
		}
	}
	return ss, err
}

package measure

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/etcdlock/etcdlock"
)

// A stage sets up n things and leaves them at rest. It returns the number of keys that
// etcd is to have below name. What it has started ends with ctx.
type stage func(ctx context.Context, r *Rest, name string, n int) (keys int, err error)

var stages = map[string]stage{
	"idle":    func(context.Context, *Rest, string, int) (int, error) { return 0, nil },
	"waiters": waiters,
	"held": func(ctx context.Context, r *Rest, name string, n int) (int, error) {
		return n, r.hold(ctx, name, n, false)
	},
	"watched": func(ctx context.Context, r *Rest, name string, n int) (int, error) {
		return n, r.hold(ctx, name, n, true)
	},
	"names":      names,
	"sessions":   holders,
	"sessions60": holders, // with a longer TTL
}

// waiters of 8 sessions wait for one lock, which a ninth session holds.
func waiters(ctx context.Context, r *Rest, name string, n int) (int, error) {
	ss, err := r.sessions(ctx, 9)
	if err != nil {
		return 0, err
	}
	if _, err := etcdlock.NewMutex(ss[8], name).Lock(ctx); err != nil {
		return 0, err
	}
	var locks []*etcdlock.Mutex
	for i := range n {
		locks = append(locks, etcdlock.NewMutex(ss[i%8], name))
	}
	return n + 1, r.wait(ctx, name, 1, locks)
}

// hold has one session hold n locks. A hold is watched from the first use of its Done.
func (r *Rest) hold(ctx context.Context, name string, n int, watched bool) error {
	r.holds = make([]*etcdlock.Held, n)
	ss, err := r.sessions(ctx, 1)
	if err != nil {
		return err
	}
	locks := mutexes(ss[0], name, n)
	r.begin()
	return each(n, func(i int) (err error) {
		r.holds[i], err = locks[i].Lock(ctx)
		if err == nil && watched {
			r.holds[i].Done()
		}
		return err
	})
}

// names are locks that one session holds while another session waits for each.
func names(ctx context.Context, r *Rest, name string, n int) (int, error) {
	if err := r.hold(ctx, name, n, false); err != nil {
		return 0, err
	}
	ss, err := r.sessions(ctx, 1)
	if err != nil {
		return 0, err
	}
	return 2 * n, r.wait(ctx, name, n, mutexes(ss[0], name, n))
}

// holders are n sessions that each have a connection and hold a lock.
func holders(ctx context.Context, r *Rest, name string, n int) (int, error) {
	ss, err := r.sessions(ctx, n)
	if err != nil {
		return 0, err
	}
	return n, each(n, func(i int) error {
		_, err := etcdlock.NewMutex(ss[i], fmt.Sprintf("%s/%d", name, i)).Lock(ctx)
		return err
	})
}

// wait has a goroutine wait for each of the locks, and returns when etcd has all their
// entries below name, where it has some already. Only a few arrive at a time.
func (r *Rest) wait(ctx context.Context, name string, there int, locks []*etcdlock.Mutex) error {
	r.begin()
	for i, m := range locks {
		go func() { // ends with ctx
			if _, err := m.Lock(ctx); ctx.Err() == nil {
				r.ended <- cmp.Or(err, errors.New("the lock was granted"))
			}
		}()
		if (i+1)%64 == 0 {
			if err := queued(ctx, r.Look, name, there+i+1); err != nil {
				return err
			}
		}
	}
	return nil
}

// mutexes returns handles on n locks below name.
func mutexes(s *etcdlock.Session, name string, n int) []*etcdlock.Mutex {
	locks := make([]*etcdlock.Mutex, n)
	for i := range locks {
		locks[i] = etcdlock.NewMutex(s, fmt.Sprintf("%s/%d", name, i))
	}
	return locks
}

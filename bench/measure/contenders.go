package measure

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/etcdlock/etcdlock/bench/peer"
)

// Contenders are those who want a lock: some processes with some goroutines each. A
// process has one connection to the server.
type Contenders struct{ Processes, Goroutines int }

// String is such as 8x16: 8 processes with 16 goroutines each.
func (c Contenders) String() string { return fmt.Sprintf("%dx%d", c.Processes, c.Goroutines) }

// Total is the number of goroutines of all processes.
func (c Contenders) Total() int { return c.Processes * c.Goroutines }

// Sessions are those of a peer's contenders.
type Sessions struct {
	Of    []peer.Session // of each contender; the goroutines of a process may share one
	Close func() error
}

// Open opens as many sessions as the peer needs: one for each process or, if the
// peer's session serves only one contender, one for each goroutine.
func Open(ctx context.Context, p peer.Peer, c Contenders) (*Sessions, error) {
	per := c.Goroutines // contenders that share a session
	if p.OneEach {
		per = 1
	}
	opened := make([]peer.Session, c.Total()/per)
	err := each(len(opened), func(i int) (err error) {
		opened[i], err = p.Open(ctx, i*per/c.Goroutines)
		return err
	})
	s := &Sessions{Close: func() error {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		return each(len(opened), func(i int) error {
			if opened[i] == nil {
				return nil
			}
			return opened[i].Close(ctx)
		})
	}}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open sessions: %w", err), s.Close())
	}
	for i := range c.Total() {
		s.Of = append(s.Of, opened[i/per])
	}
	return s, nil
}

// mutexes returns a handle on the lock of that name for each contender.
func (s *Sessions) mutexes(name string) []peer.Locker {
	lockers := make([]peer.Locker, len(s.Of))
	for i, session := range s.Of {
		lockers[i] = session.Mutex(name)
	}
	return lockers
}

func (s *Sessions) rwMutexes(name string) []peer.RWLocker {
	lockers := make([]peer.RWLocker, len(s.Of))
	for i, session := range s.Of {
		lockers[i] = session.(peer.RWSession).RWMutex(name)
	}
	return lockers
}

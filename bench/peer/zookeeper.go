package peer

import (
	"context"
	"fmt"
	"time"

	"github.com/go-zookeeper/zk"
)

// ZooKeeper is the Lock of go-zookeeper/zk, in which each session is a connection.
func ZooKeeper(addr string) Peer {
	return Peer{"zookeeper", false, func(ctx context.Context, _ int) (Session, error) {
		conn, events, err := zk.Connect([]string{addr}, ttl*time.Second, zk.WithLogInfo(false), zk.WithLogger(silent{}))
		if err != nil {
			return nil, err
		}
		for {
			select {
			case e := <-events:
				if e.State == zk.StateHasSession {
					return newZookeeperSession(conn), nil
				}
			case <-ctx.Done():
				conn.Close()
				return nil, fmt.Errorf("connect to ZooKeeper: %w", ctx.Err())
			}
		}
	}}
}

type zookeeperSession struct {
	conn *zk.Conn
	end  context.CancelFunc
	over context.Context
}

func newZookeeperSession(conn *zk.Conn) *zookeeperSession {
	s := &zookeeperSession{conn: conn}
	s.over, s.end = context.WithCancel(context.Background())
	return s
}

func (s *zookeeperSession) Mutex(name string) Locker {
	return &zookeeperLock{s, zk.NewLock(s.conn, name, zk.WorldACL(zk.PermAll))}
}

func (s *zookeeperSession) Close(context.Context) error {
	s.end()
	s.conn.Close()
	return nil
}

type zookeeperLock struct {
	*zookeeperSession
	lock *zk.Lock
}

// Lock can be interrupted only by closing the session, which loses all its locks.
func (l *zookeeperLock) Lock(ctx context.Context) error {
	defer context.AfterFunc(ctx, func() { _ = l.Close(ctx) })() // is always nil
	return l.unlessOver(l.lock.Lock)
}

func (l *zookeeperLock) Unlock(context.Context) error { return l.unlessOver(l.lock.Unlock) }

// unlessOver does not wait for a request when the session is over: go-zookeeper never
// answers one that was just about to be sent when its connection was closed.
func (l *zookeeperLock) unlessOver(request func() error) error {
	done := make(chan error, 1)
	go func() { done <- request() }()
	select {
	case err := <-done:
		return err
	case <-l.over.Done():
		return l.over.Err()
	}
}

type silent struct{}

func (silent) Printf(string, ...any) {}

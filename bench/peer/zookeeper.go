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
					return zookeeperSession{conn}, nil
				}
			case <-ctx.Done():
				conn.Close()
				return nil, fmt.Errorf("connect to ZooKeeper: %w", ctx.Err())
			}
		}
	}}
}

type zookeeperSession struct{ conn *zk.Conn }

func (s zookeeperSession) Mutex(name string) Locker {
	return &zookeeperLock{s.conn, zk.NewLock(s.conn, name, zk.WorldACL(zk.PermAll))}
}

func (s zookeeperSession) Close(context.Context) error {
	s.conn.Close()
	return nil
}

type zookeeperLock struct {
	conn *zk.Conn
	lock *zk.Lock
}

// Lock can be interrupted only by closing the session, which loses all its locks.
func (l *zookeeperLock) Lock(ctx context.Context) error {
	defer context.AfterFunc(ctx, l.conn.Close)()
	return l.lock.Lock()
}

func (l *zookeeperLock) Unlock(context.Context) error { return l.lock.Unlock() }

type silent struct{}

func (silent) Printf(string, ...any) {}

package etcdtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
)

const (
	// leaderPoll is the interval at which Leader asks the members.
	leaderPoll = 5 * time.Millisecond

	// transferTimeout is how long MoveLeader waits before it asks again. Raft abandons
	// a transfer after an election timeout and does not report that.
	transferTimeout = 2 * time.Second
)

// Leader waits until a majority of the members agrees on a leader, and returns it. An
// isolated member does not count as the leader, even while it still believes that it is.
// After [Cluster.Close], Leader, MoveLeader and Compact fail.
func (c *Cluster) Leader(ctx context.Context) (*Member, error) {
	if slices.ContainsFunc(c.members, func(m *Member) bool { return m.config == nil }) {
		return nil, errAttached
	}
	tick := time.NewTicker(leaderPoll)
	defer tick.Stop()
	for {
		if c.closed.Load() {
			return nil, fmt.Errorf("etcdtest: no leader: %w", errClosed)
		}
		if m := c.leader(); m != nil {
			return m, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, fmt.Errorf("etcdtest: no leader: %w", ctx.Err())
		}
	}
}

func (c *Cluster) leader() *Member {
	c.mu.Lock()
	defer c.mu.Unlock()
	votes := map[types.ID]int{}
	byID := map[types.ID]*Member{}
	for _, m := range c.members {
		if e := m.Etcd(); e != nil && !m.isolated {
			byID[e.Server.MemberID()] = m
			votes[e.Server.Leader()]++
		}
	}
	for id, n := range votes {
		if n > len(c.members)/2 {
			// This is nil when the majority has no leader (the ID is 0), or has not
			// noticed yet that its leader was stopped or isolated.
			return byID[id]
		}
	}
	return nil
}

// MoveLeader makes the i-th member the leader, and waits until a majority agrees.
func (c *Cluster) MoveLeader(ctx context.Context, i int) error {
	tick := time.NewTicker(leaderPoll)
	defer tick.Stop()
	for ; ; <-tick.C {
		from, err := c.Leader(ctx)
		if err != nil {
			return err
		}
		to := c.members[i]
		if from == to {
			return nil
		}
		source, target := from.Etcd(), to.Etcd()
		if target == nil {
			return fmt.Errorf("etcdtest: move leader: %s: stopped", to.config.Name)
		}
		if source == nil {
			continue // the leader was stopped: wait for the next one
		}
		tctx, cancel := context.WithTimeout(ctx, transferTimeout)
		err = source.Server.MoveLeader(tctx, uint64(source.Server.MemberID()), uint64(target.Server.MemberID()))
		cancel()
		if err != nil && ctx.Err() != nil {
			return fmt.Errorf("etcdtest: move leader: %w", ctx.Err())
		}
		// Any other error is ignored: the next iteration asks the members again.
	}
}

// Compact compacts the history up to the newest revision, and returns that revision. A
// watch from any lower revision is then refused. It is no error if there is nothing to
// compact.
func (c *Cluster) Compact(ctx context.Context) (int64, error) {
	leader, err := c.Leader(ctx)
	if err != nil {
		return 0, err
	}
	e := leader.Etcd()
	if e == nil {
		return 0, fmt.Errorf("etcdtest: compact: %s: stopped", leader.config.Name)
	}
	rev := e.Server.KV().Rev()
	if _, err := e.Server.Compact(ctx, &pb.CompactionRequest{Revision: rev, Physical: true}); err != nil && !errors.Is(err, mvcc.ErrCompacted) {
		return 0, fmt.Errorf("etcdtest: compact: %w", err)
	}
	return rev, nil
}

func (c *Cluster) setIsolated(m *Member, isolated bool) {
	if m.config == nil {
		panic(errAttached)
	}
	c.mu.Lock()
	m.isolated = isolated
	c.mu.Unlock()
	c.applyIsolation()
}

// applyIsolation cuts or restores each connection between two members. Each end has its
// own setting, and a server loses its settings when it stops.
func (c *Cluster) applyIsolation() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, a := range c.members {
		for _, b := range c.members {
			from, to := a.Etcd(), b.Etcd()
			if a == b || from == nil || to == nil {
				continue
			}
			if a.isolated || b.isolated {
				from.Server.CutPeer(to.Server.MemberID())
			} else {
				from.Server.MendPeer(to.Server.MemberID())
			}
		}
	}
}

package operations

import (
	"context"
	"flag"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/deploy/internal/etcdctl"
	"github.com/etcdlock/etcdlock/etcdtest"
)

const hang = 5 * time.Minute

var cycles = flag.Int("cycles", 5000, "how many cycles of Lock and Unlock TestGrowth measures")

func TestMain(m *testing.M) {
	etcdctl.Main()
	os.Exit(m.Run())
}

func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	t.Cleanup(cancel)
	return ctx
}

// A server is an etcd of one member, a client of it and a session.
type server struct {
	cluster *etcdtest.Cluster
	client  *clientv3.Client
	session *etcdlock.Session
}

func start(t *testing.T, configure func(*embed.Config)) server {
	t.Helper()
	cluster := etcdtest.Start(t, etcdtest.WithConfig(configure))
	client := cluster.Client(t)
	session, err := etcdlock.NewSession(bounded(t), client, etcdlock.WithOwner("web-6d5f9c7b4-x2k8p report[4242]"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = session.Close() })
	return server{cluster, client, session}
}

// size is that of the backend: the file, and what of it is in use.
func (s server) size(t *testing.T) (file, inUse int64) {
	t.Helper()
	status, err := s.client.Status(bounded(t), s.cluster.Endpoints()[0])
	require.NoError(t, err)
	return status.DbSize, status.DbSizeInUse
}

func (s server) compact(t *testing.T) {
	t.Helper()
	resp, err := s.client.Get(bounded(t), "x")
	require.NoError(t, err)
	_, err = s.client.Compact(bounded(t), resp.Header.Revision, clientv3.WithCompactPhysical())
	require.NoError(t, err)
}

type lockFunc = func(context.Context) (*etcdlock.Held, error)

// lockAndUnlock does both n times.
func lockAndUnlock(ctx context.Context, lock lockFunc, n int) error {
	for range n {
		h, err := lock(ctx)
		if err != nil {
			return err
		}
		if err := h.Unlock(ctx); err != nil {
			return err
		}
	}
	return nil
}

// A cycle adds some 280 bytes to etcd's backend until the next compaction. (With
// -cycles, measured over more.)
func TestGrowth(t *testing.T) {
	for _, c := range []struct {
		name     string
		lock     func(*etcdlock.RWMutex) lockFunc
		from, to float64 // bytes a cycle
	}{
		{"Mutex", nil, 200, 400},
		{"write lock", func(m *etcdlock.RWMutex) lockFunc { return m.Lock }, 400, 800},
		{"read lock", func(m *etcdlock.RWMutex) lockFunc { return m.RLock }, 200, 400},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := start(t, func(*embed.Config) {})
			lock := etcdlock.NewMutex(s.session, "jobs/report").Lock
			if c.lock != nil {
				lock = c.lock(etcdlock.NewRWMutex(s.session, "jobs/report"))
			}
			require.NoError(t, lockAndUnlock(bounded(t), lock, 1000)) // the first pages
			_, before := s.size(t)
			began := time.Now()
			require.NoError(t, lockAndUnlock(bounded(t), lock, *cycles))
			_, after := s.size(t)
			each := float64(after-before) / float64(*cycles)
			t.Logf("%.0f bytes a cycle, over %d cycles in %v; at 350 a second 2 GiB are full after %v",
				each, *cycles, time.Since(began).Round(time.Millisecond), (time.Duration(float64(2<<30)/(each*350)) * time.Second).Round(time.Minute))
			require.Greater(t, each, c.from)
			require.Less(t, each, c.to)

			// Compaction frees the pages for what comes next, though the file keeps
			// its size until it is defragmented.
			s.compact(t)
			full, inUse := s.size(t)
			t.Logf("in use: %d before compaction, %d after; file: %d", after, inUse, full)
			require.Less(t, inUse, after/4)
			for range 3 {
				require.NoError(t, lockAndUnlock(bounded(t), lock, *cycles/2))
				s.compact(t)
			}
			again, _ := s.size(t)
			t.Logf("file after as many cycles and a half again, compacted each half: %d", again)
			require.LessOrEqual(t, again, full)
		})
	}
}

// With auto-compaction the backend stops growing by itself.
func TestGrowth_AutoCompaction(t *testing.T) {
	t.Parallel()
	s := start(t, func(c *embed.Config) { c.AutoCompactionMode, c.AutoCompactionRetention = "periodic", "1s" })
	n, lock := 0, etcdlock.NewMutex(s.session, "jobs/report").Lock
	// What is in use at a time depends on the cycles a second, not on n. So a slow machine needs fewer.
	for began := time.Now(); n < 50_000 && time.Since(began) < time.Minute; n += 1000 {
		require.NoError(t, lockAndUnlock(bounded(t), lock, 1000))
	}
	_, inUse := s.size(t)
	t.Logf("in use: %d after %d cycles", inUse, n)
	require.Less(t, inUse, int64(n*200/2), "half of what it is at least without")
}

// What docs/operations.md says to do about a full etcd, with etcdctl, is enough: the
// commands of its section are run.
func TestNoSpace(t *testing.T) {
	t.Parallel()
	s := start(t, func(c *embed.Config) { c.QuotaBackendBytes = 8 << 20 })
	lock := etcdlock.NewMutex(s.session, "jobs/report").Lock
	waiting := etcdlock.NewMutex(s.session, "jobs/held")
	held, err := waiting.Lock(bounded(t))
	require.NoError(t, err)
	err = lockAndUnlock(bounded(t), lock, 1<<20)
	require.ErrorIs(t, err, rpctypes.ErrNoSpace)
	t.Log(err)

	// What is held stays held: leases are renewed, and a lock can be released.
	require.NoError(t, s.session.Refresh(bounded(t)))
	require.NoError(t, held.Check(bounded(t)))
	require.NoError(t, held.Unlock(bounded(t)))
	_, err = etcdlock.NewSession(bounded(t), s.client)
	require.ErrorIs(t, err, rpctypes.ErrNoSpace, "no new session")

	doc, err := os.ReadFile("../../docs/operations.md")
	require.NoError(t, err)
	_, section, ok := strings.Cut(string(doc), "### Etcd is full\n")
	require.True(t, ok)
	script := regexp.MustCompile("(?s)```\n(.*?)```").FindStringSubmatch(section)
	require.NotNil(t, script)
	cmd := exec.CommandContext(bounded(t), "sh", "-euc", script[1])
	cmd.Env = append(os.Environ(), "PATH="+etcdctl.Path(t), "ETCDCTL_ENDPOINTS="+s.cluster.Endpoints()[0])
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	require.NoError(t, err)
	require.NoError(t, lockAndUnlock(bounded(t), lock, 100))
	file, _ := s.size(t)
	require.Less(t, file, int64(4<<20))
	require.NoError(t, s.session.Err(), "the session has lived through it")
}

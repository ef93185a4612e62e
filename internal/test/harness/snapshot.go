package harness

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.uber.org/zap"

	"github.com/etcdlock/etcdlock/etcdtest"
)

// Snapshot returns a function that restores the cluster's only member to this moment.
// bump is by how much it raises the revision, like
// `etcdutl snapshot restore --bump-revision --mark-compacted`.
func Snapshot(t testing.TB, own *etcdtest.Cluster) (restore func(bump uint64)) {
	t.Helper()
	snap, err := own.Client(t).Snapshot(Ctx(t))
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "snapshot")
	out, err := os.Create(file)
	require.NoError(t, err)
	_, err = io.Copy(out, snap)
	require.NoError(t, errors.Join(err, snap.Close(), out.Close()))
	return func(bump uint64) {
		t.Helper()
		m := own.Member(0)
		cfg := m.Etcd().Config()
		m.Kill()
		require.NoError(t, os.RemoveAll(cfg.Dir))
		require.NoError(t, snapshot.NewV3(zap.NewNop()).Restore(snapshot.RestoreConfig{
			SnapshotPath: file, Name: cfg.Name, OutputDataDir: cfg.Dir,
			PeerURLs: []string{cfg.AdvertisePeerUrls[0].String()}, InitialCluster: cfg.InitialCluster, InitialClusterToken: cfg.InitialClusterToken,
			RevisionBump: bump, MarkCompacted: bump > 0,
		}))
		require.NoError(t, m.Restart(Ctx(t)))
	}
}

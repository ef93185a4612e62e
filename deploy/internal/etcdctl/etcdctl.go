// Package etcdctl lets a test run etcdctl without installing it: the test binary
// becomes etcdctl when it is started under that name.
package etcdctl

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/etcdctl/v3/ctlv3"
)

// Main runs etcdctl, and does not return, if the process was started as etcdctl. Call
// it first in TestMain.
func Main() {
	if filepath.Base(os.Args[0]) == "etcdctl" {
		ctlv3.MustStart()
		os.Exit(0)
	}
}

// Path puts an etcdctl into a directory, and returns PATH with that directory first.
func Path(t testing.TB) string {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	dir := t.TempDir()
	require.NoError(t, os.Symlink(self, filepath.Join(dir, "etcdctl")))
	return dir + string(os.PathListSeparator) + os.Getenv("PATH")
}

//go:build unix

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/etcdlock/etcdlock/internal/test/loopback"
)

// A build is an etcd server that was built here or taken from a package.
type build struct {
	name string // includes the version
	from string // where it comes from, for people
	file string
}

// obtain resolves server to a build and puts it into the cache folder, unless it is there.
// It may create dir for temporary files.
func obtain(ctx context.Context, server, dir string) (build, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return build{}, err
	}
	cache = filepath.Join(cache, "etcdlock-compat")
	for _, d := range []string{cache, dir} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return build{}, err
		}
	}
	find := fromModule
	if server == "debian" {
		find = fromDebian
	}
	b, make, err := find(ctx, server, dir)
	if err != nil {
		return build{}, err
	}
	b.file = filepath.Join(cache, b.name)
	if _, err := os.Stat(b.file); err == nil {
		return b, nil
	}
	made, err := make()
	if err != nil {
		return build{}, err
	}
	// Copy the file, because dir may be on another file system. Then rename the copy, so
	// that the cache never contains an incomplete file.
	binary, err := os.ReadFile(made)
	if err == nil {
		err = os.WriteFile(b.file+".new", binary, 0o755)
	}
	if err == nil {
		err = os.Rename(b.file+".new", b.file)
	}
	return b, err
}

// fromModule builds a version, or the newest patch of a minor version, in a temporary
// module. So the server's dependencies have the versions that the server requires, and not
// those that this module requires.
func fromModule(ctx context.Context, server, dir string) (build, func() (string, error), error) {
	version, err := output(ctx, dir, "go", "list", "-m", "-f", "{{.Version}}", module+"@"+server)
	if err != nil {
		return build{}, nil, err
	}
	return build{name: "etcd-" + version, from: "the Go module's " + version}, func() (string, error) {
		for _, args := range [][]string{
			{"mod", "init", "compat"},
			{"get", module + "@" + version},
			{"build", "-o", "etcd", module},
		} {
			if _, err := output(ctx, dir, "go", args...); err != nil {
				return "", err
			}
		}
		return filepath.Join(dir, "etcd"), nil
	}, nil
}

// fromDebian unpacks the package; installing it would start a server.
func fromDebian(ctx context.Context, _, dir string) (build, func() (string, error), error) {
	if _, err := exec.LookPath("apt-get"); err != nil {
		return build{}, nil, fmt.Errorf("this machine has no Debian packages; name other servers, such as v3.5: %w", err)
	}
	uris, err := output(ctx, dir, "apt-get", "--print-uris", "download", "etcd-server")
	if err != nil { // the package lists may not be there yet
		if _, err := output(ctx, dir, "apt-get", "update"); err != nil {
			return build{}, nil, err
		}
		if uris, err = output(ctx, dir, "apt-get", "--print-uris", "download", "etcd-server"); err != nil {
			return build{}, nil, err
		}
	}
	fields := strings.Fields(uris) // 'URI' FILE SIZE HASH
	if len(fields) < 2 {
		return build{}, nil, fmt.Errorf("apt-get: no package: %q", uris)
	}
	name, isDeb := strings.CutSuffix(fields[1], ".deb")
	if !isDeb {
		return build{}, nil, fmt.Errorf("apt-get: not a package: %q", uris)
	}
	from := "Debian's " + strings.ReplaceAll(name, "_", " ")
	return build{name: name, from: from}, func() (string, error) {
		if _, err := output(ctx, dir, "apt-get", "download", "etcd-server"); err != nil {
			return "", err
		}
		_, err := output(ctx, dir, "dpkg-deb", "-x", name+".deb", "unpacked")
		return filepath.Join(dir, "unpacked", "usr", "bin", "etcd"), err
	}, nil
}

// A cluster is a set of running etcd processes.
type cluster struct {
	endpoints []string
	version   string
	logFiles  []string
	cancel    context.CancelFunc
	running   sync.WaitGroup
}

// startAttempts is how often startCluster tries to start a cluster: another process may
// take a port after it was chosen.
const startAttempts = 3

func startCluster(ctx context.Context, binary, dir string, s shape) (*cluster, error) {
	var errs []error
	for i := range startAttempts {
		c, err := startOnce(ctx, binary, filepath.Join(dir, fmt.Sprint(i)), s)
		if err == nil || ctx.Err() != nil {
			return c, err
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

func startOnce(ctx context.Context, binary, dir string, s shape) (_ *cluster, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	members := s.members
	urls, err := loopback.FreeAddrs(2*members + 1)
	if err != nil {
		return nil, err
	}
	proxy := urls[2*members]
	for i, addr := range urls[:2*members] {
		urls[i] = "http://" + addr
	}
	peers := urls[members : 2*members]
	var initial []string
	for i, u := range peers {
		initial = append(initial, fmt.Sprintf("m%d=%s", i, u))
	}
	c := &cluster{endpoints: urls[:members]}
	ctx, c.cancel = context.WithCancel(ctx)
	defer func() {
		if err != nil {
			c.stop()
			err = fmt.Errorf("%w\n%s", err, c.logs())
		}
	}()
	ready, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("the servers don't serve"))
	defer cancel()
	start := func(name string, args ...string) error {
		log, err := os.Create(filepath.Join(dir, name+".log"))
		if err != nil {
			return err
		}
		defer func() { _ = log.Close() }() // the process has its own descriptor
		c.logFiles = append(c.logFiles, log.Name())
		cmd := command(ctx, binary, args...)
		cmd.Stdout, cmd.Stderr = log, log
		if err := cmd.Start(); err != nil {
			return err
		}
		c.running.Go(func() {
			_ = cmd.Wait() // it was killed, or its log says why it ended
			cancel()
		})
		return nil
	}
	for i := range members {
		if err := start(fmt.Sprintf("m%d", i), "--name", fmt.Sprintf("m%d", i), "--data-dir", filepath.Join(dir, fmt.Sprintf("m%d", i)),
			"--listen-client-urls", c.endpoints[i], "--advertise-client-urls", c.endpoints[i],
			"--listen-peer-urls", peers[i], "--initial-advertise-peer-urls", peers[i],
			"--initial-cluster", strings.Join(initial, ","), "--initial-cluster-token", dir,
			"--logger", "zap", "--log-level", "error", "--unsafe-no-fsync"); err != nil {
			return nil, err
		}
	}
	for _, e := range c.endpoints {
		if c.version, err = await(ready, e); err != nil {
			return nil, fmt.Errorf("%w: %w", context.Cause(ready), err)
		}
	}
	if s.proxied {
		if err := start("proxy", "grpc-proxy", "start", "--endpoints", strings.Join(c.endpoints, ","), "--listen-addr", proxy,
			"--advertise-client-url", proxy, // it calls itself there, and ends if nobody answers
			"--data-dir", filepath.Join(dir, "proxy")); err != nil {
			return nil, err
		}
		c.endpoints = []string{"http://" + proxy}
		if _, err = await(ready, c.endpoints[0]); err != nil {
			return nil, fmt.Errorf("the grpc-proxy: %w: %w", context.Cause(ready), err)
		}
	}
	return c, nil
}

// await waits until a server serves, and returns its version.
func await(ctx context.Context, endpoint string) (string, error) {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, Logger: zap.NewNop()})
	if err != nil {
		return "", err
	}
	defer func() { _ = client.Close() }()
	for {
		if _, err = client.Get(ctx, "ready"); err == nil {
			break
		}
		if ctx.Err() != nil {
			return "", err
		}
	}
	status, err := client.Status(ctx, endpoint)
	if err != nil {
		return "", err
	}
	return status.Version, nil
}

// stop kills the servers, and waits for their end.
func (c *cluster) stop() {
	c.cancel()
	c.running.Wait()
}

// logs returns the last lines that the servers logged.
func (c *cluster) logs() []byte {
	var b bytes.Buffer
	for _, f := range c.logFiles {
		text, err := os.ReadFile(f)
		if err != nil {
			text = []byte(err.Error())
		}
		fmt.Fprintf(&b, "%s:\n%s\n", filepath.Base(f), text[max(0, len(text)-4000):])
	}
	return b.Bytes()
}

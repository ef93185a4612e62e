package server

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"github.com/etcdlock/etcdlock/internal/test/loopback"
)

// zooClasses is where Debian's package installs ZooKeeper.
const zooClasses = "/usr/share/java/zookeeper.jar"

// ZooKeeper starts one standalone server. By default it syncs its log before it
// answers.
func ZooKeeper() (addr string, stop func() error, err error) {
	if _, err := os.Stat(zooClasses); err != nil {
		return "", nil, fmt.Errorf("no ZooKeeper (bench/setup.sh installs it): %w", err)
	}
	dir, err := os.MkdirTemp("", "etcdlock-bench-zookeeper-")
	if err != nil {
		return "", nil, err
	}
	addrs, err := loopback.FreeAddrs(1)
	if err != nil {
		return "", nil, err
	}
	host, port, err := net.SplitHostPort(addrs[0])
	if err != nil {
		return "", nil, err
	}
	config := filepath.Join(dir, "zoo.cfg")
	text := fmt.Sprintf("dataDir=%s\nclientPort=%s\nclientPortAddress=%s\ntickTime=2000\nmaxSessionTimeout=120000\n"+
		"maxClientCnxns=0\nadmin.enableServer=false\n", filepath.Join(dir, "data"), port, host)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return "", nil, errors.Join(err, os.RemoveAll(dir))
	}
	_, kill, err := start(filepath.Join(dir, "log"), "java", "-cp", zooClasses, "-Dzookeeper.jmx.log4j.disable=true",
		"org.apache.zookeeper.server.quorum.QuorumPeerMain", config)
	if err != nil {
		return "", nil, errors.Join(err, os.RemoveAll(dir))
	}
	stop = func() error { return errors.Join(kill(), os.RemoveAll(dir)) }
	if err := listens(addrs[0]); err != nil {
		return "", nil, errors.Join(err, stop())
	}
	return addrs[0], stop, nil
}

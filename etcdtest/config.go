package etcdtest

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// memberConfigs returns the configurations of all members, with ports that were
// free a moment ago.
func memberConfigs(dir string, cfg config) ([]*embed.Config, error) {
	ports, err := freePorts(2 * cfg.members)
	if err != nil {
		return nil, err
	}
	// Members only talk to members of the same token, so nothing that is left of
	// another cluster can join this one through a reused port.
	token := fmt.Sprintf("etcdtest-%016x", rand.Uint64())
	configs := make([]*embed.Config, cfg.members)
	initial := make([]string, cfg.members)
	for i := range configs {
		ec := embed.NewConfig()
		configs[i] = ec
		ec.Name = memberName(i)
		ec.Dir = filepath.Join(dir, ec.Name)
		ec.InitialClusterToken = token
		ec.ListenClientUrls = loopback(ports[2*i])
		ec.ListenPeerUrls = loopback(ports[2*i+1])
		ec.AdvertisePeerUrls = ec.ListenPeerUrls
		initial[i] = ec.Name + "=" + ec.ListenPeerUrls[0].String()

		// 1.5 election timeouts must stay below 1 s; see the package documentation.
		ec.TickMs, ec.ElectionMs = 10, 100
		if cfg.members > 1 {
			ec.TickMs, ec.ElectionMs = 50, 600
		}
		ec.UnsafeNoFsync = !cfg.fsync
		ec.EnableGRPCGateway = false
		ec.LogLevel = "fatal"
		ec.ZapLoggerBuilder = embed.NewZapLoggerBuilder(crashLogger())
	}
	for _, ec := range configs {
		ec.InitialCluster = strings.Join(initial, ",")
		for _, f := range cfg.configure {
			f(ec)
		}
		if ec.ClientAutoTLS || !ec.ClientTLSInfo.Empty() {
			for i := range ec.ListenClientUrls {
				ec.ListenClientUrls[i].Scheme = "https"
			}
		}
		ec.AdvertiseClientUrls = ec.ListenClientUrls
	}
	return configs, nil
}

func loopback(port int) []url.URL {
	return []url.URL{{Scheme: "http", Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(port))}}
}

// freePorts picks ports below the ranges from which systems give ports to outgoing
// connections and to listeners on port 0: in those, a member that is stopped would
// lose its port to the next connection of any process and couldn't restart.
func freePorts(n int) ([]int, error) {
	const from, to = 12000, 32000
	var ports []int
	var err error
	for range 100 * n {
		port := from + rand.IntN(to-from)
		var l net.Listener
		if l, err = net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))); err != nil {
			continue // taken
		}
		// Open until all are found, so that none is picked twice.
		defer func() { _ = l.Close() }()
		if ports = append(ports, port); len(ports) == n {
			return ports, nil
		}
	}
	return nil, fmt.Errorf("no free port: %w", err)
}

// crashLogger shows only what etcd says before it panics or exits, since that takes
// the test binary with it.
func crashLogger() *zap.Logger {
	enc := zapcore.NewConsoleEncoder(zap.NewDevelopmentEncoderConfig())
	return zap.New(zapcore.NewCore(enc, zapcore.Lock(os.Stderr), zapcore.PanicLevel))
}

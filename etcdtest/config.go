package etcdtest

import (
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// memberConfigs returns the configurations of all members, which have two addresses each.
func memberConfigs(dir string, cfg config, addrs []string) []*embed.Config {
	// Members talk only to members with the same token. So a leftover member of
	// another cluster can't join this one through a reused port.
	token := fmt.Sprintf("etcdtest-%016x", rand.Uint64())
	configs := make([]*embed.Config, cfg.members)
	initial := make([]string, cfg.members)
	for i := range configs {
		ec := embed.NewConfig()
		configs[i] = ec
		ec.Name = memberName(i)
		ec.Dir = filepath.Join(dir, ec.Name)
		ec.InitialClusterToken = token
		ec.ListenClientUrls = listen(addrs[2*i])
		ec.ListenPeerUrls = listen(addrs[2*i+1])
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
	return configs
}

func listen(addr string) []url.URL { return []url.URL{{Scheme: "http", Host: addr}} }

// crashLogger writes only what etcd logs before it panics or exits, because that also
// ends the test binary.
func crashLogger() *zap.Logger {
	enc := zapcore.NewConsoleEncoder(zap.NewDevelopmentEncoderConfig())
	return zap.New(zapcore.NewCore(enc, zapcore.Lock(os.Stderr), zapcore.PanicLevel))
}

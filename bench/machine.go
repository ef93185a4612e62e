package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"
)

// machine describes the machine of this run.
func machine() map[string]string {
	m := map[string]string{
		"cpu":                  cpu(),
		"cores":                fmt.Sprint(runtime.NumCPU()),
		"kernel":               output("uname", "-sr"),
		"memory":               memory(),
		"median time of fsync": fsyncTime(),
		"load when it started": strings.Join(strings.Fields(file("/proc/loadavg"))[:3], " "),
	}
	return m
}

// versions returns the versions of what is measured.
func versions() map[string]string {
	v := map[string]string{
		"go":           runtime.Version(),
		"etcdlock":     output("git", "describe", "--always", "--dirty", "--tags"),
		"redis-server": output("dpkg-query", "-W", "-f", "${Version}", "redis-server"),
		"zookeeper":    output("dpkg-query", "-W", "-f", "${Version}", "zookeeper"),
		"java":         output("sh", "-c", "java -version 2>&1 | head -n 1"),
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, d := range info.Deps {
			switch d.Path {
			case "go.etcd.io/etcd/server/v3", "go.etcd.io/etcd/client/v3", "github.com/go-redsync/redsync/v4",
				"github.com/redis/go-redis/v9", "github.com/go-zookeeper/zk":
				v[d.Path] = d.Version
			}
		}
	}
	return v
}

func output(name string, args ...string) string {
	out, err := exec.Command(name, args...).Output()
	if err != nil {
		return "unknown: " + err.Error()
	}
	return strings.TrimSpace(string(out))
}

func file(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return "unknown unknown unknown"
	}
	return string(text)
}

func cpu() string {
	s := bufio.NewScanner(strings.NewReader(file("/proc/cpuinfo")))
	for s.Scan() {
		if k, v, ok := strings.Cut(s.Text(), ":"); ok && strings.TrimSpace(k) == "model name" {
			return strings.TrimSpace(v)
		}
	}
	return "unknown"
}

func memory() string {
	var info syscall.Sysinfo_t
	if err := syscall.Sysinfo(&info); err != nil {
		return "unknown"
	}
	return fmt.Sprintf("%d GiB", (info.Totalram*uint64(info.Unit)+1<<29)>>30)
}

// fsyncTime returns the median time of an fsync. All servers that write to the
// disk pay it for each write.
func fsyncTime() string {
	f, err := os.CreateTemp("", "etcdlock-bench-")
	if err != nil {
		return "unknown"
	}
	defer func() { _ = os.Remove(f.Name()) }() // a leftover in the temporary directory does no harm
	defer func() { _ = f.Close() }()
	times := make([]time.Duration, 101)
	for i := range times {
		if _, err := f.Write(make([]byte, 256)); err != nil {
			return "unknown"
		}
		start := time.Now()
		if err := f.Sync(); err != nil {
			return "unknown"
		}
		times[i] = time.Since(start)
	}
	slices.Sort(times)
	return times[len(times)/2].Round(time.Microsecond).String()
}

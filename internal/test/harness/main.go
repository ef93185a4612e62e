package harness

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/test/leaks"
)

// endpoints names the environment variable with the URLs, separated by commas, of servers that the
// tests use instead of an embedded member; see internal/tool/compat.
const endpoints = "ETCDLOCK_TEST_ENDPOINTS"

// OwnServers reports whether Main starts the server: the tests may then rely on how it is set up.
func OwnServers() bool { return os.Getenv(endpoints) == "" }

// Main is the TestMain of a package whose tests share a server. It sets cluster before run, which
// runs the tests, and returns the exit code. Neither the library nor the etcd clients that it uses
// may leave a goroutine when all tests have passed.
func Main(cluster **etcdtest.Cluster, run func() int) (code int) {
	flag.Parse()
	code, err := runOn(cluster, run)
	if err == nil && code == 0 {
		err = leaks.FindBesidePeers(Hang)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// Parallel has more parallel tests run at the same time than there are processors: most of them only wait. Where the machine has
// less than a processor left for them, fewer run at the same time: else they would miss their times because of each other.
func Parallel() error { return atOnce(parallel) }

// ParallelWaits is Parallel for a package whose tests wait for longer than they compute.
func ParallelWaits() error { return atOnce(waiting) }

func atOnce(tests int) error {
	flag.Parse()
	n := max(tests/8, runtime.GOMAXPROCS(0))
	if n < tests {
		n = max(n, int(float64(tests)*min(processors(), 1)))
	}
	return flag.Set("test.parallel", strconv.Itoa(n))
}

// processors is how many processors this process got when it was first asked. Goroutines look at the clock again and again: when
// they do not for a while, something else runs.
var processors = sync.OnceValue(func() float64 {
	const lasts, look = 200 * time.Millisecond, time.Millisecond
	var ran atomic.Int64
	var wg sync.WaitGroup
	began := time.Now()
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for last := began; last.Sub(began) < lasts; {
				now := time.Now()
				if d := now.Sub(last); d < look {
					ran.Add(int64(d))
				}
				last = now
			}
		})
	}
	wg.Wait()
	return float64(ran.Load()) / float64(lasts)
})

func runOn(cluster **etcdtest.Cluster, run func() int) (code int, err error) {
	if err := Parallel(); err != nil {
		return 1, err
	}
	dir, err := os.MkdirTemp("", "etcdlock-test-")
	if err != nil {
		return 1, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if urls := os.Getenv(endpoints); urls != "" {
		*cluster = etcdtest.Attach(strings.Split(urls, ",")...)
	} else if *cluster, err = etcdtest.New(dir); err != nil {
		return 1, err
	}
	defer (*cluster).Close()
	return run(), nil
}

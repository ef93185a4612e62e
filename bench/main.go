// Command bench measures etcdlock and its peers on real servers, which it starts
// on loopback, and writes README.md from the results.
//
//	./setup.sh              # once: redis-server and ZooKeeper
//	go run .                # measures what locks do, writes results.json
//	go run . -rounds 1 -servers scale -out scale.json # measures what they cost at rest
//	go run . -servers names -out names.json # measures locks of many names
//	go run . report         # README.md, goals.md, plots/ and docs/capacity.md from all files
//	go run . -rounds 1 -servers embedded -quantity 'grants|hand-over' -peer 'etcdlock|floor' -out /tmp/some.json
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"runtime/pprof"
	"syscall"
	"time"

	"github.com/etcdlock/etcdlock/bench/report"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run() (err error) {
	if len(os.Args) > 1 && os.Args[1] == "scale" {
		return scale(os.Args[2:])
	}
	if len(os.Args) > 1 && os.Args[1] == "report" {
		fs := flag.NewFlagSet("report", flag.ExitOnError)
		dir := fs.String("dir", ".", "where to write README.md and plots/")
		capacity := fs.String("capacity", "../docs/capacity.md", "where to write what one cluster carries")
		if err := fs.Parse(os.Args[2:]); err != nil {
			return err
		}
		files := fs.Args()
		if len(files) == 0 {
			files = []string{"results.json", "scale.json", "names.json"}
		}
		r, err := report.Read(files...)
		if err != nil {
			return err
		}
		return errors.Join(r.WriteReadme(*dir), r.WriteCapacity(*capacity))
	}
	b := &bench{}
	flag.IntVar(&b.rounds, "rounds", 5, "how often each quantity of each peer is measured; the peers take turns")
	flag.DurationVar(&b.d, "d", time.Second, "duration of a measurement, without its warm-up")
	flag.IntVar(&b.used, "used", 20_000, "how often the name was locked before 'uncontended, used'")
	flag.IntVar(&b.most, "most", 100_000, "the largest number of things at rest")
	flag.DurationVar(&b.settle, "settle", 10*time.Second, "time before things are considered to be at rest, with a TTL of 10 s")
	flag.DurationVar(&b.window, "window", 30*time.Second, "for which things at rest are measured, with a TTL of 10 s")
	out := flag.String("out", "results.json", "where to write the raw results")
	servers := flag.String("servers", "^(embedded|three|far)$", "only servers that match this regular expression: embedded; three; far; names, one; names, three; names, far; names, away; scale")
	quantity := flag.String("quantity", "", "only quantities that match, such as 'uncontended', 'grants/2x1', 'multi', 'items'")
	peers := flag.String("peer", "", "only peers that match, such as 'etcdlock|floor'")
	profile := flag.String("cpuprofile", "", "where to write a CPU profile of the whole run, including the servers in this process")
	flag.Parse()
	if *profile != "" {
		f, err := os.Create(*profile)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, f.Close()) }()
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	for pattern, to := range map[*string]**regexp.Regexp{servers: &b.servers, quantity: &b.quantity, peers: &b.peers} {
		re, err := regexp.Compile(*pattern)
		if err != nil {
			return err
		}
		*to = re
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	dir, err := os.MkdirTemp("", "etcdlock-bench-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }() // a leftover in the temporary directory does no harm
	err = b.measureAll(ctx, dir)
	if werr := b.result.Write(*out); werr != nil {
		return werr
	}
	return err
}

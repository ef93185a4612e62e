package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// result is what a search came to.
type result struct {
	States    int
	Depth     int
	Megabytes int
	Took      time.Duration
	errors    int
	complete  bool
	ended     bool // some runs came to an end, and what has to hold there was looked at
	// Of a violation: the assertion's name, and what happened up to it.
	Property string
	Trail    []string
}

// memory bounds a search, in MB: two of them are to fit into 8 GiB.
const memory = 3500

// search1 searches all of s.
func search1(ctx context.Context, dir string, s *search) (result, error) {
	model, defs := filepath.Join(dir, cmp.Or(s.File, lock)), strings.Fields(s.Bounds)
	cflags, args := []string{"-DSAFETY"}, []string{}
	if s.Formula != "" {
		defs = append(defs, "-DLIVE=1")
		cflags, args = []string{"-DNFAIR=3"}, []string{"-a", "-f", "-N", s.Formula}
	}
	r, err := runSpin(ctx, model, defs, cflags, args)
	switch {
	case err != nil:
		return r, err
	case r.errors > 0:
		return r, fmt.Errorf("%s does not hold:\n\t%s", r.Property, strings.Join(r.Trail, "\n\t"))
	case s.Formula == "" && !r.ended:
		return r, errors.New("no run ends: something can go on for ever, and what has to hold in the end was not looked at")
	case !r.complete:
		return r, errors.New("not searched in full: more memory or depth is needed, or less is to be searched")
	}
	if s.Formula == "" && s.File == "" {
		err = follow(ctx, model, defs)
	}
	return r, err
}

// findMutant looks for the shortest way to notice that the line is missing.
func findMutant(ctx context.Context, dir string, m *mutant) (result, error) {
	defs := append(strings.Fields(m.Bounds), fmt.Sprintf("-DMUTANT=%d", m.Number), "-DSHORTEST")
	r, err := runSpin(ctx, filepath.Join(dir, m.file()), defs, []string{"-DSAFETY", "-DBFS"}, nil)
	switch {
	case err != nil:
		return r, err
	case r.errors == 0:
		return r, errors.New("not noticed: the model is too weak, or the line is not needed")
	case r.Property != m.Found:
		return r, fmt.Errorf("found by %q instead of %q:\n\t%s", r.Property, m.Found, strings.Join(r.Trail, "\n\t"))
	}
	return r, nil
}

// runSpin has Spin make a program of the model, compiles that, and runs it.
func runSpin(ctx context.Context, model string, defs, cflags, args []string) (r result, err error) {
	dir, err := os.MkdirTemp("", "model-")
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if _, err = output(ctx, dir, "spin", append(append([]string{"-a"}, defs...), model)...); err != nil {
		return r, err
	}
	cc := append([]string{"-O1", "-w", "-DCOLLAPSE", fmt.Sprintf("-DMEMLIM=%d", memory), "-o", "pan", "pan.c"}, cflags...)
	if _, err = output(ctx, dir, "gcc", cc...); err != nil {
		return r, err
	}
	began := time.Now()
	out, err := output(ctx, dir, "./pan", append([]string{"-m200000"}, args...)...)
	if err != nil {
		return r, err
	}
	if r, err = parse(out); err != nil {
		return r, err
	}
	r.Took = time.Since(began)
	if r.errors == 0 {
		return r, nil
	}
	trail := filepath.Base(model) + ".trail"
	told, err := output(ctx, dir, "spin", append(append([]string{"-T", "-k", trail}, defs...), model)...)
	if err != nil {
		return r, err
	}
	sources := make(map[string]string)
	for _, file := range modelFiles {
		source, err := os.ReadFile(filepath.Join(filepath.Dir(model), file))
		if err != nil {
			return r, err
		}
		sources[file] = string(source)
	}
	r.Property, r.Trail = story(told, sources)
	return r, nil
}

// modelFiles are the files that have assertions.
var modelFiles = []string{lock, "etcd.pml", multi, renew, restore, adopt}

// output runs a command in dir, which ends with ctx.
func output(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return string(out), nil
}

var (
	depthLine  = regexp.MustCompile(`depth reached (\d+).*errors: (\d+)`)
	statesLine = regexp.MustCompile(`(?m)^\s*(\d+) states, stored`)
	memoryLine = regexp.MustCompile(`(?m)^\s*(\d+)[.\d]*\s+total actual memory usage`)
)

// parse reads what a search prints in the end.
func parse(out string) (r result, err error) {
	depth, states, mem := depthLine.FindStringSubmatch(out), statesLine.FindStringSubmatch(out), memoryLine.FindStringSubmatch(out)
	if depth == nil || states == nil || mem == nil {
		return r, fmt.Errorf("the search says nothing of what it searched:\n%s", out)
	}
	for to, text := range map[*int]string{&r.Depth: depth[1], &r.errors: depth[2], &r.States: states[1], &r.Megabytes: mem[1]} {
		if *to, err = strconv.Atoi(text); err != nil {
			return r, err
		}
	}
	r.ended = strings.Contains(out, "unreached in proctype rest\n\t(0 of ")
	r.complete = !strings.Contains(out, "Search not completed") && !strings.Contains(out, "max search depth too small") &&
		!strings.Contains(out, "out of memory") && !strings.Contains(out, "reached -DMEMLIM")
	return r, nil
}

var (
	step     = regexp.MustCompile(`^((?:etcd|net|somebody|clock|[A-D]): .*)$`)
	violated = regexp.MustCompile(`(\w+\.pml):(\d+), Error: assertion violated`)
	label    = regexp.MustCompile(`/\* ([\w, ]+): [^*]*\*/$`)
)

// story is what a trail tells: the name of the assertion that does not hold, as the comment
// in its line has it, and the steps up to it. sources are the files of the model.
func story(told string, sources map[string]string) (property string, steps []string) {
	for line := range strings.Lines(told) {
		if m := violated.FindStringSubmatch(line); m != nil {
			n, _ := strconv.Atoi(m[2])
			property = "an assertion in line " + m[2] + " of " + m[1]
			lines := strings.Split(sources[m[1]], "\n")
			if n > 0 && n <= len(lines) {
				if l := label.FindStringSubmatch(lines[n-1]); l != nil {
					property = l[1]
				}
			}
			return property, steps
		}
		if m := step.FindStringSubmatch(strings.TrimSpace(line)); m != nil {
			steps = append(steps, m[1])
		}
	}
	return "a cycle in which nobody gets on", steps
}

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/etcdlock/etcdlock/internal/test/history"
)

// runs is how many runs at random of each search are followed.
const runs = 10

// follow has Spin make runs at random, and history follow them: what the model allows, the check
// of real histories must allow too. (What a mutant does it must refuse: see internal/test/history/model_test.go.)
func follow(ctx context.Context, model string, defs []string) (err error) {
	dir, err := os.MkdirTemp("", "model-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	for seed := 1; seed <= runs; seed++ {
		out, err := output(ctx, dir, "spin", append(append([]string{"-T", "-u50000", fmt.Sprintf("-n%d", seed)}, defs...), model)...)
		if err != nil {
			return err
		}
		_, steps := story(out, nil)
		log, trace, claims, err := history.FromModel(steps)
		if err != nil {
			return err
		}
		if len(trace) == 0 {
			return fmt.Errorf("run %d says nothing:\n%s", seed, out)
		}
		if problems := log.CheckTrace(trace, claims); len(problems) > 0 {
			return fmt.Errorf("internal/test/history does not allow what the model does, in its run %d:\n\t%s\nin\n\t%s",
				seed, strings.Join(problems, "\n\t"), strings.Join(steps, "\n\t"))
		}
	}
	return nil
}

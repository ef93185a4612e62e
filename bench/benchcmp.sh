#!/usr/bin/env bash
# Compares the Go benchmarks of the work tree with those of the last tag, or of main if there is no tag:
#
#	BASE=v1.0.0 BENCH=Handover COUNT=10 bench/benchcmp.sh
#
# BENCH is a regular expression, COUNT is how often each benchmark runs. The results stay in .benchcmp.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export GOWORK=off # a developer's workspace must not change what is measured

base=${BASE:-$(git describe --tags --abbrev=0 2>/dev/null || echo main)}
out=$PWD/.benchcmp
rm -rf "$out"
mkdir "$out"
# --force, because git still lists the folder after a run that was killed.
git worktree add --quiet --force --detach "$out/base" "$base"
trap 'git worktree remove --force "$out/base"' EXIT

# Build programs first, so that an edit during the run does not change the later rounds.
go -C "$out/base/bench" test -c -o "$out/old.test" .
go -C bench test -c -o "$out/new.test" .

# Run one round of each in turn, because the speed of a machine changes from minute to minute.
for ((i = 1; i <= ${COUNT:-6}; i++)); do
	for side in old new; do
		printf '\n=== round %d, %s\n' "$i" "$side"
		"$out/$side.test" -test.run '^$' -test.bench "${BENCH:-.}" | tee -a "$out/$side.txt"
	done
done
printf '\n=== old is %s\n' "$base"
go tool -modfile=tools/go.mod benchstat "old=$out/old.txt" "new=$out/new.txt"

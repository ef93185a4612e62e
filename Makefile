LINT = go tool -modfile="$(CURDIR)/tools/go.mod" golangci-lint
FUZZTIME ?= 30s
SEED ?= 0
T ?= 1m

.PHONY: test race lint fmt tidy demo fuzz soak compat bench benchcmp ci

test:
	go test ./...

race:
	go test -race -timeout 20m ./...

lint:
	for d in . bench deploy; do (cd $$d && $(LINT) run ./...) || exit 1; done

fmt:
	$(LINT) fmt

tidy:
	for m in $$(git ls-files '*go.mod'); do go -C "$$(dirname "$$m")" mod tidy || exit 1; done

demo:
	go run ./cmd/etcdlock demo

# Every fuzz target of the root package in turn: FUZZTIME=5m make fuzz
fuzz:
	for f in $$(go test -list '^Fuzz' . | grep '^Fuzz'); do \
		go test -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) . || exit 1; \
	done

# Everything broken at random while locks are used, and judged: SEED=7 T=30m make soak. See internal/soak/doc.go.
soak:
	go test -count=1 -v -timeout 0 -run '^TestSoak$$' ./internal/soak -args -seed=$(SEED) -for=$(T)

# The tests that need nothing but a server's address, on real etcd of the lines that clusters run, five to ten minutes;
# the table of it: go run ./internal/compat -write docs/compat.md
compat:
	go run ./internal/compat

# The package beside its peers, on real servers; installs redis and ZooKeeper if they are missing, and takes about an hour.
# It writes bench/results.json, and bench/README.md and its plots from that.
bench:
	bench/setup.sh
	cd bench && go run . && go run . report

# The Go benchmarks of bench/ in the last tag (or main) and here, six rounds of each by turns, and how they differ:
# BASE=v1.0.0 BENCH=Handover COUNT=10 make benchcmp
benchcmp:
	bench/benchcmp.sh

# All that a change is checked with
ci:
	bash .ci/run

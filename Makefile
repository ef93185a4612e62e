LINT = go tool -modfile="$(CURDIR)/tools/go.mod" golangci-lint
FUZZTIME ?= 30s
SEED ?= 0
T ?= 1m

.PHONY: test race quick lint fmt tidy api latest demo fuzz soak model compat bench benchcmp ci

test:
	go test ./...

# All tests in full, with the race detector and the newest versions of what the module needs
race:
	ETCDLOCK_FULL=1 go test -modfile=go.latest.mod -race -timeout 20m ./...
	go -C examples test -race ./... github.com/etcdlock/etcdlock/promlock github.com/etcdlock/etcdlock/otellock

# What needs no server: in about 15 s on 2 cores
quick:
	go vet ./...
	$(LINT) run --new-from-rev=HEAD ./...
	go test ./internal/etcd ./internal/keyspace ./internal/tool/layout ./internal/lease ./internal/queue ./internal/removal ./internal/settle ./internal/waitlist ./internal/blockers ./internal/loan

lint:
	for d in . promlock otellock examples bench deploy integrations; do (cd $$d && $(LINT) run ./...) || exit 1; done

fmt:
	$(LINT) fmt

tidy:
	for m in $$(git ls-files '*go.mod'); do go -C "$$(dirname "$$m")" mod tidy || exit 1; done
	go mod tidy -modfile=go.latest.mod

# Lists what the packages export anew, otherwise, or no more since the last tag, or BASE
api:
	bash .ci/api

# Gets the newest versions into go.latest.mod. go.mod names the lowest that work.
latest:
	go get -modfile=go.latest.mod -t -u ./...
	go mod tidy -modfile=go.latest.mod

demo:
	go run ./cmd/etcdlock demo

# Runs every fuzz target in turn: FUZZTIME=5m make fuzz
fuzz:
	for p in $$(grep -rl '^func Fuzz' --include='*_test.go' . | xargs -n1 dirname | sort -u); do \
		for f in $$(go test -list '^Fuzz' $$p | grep '^Fuzz'); do \
			go test -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) $$p || exit 1; \
		done; \
	done

# Injects random faults while locks are used, and checks the results: SEED=7 T=30m make soak. See internal/test/soak/doc.go.
soak:
	go test -count=1 -v -timeout 0 -run '^Test(Soak|Restore)$$' ./internal/test/soak -args -seed=$(SEED) -for=$(T)

# Searches the model of the protocol, whole and with each line left out, in two to five minutes; installs spin if it is missing.
# To write its README from the result: go run ./model -write
model:
	command -v spin >/dev/null || { apt-get update -q && apt-get install -q -y --no-install-recommends spin gcc libc6-dev; }
	go run ./model

# Runs the tests that need only the address of a server against several versions of etcd, with the client of go.mod and that
# of go.latest.mod, in ten to twenty minutes.
# To write the table of results: go run ./internal/tool/compat -write docs/compat.md
compat:
	go run ./internal/tool/compat

# Compares the package with its peers on real servers, and measures what it costs at rest, in about an hour and a half. It
# installs redis and ZooKeeper if they are missing. It writes bench/results.json, names.json and scale.json, and from them
# bench/README.md, bench/goals.md, the plots and docs/capacity.md.
bench:
	bench/setup.sh
	cd bench && go run . && go run . -servers names -rounds 3 -out names.json && go run . -rounds 1 -servers scale -out scale.json && go run . report

# Runs the Go benchmarks of bench/ in the last tag (or main) and here, six rounds of each in turn, and shows the difference:
# BASE=v1.0.0 BENCH=Handover COUNT=10 make benchcmp
benchcmp:
	bench/benchcmp.sh

# Runs all checks of a change
ci:
	bash .ci/run

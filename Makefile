# What a developer runs. `make` alone lists it.
.DEFAULT_GOAL := help
.PHONY: help build console dev test test-full chaos models mutants lint bench drills long fuzz clean tools-run tools-test

# The version is stamped below. Git's own stamp would fail the build in a checkout that belongs to another user.
export GOFLAGS := $(GOFLAGS) -buildvcs=false

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
COMMIT ?= $(shell git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
version := github.com/tollgate-gateway/tollgate/internal/version
LDFLAGS := -X $(version).Version=$(VERSION) -X $(version).Commit=$(COMMIT)
# Continuous integration trusts no cached result.
FRESH := $(if $(filter true,$(CI)),-count=1)
WITH_POSTGRES := go run ./internal/pgtest/withpg

help: ## list the targets
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1|\2/p' $(MAKEFILE_LIST) | while IFS='|' read -r target text; do printf '%-18s %s\n' "$$target" "$$text"; done

build: console ## build bin/tollgate
	@[ -x bin/tollgate ] || echo 'Building bin/tollgate; the first time takes a few minutes …'
	go build -trimpath -ldflags '$(LDFLAGS)' -o bin/tollgate ./cmd/tollgate

# The console is embedded in the binary, where its source is there.
console:
	@if [ -f console/ui/package.json ]; then .ci/npm console/ui && npm --prefix console/ui run build; fi

dev: tools-run build ## install what is missing, build, and run a complete Tollgate on this machine
	@exec bin/tollgate dev

test: tools-test ## everything that has to pass, with a scratch PostgreSQL of its own
	.ci/format
	go vet ./...
	$(WITH_POSTGRES) go test -race -p 2 -timeout 15m $(FRESH) ./...
	@if [ -f console/ui/package.json ]; then npm --prefix console/ui test; fi

test-full: tools-test ## the same three times over in random order, then models, mutants, chaos, drills and fuzz targets
	$(MAKE) test CI=true
	$(WITH_POSTGRES) go test -race -p 2 -timeout 60m -count=3 -shuffle=on ./...
	$(MAKE) models mutants chaos
	$(MAKE) drills long
	.ci/fuzz 30s

long: tools-test ## the end-to-end tests that take minutes or need root to mount a small disk
	.ci/npm internal/e2e/agents
	go vet -tags full ./internal/e2e
	$(WITH_POSTGRES) go test -race -tags full -timeout 60m -count=1 -run '^TestLong_' ./internal/e2e

models: tools-test ## 10,000 operations and 500 concurrent histories of the ledger against its models
	TOLLGATE_TEST_OPERATIONS=10000 $(WITH_POSTGRES) go test -timeout 60m -count=1 -v -run '^TestLedger_(EqualsMeter|IsLinearizable)$$' ./governance/pgstore/ledger -rapid.checks=1000

mutants: tools-test ## plant known bugs, and want the checks to notice; see docs/seeded-bugs.md
	$(WITH_POSTGRES) go test -tags seededbug -timeout 120m -count=1 -v -run '^TestSeededBugs$$' ./internal/seededbug $(if $(ALL),-all) $(if $(CHAOS),-chaos) $(if $(WRITE),-write)

lint: ## the linters
	.ci/format
	go vet ./...
	@command -v golangci-lint >/dev/null 2>&1 || { echo 'golangci-lint is missing: go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0' >&2; exit 1; }
	golangci-lint run

bench: tools-test ## the benchmarks: the ledger beside other designs, in processes of their own, then those of the packages
	go run ./internal/ledgerbench
	$(WITH_POSTGRES) go test -run '^$$' -bench . -benchmem -p 1 -timeout 60m ./...

CHAOS_PROFILE ?= all
CHAOS_SEED ?= 0
CHAOS_TIME ?= 5m
chaos: tools-test ## kills, lost replies, database crashes and bursts for CHAOS_TIME (5m); CHAOS_PROFILE and CHAOS_SEED choose
	go run ./internal/chaos/run --profile $(CHAOS_PROFILE) --seed $(CHAOS_SEED) --time $(CHAOS_TIME) --seeds internal/chaos/testdata/seeds

drills: build tools-run ## the failure drills: outage, crash and roll-out of real processes (two minutes)
	go build -trimpath -tags faultpoint -ldflags '$(LDFLAGS)' -o bin/tollgate-faultpoint ./cmd/tollgate
	bin/tollgate drill outage
	bin/tollgate drill crash
	bin/tollgate drill crash --faultpoint-binary bin/tollgate-faultpoint
	bin/tollgate drill rollout

fuzz: tools-test ## each fuzz target for ten seconds
	.ci/fuzz 10s

clean: ## remove what was built
	rm -rf bin .cache node_modules internal/e2e/sdk/node_modules console/ui/node_modules

tools-run:
	@.ci/install

tools-test:
	@.ci/install test
	@if [ -f internal/e2e/sdk/package.json ]; then .ci/npm internal/e2e/sdk; fi
	@if [ -f console/ui/package.json ]; then .ci/npm console/ui; fi

# toold: `make` shows the targets.

GO       ?= go
FUZZTIME ?= 30s
BENCH    ?= .
# Where programs and packages go that the tests need and this machine lacks.
CACHE    := .cache

# git refuses to read a checkout that somebody else owns, and then so does go.
VCS := $(shell git rev-parse HEAD >/dev/null 2>&1 && echo auto || echo false)
BUILD := CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=$(VCS)
# The plugins run in toold only: toold_bulk moves their input and output at once.
WASM  := GOOS=wasip1 GOARCH=wasm $(GO) build -tags toold_bulk -trimpath -buildvcs=false -buildmode=c-shared -ldflags=-s

# What a plugin is compiled to follows from what it exports: one that says
# `//go:wasmexport handle` is its tool's handler.wasm, one that only says
# `//go:wasmexport restrict` its restricted.wasm. A plugin without either is
# a library of the others. Compiled modules lie beside their tool.json.
exporters = $(sort $(patsubst plugins/%/,%,$(dir $(shell grep -slE '^//go:wasmexport $(1)$$' plugins/*/*.go))))
HANDLERS := $(call exporters,handle)
POLICIES := $(filter-out $(HANDLERS),$(call exporters,restrict))
MODULES  := $(HANDLERS:%=tools.d/%/handler.wasm) $(POLICIES:%=tools.d/%/restricted.wasm)
GUEST_SOURCES := go.mod $(shell find pdk plugins -name '*.go' ! -name '*_test.go' 2>/dev/null)

.PHONY: help
help: ## show this
	@echo 'toold: make TARGET'
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | awk -F'\t' '{printf "  %-15s %s\n", $$1, $$2}'

.PHONY: build
build: $(MODULES) ## toold, toolctl, tool-client into bin/, the modules into tools.d/
	@mkdir -p bin
	$(BUILD) -o bin/ ./cmd/...
	@bin/toolctl tools catalogue tools.d >/dev/null

tools.d/%/handler.wasm: $(GUEST_SOURCES)
	$(module)

tools.d/%/restricted.wasm: $(GUEST_SOURCES)
	$(module)

# Compiled aside and renamed into place, so that a daemon that watches the
# folder never sees half a module.
define module
@mkdir -p $(@D) $(CACHE)/wasm
$(WASM) -o $(CACHE)/wasm/$*.wasm ./plugins/$*
@mv $(CACHE)/wasm/$*.wasm $@
endef

.PHONY: examples
examples: ## the example tools of sdk-examples, as their READMEs say
	@for d in sdk-examples/*/; do \
		echo "$$d"; \
		(cd "$$d" && GOFLAGS=-buildvcs=$(VCS) sh -euc "$$(sed -n '/^```sh$$/,/^```$$/p' README.md | sed '/^```/d')") || exit 1; \
	done

.PHONY: test
test: build ## every test; fetches the servers that they need and this machine lacks
	@GO='$(GO)' scripts/test ./...

.PHONY: sdk
sdk: build ## the SDKs in four languages: installs compilers (as root), builds and tests
	@GO='$(GO)' scripts/sdk

.PHONY: race
race: build ## the same under the race detector (needs a C compiler)
	@GO='$(GO)' scripts/test -race -timeout 30m ./...

.PHONY: lines
lines: build ## all command lines of npm natively and through the wrapper; make test runs a part
	PATH="$(CURDIR)/$(CACHE)/debs/bin:$$PATH" TOOLD_TEST_LINES=all $(GO) test -timeout 30m -run '^TestLines$$' ./plugins/npm

.PHONY: oracle
oracle: build ## go-sdk's modules and the SDKs' guests on go-sdk and here; make test runs most
	PATH="$$PATH:$(HOME)/.cargo/bin:$(CURDIR)/$(CACHE)/npm/node_modules/.bin" CARGO_TARGET_DIR="$(CURDIR)/$(CACHE)/cargo" TOOLD_TEST_ORACLE=all $(GO) test -run '^TestOracle' ./host/guest

.PHONY: fuzz
fuzz: ## each fuzz target for FUZZTIME (30s)
	@GO='$(GO)' scripts/fuzz $(FUZZTIME)

# git's own tests, natively and through the wrapper, for an hour at most. FILES are
# patterns of their names; the table of docs/wrappers.md is written by
# FLAGS=-update.
FILES ?= t[0-7]*
.PHONY: test-gitsuite
test-gitsuite: build ## git's own tests through the wrapper: what differs, and what is said of it
	$(GO) run ./scripts/gitsuite $(FLAGS) -files '$(FILES)' $(CACHE)/gitsuite

SOAK ?= 30m
SOAK_PLOT ?= $(CACHE)/soak.svg
.PHONY: soak
soak: ## mixed traffic with faults for SOAK (30m), drawn in SOAK_PLOT; fails if memory, files, goroutines or latency grow
	@mkdir -p $(dir $(SOAK_PLOT))
	TOOLD_SOAK=$(SOAK) TOOLD_SOAK_PLOT='$(abspath $(SOAK_PLOT))' $(GO) test -count=1 -timeout 0 -run '^TestSoak$$' -v ./host

.PHONY: aws
aws: ## the real aws, from PyPI, without a key, against a service that verifies signatures as AWS's own library does; and bodies that stall
	python3 -m venv $(CACHE)/aws && $(CACHE)/aws/bin/pip install -q awscli
	TOOLD_TEST_AWS='$(abspath $(CACHE))/aws/bin/aws' $(GO) test -count=1 -run '^TestAWSWithoutKey$$' -v ./host
	TOOLD_SLOW=1 $(GO) test -count=1 -run '^TestStalled' ./host/egress

.PHONY: mcp-clients
mcp-clients: ## 500 clients of MCP that connect, call and vanish; fails if anything is left of them
	TOOLD_MCP_CLIENTS=500 $(GO) test -count=1 -timeout 20m -run '^TestVanishingClients$$' -v ./host/mcp

.PHONY: repeats
repeats: ## 1,000 mutating calls of MCP each way over connections that are cut; fails if one is lost or runs twice
	TOOLD_TEST_REPEATS=1000 $(GO) test -count=1 -timeout 0 -run '^(TestRepeatedCallsRunOnce|TestRealClientsRepeat)$$' -v ./host/mcp

.PHONY: capacity
capacity: build ## what a call, session, identity, connection and module cost: the tables of docs/capacity.md
	TOOLD_CAPACITY=1 $(GO) test -count=1 -timeout 0 -run '^TestCapacity' -v ./host

UPGRADES ?= 100
.PHONY: upgrades
upgrades: ## UPGRADES (100) upgrades and reloads under 16 clients; fails if a call fails or runs twice
	TOOLD_UPGRADES=$(UPGRADES) $(GO) test -count=1 -timeout 0 -run '^TestUpgrades$$' -v ./cmd/toold

.PHONY: bench
bench: build ## the benchmarks that match BENCH (all)
	PATH="$$PATH:$${HOME:-/root}/.cargo/bin:$(CURDIR)/$(CACHE)/npm/node_modules/.bin" TOOLD_COSTS=1 $(GO) test -timeout 60m -run '^$$' -bench '$(BENCH)' -benchmem ./...

.PHONY: check
check: build ## gofmt, vet, staticcheck, the floors, schemas, CHANGELOG
	@GO='$(GO)' scripts/check

.PHONY: demo
demo: build ## a daemon, a remote, a push, a refusal, a hot swap: two minutes to see it
	@bin/toolctl demo

.PHONY: test-containers
test-containers: build ## the images, calls from hostile containers, and the first steps of the manual (as root, needs podman, podman-compose, runc and debootstrap)
	TOOLD_CONTAINERS=1 $(GO) test -count=1 -timeout 60m -run '^(TestContainers|TestNewOperator)$$' -v ./deploy

.PHONY: test-package
test-package: build ## the Debian package on fresh machines, with systemd and without (as root, needs podman, runc and debootstrap)
	TOOLD_PACKAGE=1 $(GO) test -count=1 -timeout 30m -run '^TestPackage$$' -v ./deploy

.PHONY: dist
dist: build ## archives, Debian packages, bills of materials and SHA256SUMS into .cache/dist
	@$(GO) run ./scripts/dist $(CACHE)/dist

DIST_CHECK ?= linux/amd64,linux/arm64,darwin/amd64,darwin/arm64
.PHONY: dist-check
dist-check: ## the release twice, for DIST_CHECK (every platform), in two folders, once from an empty cache; fails if a byte differs
	TOOLD_DIST='$(DIST_CHECK)' $(GO) test -count=1 -timeout 2h -run '^TestTwoFoldersGiveTheSame$$' -v ./scripts/dist

.PHONY: clean
clean: ## remove what was built and fetched
	rm -rf bin $(CACHE) $(wildcard tools.d/*/handler.wasm tools.d/*/restricted.wasm)

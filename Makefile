# Everything that there is to do here, from a fresh clone on: python3 (3.10 or later, with venv) and make are enough.
# A JDK of version 17 or later is used where there is one, else fetched.

PYTHON ?= python3
UV_VERSION := 0.13.8
BIN := .venv/bin
UV := build/uv-$(UV_VERSION)
JAVA_HOME_FILE := build/java-home

# What a target needs: the packages of a group of pyproject.toml, and Java with the jars where something runs.
DEMO := build/setup-demo.stamp
TEST := build/setup-test.stamp
LINT := build/setup-lint.stamp
DOCS := build/setup-docs.stamp
CAMPAIGNS := build/setup-campaigns.stamp

# The Java that the set-up found may have been removed since: then set up again.
ifeq ($(wildcard $(addsuffix /bin/java,$(shell cat $(JAVA_HOME_FILE) 2>/dev/null))),)
$(DEMO) $(TEST) $(CAMPAIGNS): again
endif
.PHONY: again

WITH_JAVA = JAVA_HOME="$$(cat $(JAVA_HOME_FILE))"

.DEFAULT_GOAL := help

.PHONY: help
help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "  make %-13s %s\n", $$1, $$2 }'

# Print a line every eight seconds until the recipe's shell ends, so that a long step shows its progress in a log, too.
SHOW_LIFE = @(while sleep 8 >/dev/null 2>&1 && kill -0 $$$$ 2>/dev/null; do echo "  still at it ..."; done) & \
  trap "kill $$!" EXIT; trap 'exit 130' INT TERM;

.PHONY: setup
setup: $(CAMPAIGNS) ## make .venv, find or fetch a JDK, download the jars; the others do what they need by themselves

# A pinned uv in a place of its own, so that neither the machine's Python nor the project's environment has it.
$(UV)/done:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || { \
	  echo "error: Python 3.10 or later is needed as '$(PYTHON)'; name another with 'make PYTHON=python3.12 ...'" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo "error: $(PYTHON) lacks venv; on Debian and Ubuntu install the package python3-venv" >&2; exit 1; }
	@echo "installing uv $(UV_VERSION) ..."
	$(SHOW_LIFE) rm -rf $(@D) && mkdir -p build && $(PYTHON) -m venv $(@D) && \
	  $(@D)/bin/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	@touch $@

# Every distribution with every extra; for the demonstration those that it shows.
PACKAGES = --all-packages --all-extras
$(DEMO): PACKAGES = --package twopc-core --package twopc-kafka --package twopc-kafka-broker --package twopc-files \
  --extra spark --extra cli

# --inexact: what another group has installed stays.
build/setup-%.stamp: $(UV)/done uv.lock pyproject.toml $(wildcard plugins/*/pyproject.toml)
	@echo "installing the packages of uv.lock for $* into .venv ..."
	$(SHOW_LIFE) $(UV)/bin/uv sync --quiet --locked --inexact $(PACKAGES) --no-default-groups --group $* \
	  --no-python-downloads --python "$$($(PYTHON) -c 'import sys; print(sys.executable)')"
	$(if $(filter $(DEMO) $(TEST) $(CAMPAIGNS),$@),$(SHOW_LIFE) $(BIN)/python -m twopc_kafka_broker --java-home-file $(JAVA_HOME_FILE))
	@touch $@

# pip splits PIP_FIND_LINKS at blanks; a URL has those of the path quoted.
WHEELS := build/wheels
.PHONY: wheels
wheels: $(UV)/done ## build a wheel of each distribution into build/wheels
	@rm -rf $(WHEELS)
	@$(UV)/bin/uv build --quiet --wheel --all-packages --out-dir $(WHEELS)
	@echo "built: $$(cd $(WHEELS) && ls *.whl | tr '\n' ' ')"
	@echo "For pip to find them, run:"
	@$(PYTHON) -c 'import pathlib; print("export PIP_FIND_LINKS=" + pathlib.Path("$(WHEELS)").resolve().as_uri())'

# A group of tests that shares a server stays on one worker. The suite mostly waits, so four workers keep two cores busy.
PYTEST = $(WITH_JAVA) $(BIN)/pytest --numprocesses 4 --dist loadgroup --no-loadscope-reorder

.PHONY: unit
unit: $(TEST) ## run the tests that need no server
	$(PYTEST) -m "not long and not server" $(ARGS)

.PHONY: test
test: $(TEST) ## run what gates a change; CHANGED=1: what a change touches; ARGS="-k name"
	$(PYTEST) -m "not long" $(if $(CHANGED),$$($(BIN)/python -m tests.support.touched $(CHANGED))) $(ARGS)

.PHONY: test-all
test-all: $(CAMPAIGNS) ## run every test; PART=1/4 runs a quarter
	TWOPC_KILLS= TWOPC_EXAMPLES=1000 $(PYTEST) $(if $(PART),--part $(PART)) $(ARGS)

.PHONY: lint
lint: $(LINT) ## check style, formatting, types, and which way imports point
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy $(wildcard twopc plugins/*/twopc_* tests docs/examples docs/site)
	$(BIN)/lint-imports

.PHONY: format
format: $(LINT) ## format the code and repair what ruff can repair
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

# What is silenced is Material's advice to look at its successor.
.PHONY: docs
docs: $(DOCS) ## build the documentation as a site into build/site; a broken link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

.PHONY: demo
demo: $(DEMO) ## Kafka to Kafka and Parquet, exactly once, through kills; ARGS="--writer librdkafka"
	$(WITH_JAVA) $(BIN)/python docs/examples/flights/demo.py $(ARGS)

.PHONY: demo-lake
demo-lake: $(CAMPAIGNS) ## Kafka to Kafka, Iceberg and Delta, exactly once, through kills; then DuckDB joins the three
	$(WITH_JAVA) $(BIN)/python docs/examples/flights/lake.py $(ARGS)

.PHONY: demo-cdc
demo-cdc: $(CAMPAIGNS) ## a change stream to Iceberg, Delta and PostgreSQL, exactly once, through kills; every row compared
	$(WITH_JAVA) PYTHONPATH=docs/examples/flights $(BIN)/python docs/examples/cdc/cdc.py $(ARGS)

.PHONY: simulate
simulate: $(CAMPAIGNS) ## run simulated schedules for SECONDS (600) and at most SEEDS; a report in build/simulation
	$(BIN)/python -m tests.campaigns simulation $(if $(SEEDS),--seeds $(SEEDS)) --seconds $(if $(filter file,$(origin SECONDS)),600,$(SECONDS))

.PHONY: mutants
mutants: $(CAMPAIGNS) ## show that the simulation and the contract of sinks catch every defect that is put into the code
	$(BIN)/python -m tests.campaigns simulation --mutants
	$(WITH_JAVA) $(BIN)/python -m tests.campaigns contract

.PHONY: model
model: $(CAMPAIGNS) ## check the specification of the protocol, and that it finds every defect put into it; a report in build/model
	$(WITH_JAVA) $(BIN)/python -m tests.campaigns model $(ARGS)

SECONDS ?= 300
SEED ?= 1
.PHONY: storm
storm: $(CAMPAIGNS) ## kill everything and fill disks for SECONDS (300), by SEED (1); lose nothing; ARGS="--writer librdkafka"
	$(WITH_JAVA) $(BIN)/python -m tests.campaigns storm --seconds $(SECONDS) --seed $(SEED) $(ARGS)

.PHONY: jepsen
jepsen: $(CAMPAIGNS) ## cut networks, pause and kill around three brokers for SECONDS (600), by SEED (1); a report in build/jepsen
	$(WITH_JAVA) $(BIN)/python -m tests.campaigns jepsen --seed $(SEED) --seconds $(if $(filter file,$(origin SECONDS)),600,$(SECONDS)) $(ARGS)

.PHONY: soak
soak: $(CAMPAIGNS) ## write small batches for SECONDS (600), with restarts; nothing may grow; a report in build/soak; ARGS="--sinks files"
	$(WITH_JAVA) $(BIN)/python -m tests.campaigns soak --seconds $(if $(filter file,$(origin SECONDS)),600,$(SECONDS)) $(ARGS)

.PHONY: prove-stores
prove-stores: $(CAMPAIGNS) ## kill a writer of files at every step on every store; a report in build/stores; ARGS="--stores versitygw minio" kills S3 servers
	$(BIN)/python -m tests.campaigns stores $(ARGS)

.PHONY: prove-tables
prove-tables: $(CAMPAIGNS) ## kill a query into Iceberg and Delta at every step and amid commits, and its servers; a report in build/tables
	$(WITH_JAVA) $(BIN)/python -m tests.campaigns tables $(ARGS)

.PHONY: prove-spark
prove-spark: $(CAMPAIGNS) ## kill Spark in every way that it writes; a report in build/spark
	$(WITH_JAVA) $(BIN)/python -m tests.campaigns spark --uv $(UV)/bin/uv $(ARGS)

.PHONY: prove-plugin
prove-plugin: $(CAMPAIGNS) ## install all wheels and the guide's sink into an empty environment, prove them there; a report in build/plugin
	$(WITH_JAVA) $(BIN)/python -m tests.campaigns plugin --uv $(UV)/bin/uv $(ARGS)

.PHONY: release-check
release-check: $(CAMPAIGNS) ## build all distributions, check what a release needs, install each alone; a report in build/release
	$(BIN)/python -m tests.campaigns release --uv $(UV)/bin/uv $(ARGS)

.PHONY: compat
compat: $(CAMPAIGNS) ## test each backend with the lowest and the newest versions that it allows; a report in build/compat; ARGS="--parts kafka"
	$(WITH_JAVA) $(BIN)/python -m tests.campaigns compat --uv $(UV)/bin/uv $(ARGS)

.PHONY: bench
bench: $(CAMPAIGNS) ## measure against peers in one run; QUICK=1 for a first look; a report in build/bench
	$(WITH_JAVA) UV=$(UV)/bin/uv $(BIN)/python -m tests.benchmarks $(if $(QUICK),--quick) $(ARGS)

.PHONY: clean
clean: ## remove .venv, build/ and the tools' caches; downloads stay in the cache folder
	rm -rf .venv build .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Everything that there is to do here, from a fresh clone on: python3 (3.10 or later, with venv) and make are enough.
# A JDK of version 17 or later is used where there is one, else fetched.

PYTHON ?= python3
UV_VERSION := 0.13.8
BIN := .venv/bin
STAMP := build/setup.stamp
JAVA_HOME_FILE := build/java-home

# The Java that the set-up found may have been removed since: then set up again.
ifeq ($(wildcard $(addsuffix /bin/java,$(shell cat $(JAVA_HOME_FILE) 2>/dev/null))),)
$(STAMP): again
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
setup: $(STAMP) ## make .venv, find or fetch a JDK, download the jars; the others do it by themselves

# A pinned uv in a place of its own, so that neither the machine's Python nor the project's environment has it.
build/uv-$(UV_VERSION)/done:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || { \
	  echo "error: Python 3.10 or later is needed as '$(PYTHON)'; name another with 'make PYTHON=python3.12 ...'" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo "error: $(PYTHON) lacks venv; on Debian and Ubuntu install the package python3-venv" >&2; exit 1; }
	@echo "installing uv $(UV_VERSION) ..."
	$(SHOW_LIFE) rm -rf $(@D) && mkdir -p build && $(PYTHON) -m venv $(@D) && \
	  $(@D)/bin/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	@touch $@

# Compiled once: what is run here starts hundreds of Pythons, and where none may keep what it compiles, each takes 2 s longer.
$(STAMP): build/uv-$(UV_VERSION)/done uv.lock pyproject.toml $(wildcard plugins/*/pyproject.toml)
	@echo "installing the packages of uv.lock into .venv ..."
	$(SHOW_LIFE) build/uv-$(UV_VERSION)/bin/uv sync --quiet --locked --all-packages --all-extras --no-python-downloads \
	  --compile-bytecode --python "$$($(PYTHON) -c 'import sys; print(sys.executable)')"
	$(SHOW_LIFE) $(BIN)/python -m twopc_kafka_broker --java-home-file $(JAVA_HOME_FILE)
	@touch $@

# pip splits PIP_FIND_LINKS at blanks; a URL has those of the path quoted.
WHEELS := build/wheels
.PHONY: wheels
wheels: build/uv-$(UV_VERSION)/done ## build a wheel of each distribution into build/wheels
	@rm -rf $(WHEELS)
	@build/uv-$(UV_VERSION)/bin/uv build --quiet --wheel --all-packages --out-dir $(WHEELS)
	@echo "built: $$(cd $(WHEELS) && ls *.whl | tr '\n' ' ')"
	@echo "For pip to find them, run:"
	@$(PYTHON) -c 'import pathlib; print("export PIP_FIND_LINKS=" + pathlib.Path("$(WHEELS)").resolve().as_uri())'

.PHONY: test
test: $(STAMP) ## run the tests, in about twenty minutes on two cores; ARGS="-k name" goes to pytest
	$(WITH_JAVA) $(BIN)/pytest -m "not long" --numprocesses 3 --dist loadfile --no-loadscope-reorder $(ARGS)

.PHONY: test-long
test-long: $(STAMP) ## run the tests that take a minute or more each
	$(WITH_JAVA) $(BIN)/pytest -m long --numprocesses 2 --dist load $(ARGS)

.PHONY: unit
unit: $(STAMP) ## run the tests that need neither Java nor a server; under a minute
	$(BIN)/pytest --numprocesses 3 --dist loadfile tests/unit $(ARGS)

.PHONY: lint
lint: $(STAMP) ## check style, formatting and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy $(wildcard twopc plugins/*/twopc_* tests docs/examples docs/site)

.PHONY: format
format: $(STAMP) ## format the code and repair what ruff can repair
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

# What is silenced is Material's advice to look at its successor.
.PHONY: docs
docs: $(STAMP) ## build the documentation as a site into build/site; a broken link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

.PHONY: demo
demo: $(STAMP) ## Kafka to Kafka and Parquet, exactly once, through kills; ARGS="--writer librdkafka"
	$(WITH_JAVA) $(BIN)/python docs/examples/flights/demo.py $(ARGS)

.PHONY: demo-lake
demo-lake: $(STAMP) ## Kafka to Kafka, Iceberg and Delta, exactly once, through kills; then DuckDB joins the three
	$(WITH_JAVA) $(BIN)/python docs/examples/flights/lake.py $(ARGS)

.PHONY: simulate
simulate: $(STAMP) ## run simulated schedules for SECONDS (600) and at most SEEDS; a report in build/simulation
	$(BIN)/python -m tests.campaigns simulation $(if $(SEEDS),--seeds $(SEEDS)) --seconds $(if $(filter file,$(origin SECONDS)),600,$(SECONDS))

.PHONY: mutants
mutants: $(STAMP) ## show that the simulation and the contract of sinks catch every defect that is put into the code
	$(BIN)/python -m tests.campaigns simulation --mutants
	$(WITH_JAVA) $(BIN)/python -m tests.campaigns contract

.PHONY: model
model: $(STAMP) ## check the specification of the protocol, and that it finds every defect put into it; a report in build/model
	$(WITH_JAVA) $(BIN)/python -m tests.campaigns model $(ARGS)

SECONDS ?= 300
SEED ?= 1
.PHONY: storm
storm: $(STAMP) ## kill everything and fill disks for SECONDS (300), by SEED (1); lose nothing; ARGS="--writer librdkafka"
	$(WITH_JAVA) $(BIN)/python -m tests.campaigns storm --seconds $(SECONDS) --seed $(SEED) $(ARGS)

.PHONY: jepsen
jepsen: $(STAMP) ## cut networks, pause and kill around three brokers for SECONDS (600), by SEED (1); a report in build/jepsen
	$(WITH_JAVA) $(BIN)/python -m tests.campaigns jepsen --seed $(SEED) --seconds $(if $(filter file,$(origin SECONDS)),600,$(SECONDS)) $(ARGS)

.PHONY: prove-stores
prove-stores: $(STAMP) ## kill a writer of files at every step on every store; a report in build/stores; ARGS="--stores versitygw minio" kills S3 servers
	$(BIN)/python -m tests.campaigns stores $(ARGS)

.PHONY: prove-tables
prove-tables: $(STAMP) ## kill a query into Iceberg and Delta at every step and amid commits, and its servers; a report in build/tables
	$(WITH_JAVA) $(BIN)/python -m tests.campaigns tables $(ARGS)

.PHONY: prove-spark
prove-spark: $(STAMP) ## kill Spark in every way that it writes; a report in build/spark
	$(WITH_JAVA) $(BIN)/python -m tests.campaigns spark --uv build/uv-$(UV_VERSION)/bin/uv $(ARGS)

.PHONY: prove-plugin
prove-plugin: $(STAMP) ## install all wheels and the guide's sink into an empty environment, prove them there; a report in build/plugin
	$(WITH_JAVA) $(BIN)/python -m tests.campaigns plugin --uv build/uv-$(UV_VERSION)/bin/uv $(ARGS)

.PHONY: release-check
release-check: $(STAMP) ## build all distributions, check what a release needs, install each alone; a report in build/release
	$(BIN)/python -m tests.campaigns release --uv build/uv-$(UV_VERSION)/bin/uv $(ARGS)

.PHONY: bench
bench: $(STAMP) ## measure against peers in one run; QUICK=1 for a first look; a report in build/bench
	$(WITH_JAVA) UV=build/uv-$(UV_VERSION)/bin/uv $(BIN)/python -m tests.benchmarks $(if $(QUICK),--quick) $(ARGS)

.PHONY: clean
clean: ## remove .venv, build/ and the tools' caches; downloads stay in the cache folder
	rm -rf .venv build .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# brokerd: `make` alone lists what there is. Needs Python 3.11+, and Java 17+ for what runs Spark; the rest is set up here.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
GEN    := .venv-gen
LOWEST := .venv-lowest
DOCS   := .venv-docs
# Some more processes than there are cores (tests/conftest.py); what shares a Spark session or a broker stays together. PYTEST_ARGS="-n 0": one process.
PYTEST := -m pytest -q -n auto --maxprocesses 8 --dist loadgroup

# Python compiles what it imports; pip would compile all of it, which takes longer than to unpack it.
PIP    := -m pip install --quiet --no-compile

.DEFAULT_GOAL := help
.PHONY: environments source-runs source-runs-planted exactly-once transactions replication replicated-transactions dist docs reference release-check sweep powercut chaos-planted chaos-cluster chaos-network test-lowest quick coverage help setup links java gen demo test test-long check bench attacks chaos fuzz clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

setup: $(VENV)/.ready $(GEN)/.ready links  ## make .venv with everything in it, and .venv-gen with the protobuf compiler

# $(1): the extras to install.
define environment
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; set PYTHON=... to one" >&2; exit 1; }
@echo "installing brokerd with PySpark in $(VENV): a download of half a gigabyte"
$(PYTHON) -m venv $(VENV)
$(BIN)/python $(PIP) --editable '.[$(1)]'
endef

# Links are no reason to install again.
$(VENV)/.ready: pyproject.toml | links
	$(call environment,dev)
	@touch $(VENV)/.user $@

# For users, without what only developers need.
$(VENV)/.user: pyproject.toml | links
	$(call environment,spark)
	@touch $@

$(GEN)/.ready: pyproject.toml
	$(PYTHON) -m venv $(GEN)
	$(GEN)/bin/python $(PIP) "$$($(PYTHON) tests/support/requirements.py gen)"
	@touch $@

$(DOCS)/.ready: pyproject.toml
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python $(PIP) $$($(PYTHON) tests/support/requirements.py docs)
	@touch $@

# brokerd itself is not installed here, and what only checks the code neither: the tests see the checkout (PYTHONPATH).
$(LOWEST)/.ready: pyproject.toml
	$(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python $(PIP) $$($(PYTHON) tests/support/requirements.py --lowest) $$($(PYTHON) tests/support/requirements.py test)
	@touch $@

environments: setup $(DOCS)/.ready $(LOWEST)/.ready  ## make all virtual environments; `make -j2` makes two at a time

# sink/ and datasource/ are the packages brokerd.sink and brokerd.datasource. Git keeps links that say so; a source distribution
# holds the folders alone, so the links are made there.
links:
	@test -e brokerd/sink || ln -s ../sink brokerd/sink
	@test -e brokerd/datasource || ln -s ../datasource brokerd/datasource

java:
	@command -v java >/dev/null 2>&1 || test -x "$$JAVA_HOME/bin/java" || { echo "Java 17 or newer is needed to run Spark, and pip cannot bring it: install a JDK (Debian: apt install openjdk-17-jre-headless) or set JAVA_HOME" >&2; exit 1; }

gen: setup  ## regenerate brokerd/wire/v1, brokerd/internode/v1 and brokerd/coordination/v3 from proto/
	$(BIN)/python proto/generate.py

demo: $(VENV)/.user java  ## run the main job: a broker, a Spark write, a Spark read; INPUT=file KEY=column for your own rows
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python examples/demo.py $(if $(INPUT),--input "$$INPUT") $(if $(KEY),--key "$$KEY") $(if $(ROWS),--rows "$$ROWS")

quick: setup  ## the tests of units and models, for while you work (less than a minute on two cores)
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python $(PYTEST) -m "not slow" tests/unit tests/model tests/test_repo.py $(PYTEST_ARGS)

# Spark has two processes of its own, each with a session that most of its tests share. Either run exits with 5 where PYTEST_ARGS
# leave it no test.
test: setup java  ## run the tests
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python $(PYTEST) --ignore tests/spark $(PYTEST_ARGS) || test $$? = 5
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pytest -q -n 2 --dist loadgroup -m "not long" tests/spark $(PYTEST_ARGS) || test $$? = 5

test-long: setup java  ## the same tests at twenty times the runs of what is random (an hour or more)
	BROKERD_TEST_SCALE=20 $(MAKE) --no-print-directory test PYTEST_ARGS='--timeout 7200 $(PYTEST_ARGS)'

# The test left out allows its child to write no file at all.
coverage: setup java  ## the share of each module's lines and branches that the tests run, the least covered first
	rm -f .coverage .coverage.*
	-PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m coverage run -m pytest -q tests/spark $(PYTEST_ARGS)
	-PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m coverage run $(PYTEST) --ignore tests/spark \
	  --deselect tests/integration/test_cli.py::test_doctor_that_cannot_write_names_the_data_directory $(PYTEST_ARGS)
	$(BIN)/python -m coverage combine --quiet
	$(BIN)/python -m coverage report --skip-covered --sort=cover

# What can differ by version: what is sent, encoded or stored by a library. What meets libraries through that alone, and Spark,
# whose lowest version is the newest, are left to `make test`.
LOWEST_TESTS := $(addprefix tests/unit/,client coordinator datasource partition producer record server sink storage wire) \
  tests/integration/server tests/integration/security --ignore tests/unit/producer/test_interrupts.py
test-lowest: $(LOWEST)/.ready links  ## the daemon over the wire, codecs and files, with the lowest versions that pyproject.toml allows
	PYTHONPATH="$(CURDIR)" PATH="$(CURDIR)/$(LOWEST)/bin:$$PATH" $(LOWEST)/bin/python $(PYTEST) $(LOWEST_TESTS) $(PYTEST_ARGS)

chaos: setup  ## the real daemon under load and faults, its history judged; SECONDS=1800 SEED=n KINDS=kill,cut; NODES=3: three nodes, three copies
	$(if $(filter-out 1 3,$(NODES))$(word 2,$(NODES)),$(error NODES is $(NODES), but must be 1, or 3: a cluster with three copies))
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m tests.chaos.$(if $(filter 3,$(NODES)),cluster --factor 3,run) --seconds $(or $(SECONDS),120) $(if $(SEED),--seed $(SEED)) $(if $(KINDS),--kinds $(KINDS))

chaos-cluster: setup  ## three real nodes under load, killed, suspended and cut off, their history judged; SECONDS=600 SEED=n KINDS=kill,outage FACTOR=3
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m tests.chaos.cluster --seconds $(or $(SECONDS),60) $(if $(SEED),--seed $(SEED)) $(if $(KINDS),--kinds $(KINDS)) $(if $(FACTOR),--factor $(FACTOR))

chaos-network: setup  ## three real nodes and a real etcd in network namespaces (needs root, etcd and nft), their network failing; SECONDS=600 SEED=n KINDS=loss,etcd-cut FACTOR=3
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m tests.chaos.network --seconds $(or $(SECONDS),300) $(if $(SEED),--seed $(SEED)) $(if $(KINDS),--kinds $(KINDS)) $(if $(FACTOR),--factor $(FACTOR))

exactly-once: setup java  ## drivers, tasks and brokers killed around a commit or at random, and what readers then see (half an hour); KILLS=100 SEED=n; NODES=3: three nodes, FACTOR=3 copies
	$(if $(filter-out 1 3,$(NODES))$(word 2,$(NODES)),$(error NODES is $(NODES), but must be 1, or 3: a cluster with FACTOR copies, by default three))
	$(if $(NODES),BROKERD_TEST_NODES=$(NODES)) $(if $(or $(FACTOR),$(filter 3,$(NODES))),BROKERD_TEST_FACTOR=$(or $(FACTOR),3)) $(if $(KILLS),BROKERD_TEST_KILLS=$(KILLS)) $(if $(SEED),BROKERD_TEST_SEED=$(SEED)) PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pytest -q tests/spark/exactly_once $(PYTEST_ARGS)

source-runs: setup java  ## streaming reads with random limits, splits and filters, driver and broker killed (half an hour); RUNS=50 SEED=n
	BROKERD_TEST_RUNS=$(or $(RUNS),50) $(if $(SEED),BROKERD_TEST_SEED=$(SEED)) PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pytest -q -s tests/spark/source_runs $(PYTEST_ARGS)

source-runs-planted: setup java  ## plant bugs into the source, one after another, and see that a dozen runs find each; SEED=n
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m tests.spark.source_runs.planted $(if $(SEED),--seed $(SEED))

transactions: setup  ## a hundred thousand random schedules of transactions on one node, each checked at every step; SCHEDULES=n
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m tests.model.long_transactions $(if $(SCHEDULES),--schedules $(SCHEDULES))

replication: setup  ## a hundred thousand random schedules of a replicated partition, each checked at every step; SCHEDULES=n
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m tests.model.long_replication $(if $(SCHEDULES),--schedules $(SCHEDULES))

replicated-transactions: setup  ## thirty thousand random schedules of transactions on replicated partitions, each checked at every step; SCHEDULES=n
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m tests.model.long_replicated_transactions $(if $(SCHEDULES),--schedules $(SCHEDULES))

fuzz: setup  ## a million hostile inputs at everything that a stranger can reach; INPUTS=n SEED=n
	$(BIN)/python -m tests.fuzz.run $(if $(INPUTS),--inputs $(INPUTS)) $(if $(SEED),--seed $(SEED))

sweep: setup  ## kill the real daemon at every call that changes its directory, and recover (half an hour); ONLY=restart:17 EVERY=10
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m tests.crash.sweep $(if $(ONLY),--only $(ONLY)) $(if $(EVERY),--every $(EVERY))

powercut: setup  ## cut the power of the daemon's disk (a loop device; needs root) under load, and recover; CUTS=40 SEED=n
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m tests.crash.powercut $(if $(CUTS),--cuts $(CUTS)) $(if $(SEED),--seed $(SEED))

chaos-planted: setup  ## plant bugs into the broker, one after another, and see that chaos and power cuts find each; SEED=n
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m tests.chaos.planted $(if $(SEED),--seed $(SEED))

check: setup  ## types, style, generated code and pages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python proto/generate.py --check
	$(BIN)/python docs/reference.py --check

reference: setup  ## write docs/reference/ from the code
	$(BIN)/python docs/reference.py

docs: $(DOCS)/.ready  ## build the documentation into site/; a broken link or an unlisted page is an error
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict

dist: setup  ## build the source distribution and the wheel into dist/
	rm -rf dist
	$(BIN)/python -m build --outdir dist

release-check:  ## TAG=vX.Y.Z: see that the tag is the version and that CHANGELOG.md has it
	@$(PYTHON) tests/support/release.py "$(TAG)"

bench: setup java  ## measure against the ceilings; tables on standard output, JSON in benchmarks/results
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m benchmarks.run $(BENCH_ARGS)

attacks: setup  ## an honest client beside an attacker, one kind of attack after another; ONLY="rapid reset" SECONDS=6
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m benchmarks.attacks $(if $(ONLY),--only "$(ONLY)") $(if $(SECONDS),--seconds $(SECONDS))

clean:  ## remove what the targets made
	rm -rf $(VENV) $(GEN) $(LOWEST) $(DOCS) site .mypy_cache .ruff_cache .pytest_cache build dist

# Everything runs in .venv, which the first call creates. Variables: make serve PORT=9000 RECIPES=recipes/h200
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help serve test check lint all-tests short-tests test-clients bench fuzz pictures gpu-acceptance fleet-acceptance starter lock clean install install-test

# Where the server listens, and its recipe files or folders, separated by spaces. The defaults are ROUNDHOUSE_HOST,
# ROUNDHOUSE_PORT and ROUNDHOUSE_RECIPES, else 127.0.0.1, 8000 and recipes/starter. An exported HOST is ignored, because
# some shells set it to the type of machine.
HOST :=
PORT ?=
RECIPES ?=
# More options of `roundhouse serve`, such as ARGS="--device-memory 20GiB".
ARGS ?=
# Options of pytest, such as PYTEST_ARGS="-k recipes -x".
PYTEST_ARGS ?=
# Test files that run at the same time, unless they share a server (tests/workers.py): 3, so that the cores are busy while
# tests wait, or one for each 7 GB of memory, because each may start a server of 4 GiB.
WORKERS ?= $(shell awk '/^MemTotal/ { n = int($$2 / 7e6); print (n < 1 ? 1 : n > 3 ? 3 : n) }' /proc/meminfo)
# cpu or cuda; by default cuda if there is an NVIDIA GPU.
ACCELERATOR ?=
# An interpreter of Python 3.11 or newer; by default the first one found.
PYTHON ?=
export ACCELERATOR PYTHON
# scripts/install only compiles the packages, so let Python store the byte code of Roundhouse itself.
unexport PYTHONDONTWRITEBYTECODE
BIN := .venv/bin

help: ## print this text
	@echo 'usage: make TARGET [VARIABLE=VALUE ...]'
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo 'variables: HOST=127.0.0.1 PORT=8000 RECIPES="recipes/starter" ARGS= PYTEST_ARGS= ACCELERATOR=cpu|cuda PYTHON='

serve: install ## start the server; Ctrl-C drains and stops it
	@exec $(BIN)/roundhouse serve $(if $(HOST),--host $(HOST)) $(if $(PORT),--port $(PORT)) $(addprefix --recipes ,$(RECIPES)) $(ARGS)

# Lint computes for a minute and tests often wait, so running both at once is faster. So is fetching clients meanwhile.
test: install-test ## ruff, mypy, import rules and all tests, real engines included
	@$(MAKE) --no-print-directory -j 3 lint all-tests test-clients

check: install-test ## for daily work: lint and the short tests without an engine
	@$(MAKE) --no-print-directory -j 2 lint short-tests

# Tests and their servers share the cores, so threads that wait for others of the same computation must not spin.
all-tests short-tests: export OMP_WAIT_POLICY ?= PASSIVE

test-clients: # other clients' packages; a test whose packages are missing installs them itself and reports errors
	@for name in models agents others langchain; do scripts/install-clients $$name; done >/dev/null 2>&1 || true

all-tests: # without lint
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup --no-loadscope-reorder $(PYTEST_ARGS)

short-tests: # those of tests/unit and tests/docs
	@$(BIN)/python -m pytest tests/unit tests/docs -m 'not real and not long' -n $(WORKERS) --dist loadgroup --no-loadscope-reorder $(PYTEST_ARGS)

lint: install-test ## ruff, mypy --strict and the layers' import rules
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

bench: install-test ## all benchmarks on the starter pack; results in benchmarks/results
	@scripts/install-clients infinity || echo 'continuing without the peer infinity-emb' >&2
	@scripts/install-clients routing || echo 'continuing without the peers of routing' >&2
	@$(BIN)/python -m benchmarks $(ARGS)

fuzz: install-test ## attack a real server for 30 minutes, during a stream that must not break; ARGS="--minutes 5"
	@$(BIN)/python -m tests.fuzz $(ARGS)

pictures: install-test ## recreate the screenshots of the console in docs; needs Chromium
	@scripts/pictures $(ARGS)

gpu-acceptance: install-test ## on a machine with a GPU: check results and measure speed; JSON in benchmarks/results
	@$(BIN)/python -m benchmarks.gpu.acceptance $(ARGS)

fleet-acceptance: install-test ## on a machine with 16 cores: measure a fleet's streams; JSON in benchmarks/results
	@$(BIN)/python -m benchmarks fleet_acceptance $(ARGS)

starter: install-test ## rebuild the starter models from their scripts (hours on a CPU)
	@PYTHONPATH=starter-training $(BIN)/python -m starter_training $(or $(ARGS),all)

lock: ## rewrite the pins in requirements/ from pyproject.toml
	@scripts/lock

clean: ## remove the environment and caches; the server's data stays
	rm -rf .venv .venv-* .clients-agents .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

install: # what the server needs
	@scripts/install run

install-test: # the same, and the tools for tests
	@scripts/install test

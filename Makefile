.DEFAULT_GOAL := help
.PHONY: help setup demo test test-crash test-matrix test-machine test-faults test-pgbouncer chaos scenarios bench bench-waiting check fmt wheel clean

BIN := .venv/bin
# The newest Python of at least 3.11 that can make a virtual environment.
PYTHON ?= $(shell for p in python3.14 python3.13 python3.12 python3.11 python3; do \
	$$p -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { echo $$p; break; }; done)
# More for pytest: make test ARGS="tests/unit -x"
ARGS ?=
PYTEST := $(BIN)/pytest --numprocesses auto --maxprocesses 8 --dist loadgroup

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: .venv/.installed ## Make .venv and install agentq with its tools into it (again only when pyproject.toml changes)

# Two stamps: the demo needs no test tools and is ready in half the time.
.venv/.installed: EXTRAS := embedded,dev
.venv/.runtime: EXTRAS := embedded

.venv/.installed .venv/.runtime: pyproject.toml
	@if [ -z "$(PYTHON)" ]; then \
	  for p in python3.14 python3.13 python3.12 python3.11 python3; do \
	    $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 || continue; \
	    echo "agentq: $$p cannot make a virtual environment; install its venv module (Debian, Ubuntu: apt-get install python3-venv) and run make again." >&2; exit 1; \
	  done; \
	  echo "agentq: no Python of at least 3.11 found; install one, or name it: make PYTHON=/path/to/python3 $(MAKECMDGOALS)" >&2; exit 1; \
	fi
	@$(BIN)/python -c '' 2>/dev/null || { echo "Making .venv with $(PYTHON)"; $(PYTHON) -m venv --clear .venv; }
	@echo "Installing agentq into .venv (a minute or two the first time)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$(EXTRAS)]'
	@touch $@

demo: .venv/.runtime ## Run an agent on two real workers, kill one of them, and watch the run go on
	@$(BIN)/agentq demo

test: setup ## Run the test suite (some of it: make test ARGS="tests/unit -x")
	@$(PYTEST) -m "not long" $(ARGS)

test-crash: setup ## Run only the tests that kill processes
	@$(PYTEST) -m "crash and not long" $(ARGS)

test-faults: setup ## Run what stops, starves and restarts servers, and what takes minutes (half an hour)
	@$(PYTEST) tests/faults $(ARGS)
	@$(PYTEST) -m long --ignore tests/faults $(ARGS)

test-pgbouncer: setup ## Run the test suite through a PgBouncer in transaction mode
	@AGENTQ_TEST_PGBOUNCER=1 $(PYTEST) -m "not long" $(ARGS)

test-matrix: setup ## Kill real workers at every point of a run in every way, with local steps and without (some ten minutes)
	@$(PYTEST) -m "matrix or crash" $(ARGS) tests/crash
	@AGENTQ_LOCAL_STEPS=0 $(PYTEST) -m "matrix or crash" $(ARGS) tests/crash

# How long make chaos makes faults.
MINUTES ?= 15
chaos: setup ## Kill workers, broker and database under load, at random, for MINUTES=15, and audit what is left
	@$(BIN)/python -m tests.chaos --minutes $(MINUTES) $(if $(filter 15,$(MINUTES)),--report docs/reliability.md) $(ARGS)

# The moments of the kills are those of the seed that is printed: make scenarios ARGS="--seed 123"
scenarios: setup ## Approvals, threads, hooks, sub-agents, typed answers: 60 scenarios, a worker killed in each (ten minutes)
	@$(BIN)/python -m tests.scenarios $(ARGS)

# A failure is found again with the seed that is printed: make test-machine SEED=123
SEED := $(or $(SEED),$(shell od -An -N4 -tu4 /dev/urandom | tr -d ' '))
test-machine: setup ## Let everything happen to runs in random orders, for some ten minutes or more
	@echo "SEED=$(SEED)"
	@AGENTQ_TEST_MACHINE_EXAMPLES=500 $(BIN)/pytest tests/engine/test_state_machine.py --hypothesis-seed=$(SEED) $(ARGS)

# One work alone, which is printed only: make bench WORK=w1
WORK ?=
bench: setup ## Measure agentq beside what the machine can do at best (under 15 minutes; one work: WORK=w1)
	@$(BIN)/python -m benchmarks $(WORK) $(if $(WORK)$(ARGS),,--report docs/performance.md) $(ARGS)

bench-waiting: setup ## Measure what ten thousand threads cost that wait for a person, and how soon a decided one goes on
	@$(BIN)/python -m benchmarks.waiting $(ARGS)

check: setup ## Check format, lint, types and the layers of the architecture
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

fmt: setup ## Format the code and fix what the linter can fix
	$(BIN)/ruff check --fix-only
	$(BIN)/ruff format

wheel: setup ## Build the wheel and try it in a throwaway environment
	@rm -rf dist
	@$(BIN)/python -m build --wheel --no-isolation --outdir dist
	@dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && wheel=$$(ls "$$PWD"/dist/*.whl) && \
	  $(BIN)/python -m venv "$$dir/venv" && \
	  "$$dir/venv/bin/python" -m pip install --quiet --disable-pip-version-check "$$wheel" && \
	  cd "$$dir" && venv/bin/python -c 'import agentq, agentq_workers' && venv/bin/agentq --help >/dev/null && \
	  echo "$$wheel installs and agentq --help answers"

clean: ## Remove what these commands made, the virtual environment too
	@rm -rf .venv .agentq build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

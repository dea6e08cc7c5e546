# Two commands: `make demo` and `make test`; each does all the set-up, in .venv.
PYTHON ?= python3
BIN := .venv/bin
.DEFAULT_GOAL := help

# Hundreds of processes start, above all in the tests: without its bytecode each would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test test-long check bench bench-compare setup docs cluster-local clean-demo

help:
	@echo "make demo    set up, and run the quickstart on a sample data set (5 to 12 minutes on two cores)"
	@echo "make test    set up, check the code, and run the unit and integration tests, except those marked long"
	@echo "make test-long  the tests marked long, which make test leaves out"
	@echo "make check   format, lint, types, layers"
	@echo "make bench   the small form of every benchmark, six to eight minutes; adds a line of ratios to benchmarks/history.jsonl"
	@echo "make bench-compare  what dropped by more than 15% since the earlier runs on such a machine"
	@echo "make docs    write docs/reference.md anew from the settings"
	@echo "make cluster-local   a Ray cluster on this machine that grows with the work; Ctrl-C ends it"

setup: .venv/ready

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'raydense needs Python 3.11 or newer: make PYTHON=python3.12')"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@touch $@

demo: setup
	$(BIN)/raydense demo

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	@twice=$$(find tests -name 'test_*.py' -exec basename {} \; | sort | uniq -d); test -z "$$twice" || { echo "two test files have one name, pytest refuses the second: $$twice"; exit 1; }

# Three processes take one test file after another, each with one Ray for all of them; files that start Ray take longest and come first.
# Threads that wait for each other sleep: they would take the cores from the other processes.
PYTEST := $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder --durations=20
TESTS := tests/integration tests/unit

test test-long: export OMP_WAIT_POLICY := PASSIVE
test: check
	$(PYTEST) $(TESTS)

test-long: setup
	$(PYTEST) -m long $(TESTS)

bench: setup
	$(BIN)/python benchmarks/bench.py

bench-compare: setup
	@$(BIN)/python benchmarks/bench.py --compare

docs: setup
	$(BIN)/python docs/make_reference.py

cluster-local: setup
	@$(BIN)/python cluster/local.py

clean-demo:
	rm -rf demo

# Every target sets up .venv itself when it is missing, and reuses it when it is not.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PLUGINS := $(sort $(wildcard plugins/*/pyproject.toml))
DISTRIBUTIONS := core sdk $(dir $(PLUGINS))
INSTALLED := $(VENV)/.installed

.PHONY: demo test lint bench install clean

demo: $(INSTALLED)  ## Train the demo and show what it learnt
	$(BIN)/ptrl train examples/quickstart.toml

test: $(INSTALLED) lint  ## Lint, check types, run all tests
	$(BIN)/pytest

lint: $(INSTALLED)  ## ruff and mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python tests/typecheck.py

bench: $(INSTALLED)  ## Benchmarks, with peers in a venv of their own
	$(BIN)/python -m tests.benchmarks

install: $(INSTALLED)  ## Make .venv with everything in it

$(INSTALLED): constraints.txt pyproject.toml core/pyproject.toml sdk/pyproject.toml $(PLUGINS)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt $(foreach distribution,$(DISTRIBUTIONS),-e $(distribution)) -e '.[dev]'
	touch $@

clean:  ## Remove .venv, caches and runs
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis runs
	find . -name __pycache__ -prune -exec rm -rf {} +

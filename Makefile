# Every target makes its own .venv when there is none, and needs only Python 3.10+, make, a C compiler
# and the package index. `make help` lists the targets.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

# What to install for which target: the extras of pyproject.toml.
demo_extras := cli,plot,examples
dev_extras  := dev,cli,plot,examples,interop,onnx
docs_extras := docs,dev,plot,interop,onnx
bench_extras := bench
dist_extras := dist
# Other versions of PyTorch, each in an environment of its own: .venv-oldest and .venv-xla.
oldest_extras := dev,cli,plot,examples,interop,onnx
xla_extras := dev
xla_packages := torch-xla

one_process_per_core := --numprocesses auto --maxprocesses 8 --dist worksteal

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test test-oldest test-xla lint bench record docs dist clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.stamp-demo  ## train a recommender on ratings with holes, and draw what was learnt
	$(BIN)/maskgrad demo movielens

test: $(VENV)/.stamp-dev  ## run the tests, and every example in docstrings, README.md and docs/
	$(BIN)/python -m pytest $(one_process_per_core)

test-oldest: .venv-oldest/.stamp  ## run the tests on the oldest PyTorch that is supported; installs some gigabytes
	.venv-oldest/bin/python -m pytest $(one_process_per_core)

test-xla: .venv-xla/.stamp  ## run the tests on PyTorch/XLA, on the CPU; installs some gigabytes
	PJRT_DEVICE=CPU .venv-xla/bin/python -m pytest tests/xla

lint: $(VENV)/.stamp-dev  ## check style, types and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python -m pytest -q tests/unit/test_repository.py tests/unit/test_versions.py tests/unit/test_workflows.py

bench: $(VENV)/.stamp-bench  ## check results, then measure beside other libraries; ARGS=--quick is the short way
	$(BIN)/maskgrad bench --out benchmark-report $(ARGS)

record: $(VENV)/.stamp-bench  ## keep the last `make bench`: its numbers, and the tables and pictures made from them
	$(BIN)/python benchmarks/record.py benchmark-report

docs: $(VENV)/.stamp-docs  ## build the pages into docs/_build/html and run their examples
	$(BIN)/python -m sphinx -W --keep-going -n -q -b html docs docs/_build/html
	$(BIN)/python -m pytest -q docs README.md
	@echo "open docs/_build/html/index.html"

dist: $(VENV)/.stamp-dist  ## build wheel and sdist, and try each in an empty environment
	$(BIN)/python tests/packaging/try_distributions.py --constraint constraints.txt

clean:  ## remove what was built, but keep .venv and its like
	rm -rf build dist docs/_build docs/generated demo-report benchmark-report .coverage
	rm -rf __pycache__ .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests docs benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

NEW_ENOUGH := 'import sys; sys.exit("maskgrad needs Python 3.10 or newer: make PYTHON=python3.12 …" if sys.version_info < (3, 10) else 0)'

# `python -m venv` completes a directory that exists, so this is safe to repeat.
$(VENV)/.stamp-venv:
	@$(PYTHON) -c $(NEW_ENOUGH)
	$(PYTHON) -m venv $(VENV)
	@touch $@

# One stamp per set of extras; it is renewed when the dependencies change.
$(VENV)/.stamp-%: pyproject.toml constraints.txt | $(VENV)/.stamp-venv
	@echo "installing maskgrad[$($*_extras)] into $(VENV) (a minute or two the first time)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$($*_extras)]'
	@touch $@

# What constraints-NAME.txt names takes the place of the same in constraints.txt.
.venv-%/.stamp: pyproject.toml constraints.txt constraints-%.txt
	@$(PYTHON) -c $(NEW_ENOUGH)
	$(PYTHON) -m venv $(@D)
	@sed -n 's/^\([a-z-]*\)[=<].*/^\1[=<]/p' constraints-$*.txt > $(@D)/named
	@(grep -v -f $(@D)/named constraints.txt; cat constraints-$*.txt) > $(@D)/constraints.txt
	@echo "installing maskgrad[$($*_extras)] $($*_packages) into $(@D) (several minutes the first time)"
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check -c $(@D)/constraints.txt -e '.[$($*_extras)]' $($*_packages)
	@touch $@

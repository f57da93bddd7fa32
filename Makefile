# Every target makes its own .venv when there is none, and needs only Python 3.10+, make, a C compiler
# and the package index. `make help` lists the targets.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

# What to install for which target: the extras of pyproject.toml.
demo_extras := plot,examples
dev_extras  := dev,plot,examples,interop,onnx
docs_extras := docs,dev,plot,interop,onnx
bench_extras := bench
dist_extras := dist
# Other versions of PyTorch, each in an environment of its own.
xla_extras := dev
xla_packages := torch-xla
ecosystem_extras := dev,plot,examples,interop,ecosystem
# Without its dependencies: docs/how_do_i/large_tables.md.
ecosystem_alone := torchrec
wild_extras := dev,wild
minors := 2.12 2.13 2.14 2.15

one_process_per_core := --numprocesses auto --maxprocesses 8 --dist worksteal
# What is left to the full run is told in tests/effort.py. The same is run on every version of PyTorch.
which_versions = $(1)/bin/python -m maskgrad info
light_run := -m pytest --effort light $(one_process_per_core)

# Each of the many processes of the tests would compile every module again.
unexport PYTHONDONTWRITEBYTECODE
# Several processes share the cores: threads that wait must not keep one busy.
test test-all test-peers test-newest test-minors planted-faults: export OMP_WAIT_POLICY := PASSIVE

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PRECIOUS: .venv-2.%/.stamp-minor
.PHONY: help demo test test-all install-newest test-newest test-minors test-xla test-ecosystem test-peers fuzz lint bench steps sweep bench-gpu wild record docs look dist planted-faults clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.stamp-demo  ## measure what masks and sparse gradients change: one screen, a minute; ARGS=--all is the long way
	$(BIN)/python -m examples.tour $(ARGS)

test: $(VENV)/.stamp-dev  ## run what a change may break: every operation and law, few samples; all examples of the docs
	$(BIN)/python $(light_run)

test-all: $(VENV)/.stamp-dev  ## run all tests, with all samples
	$(BIN)/python -m pytest --effort full $(one_process_per_core) --ignore=tests/peers
	$(MAKE) test-peers

install-newest:
	@$(PYTHON) -c $(NEW_ENOUGH)
	$(PYTHON) -m venv .venv-newest
	.venv-newest/bin/python -m pip install --quiet --disable-pip-version-check --upgrade --upgrade-strategy eager -e '.[$(dev_extras)]'

test-newest: install-newest  ## `make test` on whatever pip installs today, PyTorch and all others; installs some gigabytes
	@$(call which_versions,.venv-newest)
	.venv-newest/bin/python $(light_run)

test-minors: $(minors:%=test-%)  ## `make test` on each supported version of PyTorch; `make test-2.12` is one of them

test-2.%: .venv-2.%/.stamp-minor
	@$(call which_versions,$(<D))
	$(<D)/bin/python $(light_run)

planted-faults: $(VENV)/.stamp-dev  ## plant 200 faults, one at a time, and see which ones the tests notice; an hour or two; ARGS=--resume goes on
	$(BIN)/python -m tests.planted_faults $(ARGS)

test-xla: .venv-xla/.stamp  ## run the tests on PyTorch/XLA, on the CPU; installs some gigabytes
	PJRT_DEVICE=CPU .venv-xla/bin/python -m pytest tests/xla

test-ecosystem: .venv-ecosystem/.stamp  ## run MaskedTensors through twenty other packages; installs some gigabytes
	@$(call which_versions,.venv-ecosystem)
	.venv-ecosystem/bin/python -m pytest tests/ecosystem

test-peers: $(VENV)/.stamp-dev  ## compare operations of numpy.ma, pandas, SciPy, torch.masked and others with ours: docs/proof.md
	$(BIN)/python -m pytest --effort full $(one_process_per_core) tests/peers

fuzz: $(VENV)/.stamp-dev  ## a million random programs of operations, views and writes; hours. ARGS='--number 10000' is the short way
	$(BIN)/python -m tests.random_programs $(ARGS)

lint: $(VENV)/.stamp-dev  ## check style, types and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/zizmor --quiet --offline --min-severity medium .github
	$(BIN)/python -m pytest -q tests/unit/test_repository.py tests/unit/test_versions.py tests/unit/test_workflows.py

bench: $(VENV)/.stamp-bench  ## check results, then measure beside other libraries; ARGS=--quick is the short way
	$(BIN)/python -m benchmarks --out benchmark-report $(ARGS)

steps: $(VENV)/.stamp-bench  ## seventeen training steps beside the last tag's; ARGS='--against COMMIT'; some minutes
	$(BIN)/python -m benchmarks.steps $(ARGS)

sweep: $(VENV)/.stamp-bench  ## everyday lines at ten shapes beside the safe line by hand; ten minutes
	$(BIN)/python -m benchmarks.sweep $(ARGS)

bench-gpu: $(VENV)/.stamp-bench  ## on a machine with a GPU: each formula, compiled, beside itself and a copy; ten minutes
	$(BIN)/python -m benchmarks.gpu $(ARGS)

wild: .venv-wild/.stamp  ## the doctor on models of transformers and other packages: docs/in_the_wild.md; installs some gigabytes
	.venv-wild/bin/python -m benchmarks.wild run --out benchmarks/results/wild.jsonl
	.venv-wild/bin/python -m benchmarks.wild page

record: $(VENV)/.stamp-bench  ## keep the last `make bench`: its numbers, and the tables and pictures made from them
	$(BIN)/python -m benchmarks.record benchmark-report

# All of them anew (-E): an index of some pages only would lose the keywords of the others.
docs: $(VENV)/.stamp-docs  ## build the pages into docs/_build/html, follow their links and ask their search; `make test` runs their examples
	$(BIN)/python -m sphinx -E -W --keep-going -n -q -b html docs docs/_build/html
	$(BIN)/python docs/links.py
	$(BIN)/python docs/searches.py
	@echo "open docs/_build/html/index.html"

look: $(VENV)/.stamp-docs  ## after `make docs`: widths of all pages and summaries, in Chrome or Chromium
	$(BIN)/python docs/in_a_browser.py

dist: $(VENV)/.stamp-dist  ## build wheel and sdist, and try each in an empty environment
	$(BIN)/python tests/packaging/try_distributions.py --constraint constraints.txt

clean:  ## remove what was built, but keep .venv and its like
	rm -rf build dist docs/_build docs/generated demo-report tour-report flights-report benchmark-report .coverage
	rm -rf __pycache__ .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests docs benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

NEW_ENOUGH := 'import sys; sys.exit("maskgrad needs Python 3.10 or newer: make PYTHON=python3.12 …" if sys.version_info < (3, 10) else 0)'

# What pip says, on one line that is written over; all of it if it fails.
pip_install = -u -m pip install --progress-bar off --disable-pip-version-check
on_one_line = 2>&1; echo "pip ended with $$?"; } | awk '/^pip ended with / {code = $$4; next} {said = said $$0 "\n"; \
  sub(/^ +/, ""); printf "\r  %-90.90s", $$0; fflush()} END {printf "\r%92s\r", ""; if (code) printf "%s", said; exit code}'

# `python -m venv` completes a directory that exists, so this is safe to repeat.
$(VENV)/.stamp-venv:
	@$(PYTHON) -c $(NEW_ENOUGH)
	$(PYTHON) -m venv $(VENV)
	@touch $@

# One stamp per set of extras; it is renewed when the dependencies change.
$(VENV)/.stamp-%: pyproject.toml constraints.txt | $(VENV)/.stamp-venv
	@echo "installing maskgrad[$($*_extras)] into $(VENV) (a minute or two the first time)"
	@{ $(BIN)/python $(pip_install) -c constraints.txt -e '.[$($*_extras)]' $(on_one_line)
	@touch $@

# One minor version of PyTorch, beside what constraints.txt has of everything that does not depend on PyTorch's version.
.venv-2.%/.stamp-minor: pyproject.toml constraints.txt
	@$(PYTHON) -c $(NEW_ENOUGH)
	$(PYTHON) -m venv $(@D)
	@grep -vE '^(torch|triton|fbgemm-gpu-cpu)[=<]' constraints.txt > $(@D)/constraints.txt
	@echo "installing maskgrad[$(dev_extras)] with PyTorch 2.$* into $(@D) (several minutes the first time)"
	@{ $(@D)/bin/python $(pip_install) -c $(@D)/constraints.txt 'torch==2.$*.*' -e '.[$(dev_extras)]' $(on_one_line)
	@touch $@

# What constraints-NAME.txt names takes the place of the same in constraints.txt.
.venv-%/.stamp: pyproject.toml constraints.txt constraints-%.txt
	@$(PYTHON) -c $(NEW_ENOUGH)
	$(PYTHON) -m venv $(@D)
	@sed -n 's/^\([a-z-]*\)[=<].*/^\1[=<]/p' constraints-$*.txt > $(@D)/named
	@(grep -v -f $(@D)/named constraints.txt; cat constraints-$*.txt) > $(@D)/constraints.txt
	@echo "installing maskgrad[$($*_extras)] $($*_packages) into $(@D) (several minutes the first time)"
	@{ $(@D)/bin/python $(pip_install) -c $(@D)/constraints.txt -e '.[$($*_extras)]' $($*_packages) $(on_one_line)
	$(if $($*_alone),$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -c $(@D)/constraints.txt $($*_alone))
	@touch $@

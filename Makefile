# Thin: the work is in scripts/, CMake and pyproject.toml.
#   TORCH=2.15.0    another torch than the pinned one      PYTHON=python3.12  another Python
#   FULL=1          every row of make bench                TORCHES='2.11.0 2.15.0' PYTHONS='python3.11'  what make wheel serves
#   ARGS='...'      passed on to what the target runs      JOBS=4             parallel compilations
PYTHON ?= python3
JOBS ?= $(shell nproc)
# Python tests beside each other; each worker needs 2 GB, and its tests have two to four ranks.
WORKERS = $(shell echo $$(($(JOBS) < 4 ? $(JOBS) : 4)))
export TORCH PYTHON
export PATH := $(CURDIR)/.venv/bin:$(PATH)
# What a target needs is built, and nothing else: $(compile) TARGET...
compile = @scripts/build release $(JOBS)

.PHONY: help setup build train docs wheel test-wheel test test-setup test-cpp test-python test-ray test-gpu gpu asan tsan fuzz bench bench-gpu soak lint format clean

help: ## list the targets
	@awk -F':.*## ' '/^[a-z -]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' Makefile

setup: ## install torch and the tools into .venv, C++ headers into .deps
	@scripts/setup

build: setup ## build the library, the program (build/bin/fairshard) and the Python extension
	$(compile) fairshard-cli fairshard_python

wheel: ## make one wheel in dist/ for torch 2.11 to 2.15 and Python 3.10 to 3.13 (TORCHES, PYTHONS: for others)
	@scripts/setup wheel
	@JOBS=$(JOBS) scripts/wheel '$(TORCHES)' '$(PYTHONS)'

test-wheel: TORCHES := $(or $(TORCHES),2.11.0 2.15.0)
test-wheel: PYTHONS := $(PYTHON)
test-wheel: test-setup wheel ## make a wheel for PYTHON, and run quick tests with it beside each torch of TORCHES
	@for torch in $(TORCHES); do scripts/test-wheel $$torch --numprocesses $(WORKERS) $(ARGS) || exit 1; done

train: setup ## train a small byte-level GPT on two local ranks, let it write, and make a report
	$(compile) fairshard-cli
	@rm -rf build/train && mkdir build/train
	@build/bin/fairshard train --ranks 2 --steps 800 --lr 2e-3 --save build/train --log build/train/run.jsonl $(ARGS)
	@build/bin/fairshard sample build/train --prompt 'def '
	@build/bin/fairshard report build/train/run.jsonl -o build/train/report.html

# Packages for tests are fetched while the first programs compile.
test: setup ## run every test
	@scripts/build release $(JOBS) fairshard-cli fairshard_tests & building=$$!; \
	  scripts/setup test docs; fetched=$$?; wait $$building && exit $$fetched
	@$(MAKE) --no-print-directory test-cpp test-python

test-setup:
	@scripts/setup test docs

test-cpp: test-setup ## run the C++ tests; those over NCCL where there are GPUs for two ranks
	$(compile) fairshard-cli fairshard_tests
	@cd tests/python && python -c 'from support.ranks import require_gpus; require_gpus()' 2>/dev/null; \
	  ctest --test-dir $(CURDIR)/build --parallel $(JOBS) --output-on-failure $$([ $$? = 0 ] || echo -LE nccl) $(ARGS)

test-python: test-setup ## run the Python tests
	$(compile) fairshard-cli fairshard_python fairshard_examples
	@scripts/docs
	@python -m pytest tests/python --numprocesses $(WORKERS) --dist worksteal $(ARGS)

test-ray: ## install Ray (500 MB) and run an example on it, of which a worker is killed
	@scripts/setup test ray
	$(compile) fairshard_python
	@python -m pytest tests/ray $(ARGS)

gpu: test-setup
	@cd tests/python && python -c 'from support.ranks import require_gpus; require_gpus()'

test-gpu: gpu ## run just the tests that compute on a GPU, with ranks over NCCL; fails where there is none
	$(compile) fairshard-cli fairshard_python fairshard_tests fairshard_examples
	@ctest --test-dir build --output-on-failure -L 'gpu|nccl'
	@python -m pytest tests/python -m gpu $(ARGS)

asan tsan: setup ## run the C++ tests under address+undefined or thread sanitizers
	@scripts/build $@ $(JOBS) fairshard_tests
	@ctest --test-dir build-$@ --output-on-failure -L sanitize $(ARGS)

fuzz: setup ## fuzz the readers of checkpoints for a minute (clang)
	@scripts/fuzz 60 $(ARGS)

docs: ## make the site in build/docs: pages, Python and C++ reference
	@scripts/setup docs
	@scripts/docs

bench: setup ## measure us and the peers (FULL=1: every row), and write the pages of figures anew
	$(compile) fairshard-cli fairshard_python fairshard_benchmarks
	@scripts/setup bench
	@.venv-bench/bin/python benchmarks/run.py $(if $(FULL),--full) $(ARGS)

bench-gpu: setup ## the same for what needs a GPU
	$(compile) fairshard-cli fairshard_python fairshard_benchmarks
	@scripts/setup bench
	@.venv-bench/bin/python benchmarks/run.py --gpu $(ARGS)

soak: setup ## train 100,000 steps in each mode, and fail if anything grows (ARGS=...)
	$(compile) fairshard_python
	@python benchmarks/soak.py $(ARGS); found=$$?; python benchmarks/report.py && exit $$found

lint: ## check formatting, lint C++ and Python
	@scripts/setup lint
	@scripts/lint

format: ## rewrite C++ and Python files in the house format
	@scripts/setup lint
	@scripts/lint --fix

clean: ## remove what was built (keeps .venv and .deps)
	@rm -rf build build-* python/fairshard/_core*.so

# Everything runs from .venv, which `install` makes once. PYTHON and TORCH may be given: make test PYTHON=python3.12
PYTHON ?= python3
TORCH ?= torch==2.13.0
BIN := .venv/bin
INSTALLED := .venv/.installed

# Open MPI refuses to run as root without these two; for anybody else they mean nothing.
export OMPI_ALLOW_RUN_AS_ROOT := 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM := 1

.PHONY: help install demo test soak cover check bench clean

help:  ## this list
	@sed -n 's/^\([a-z]*\):.*## /make \1\t/p' $(MAKEFILE_LIST) | expand -t 16

install: $(INSTALLED)  ## make .venv with everything, once

# torch first, alone: its version decides triton's.
$(INSTALLED): pyproject.toml setup.py
	$(PYTHON) -c 'import sys; sys.exit("elche needs Python 3.10 or newer" if sys.version_info < (3, 10) else 0)'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install "$(TORCH)"
	$(BIN)/pip install -e ".[dev]"
	@touch $@

# --oversubscribe counts only where there are fewer cores than ranks.
demo: install  ## train on four ranks of unequal speed, beside lockstep training
	$(BIN)/mpirun -np 4 --oversubscribe --bind-to none $(BIN)/python examples/train_elche.py --speeds 1,1,2,4

test: install  ## every test but the long repeats
	$(BIN)/pytest -m "not soak"

soak: install  ## the long repeats
	$(BIN)/pytest -m soak --timeout 7200

cover: install  ## the tests, with the lines they miss
	$(BIN)/pytest -m "not soak" --cov --cov-report term-missing:skip-covered

# Types are checked on what a user gets: the outer folders are elche.kernels and elche.mpi_launch only there.
check: install  ## lint, format, docstrings, types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pydoclint --quiet --config=pyproject.toml elche kernels mpi_launch
	rm -rf build
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --target build/types .
	cd build/types && ../../$(BIN)/mypy --config-file ../../pyproject.toml --cache-dir ../../.mypy_cache -p elche

bench: install  ## every benchmark, one after the other
	@set -e; for script in benchmarks/bench_*.py; do echo "== $$script"; $(BIN)/python $$script; done

clean:  ## remove .venv and all that was made here
	rm -rf .venv build *.egg-info .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

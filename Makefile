# Everything runs in .venv, which is created if it is missing or pyproject.toml has changed.
PYTHON ?= python3
BIN := .venv/bin

# Tests and commands start many processes, which should find their modules compiled
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup demo test test-slow test-floor test-wheel coverage fuzz check docs bench clean
setup: .venv/.ready

.venv/.ready: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "CARP needs Python 3.11 or newer: make PYTHON=python3.12 setup"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,bench]'
	@touch $@

demo: setup            ## train, evaluate and report on the embedded images
	$(BIN)/carp demo --out runs/demo

test: setup            ## the fast tests, one process per core
	$(BIN)/python -m pytest --numprocesses auto --dist loadfile --no-loadscope-reorder

test-slow: setup       ## the tests that take minutes
	$(BIN)/python -m pytest -m slow

test-floor:            ## the fast tests with the oldest dependencies that pyproject.toml allows
	$(PYTHON) -m venv .venv-floor
	.venv-floor/bin/python -m pip install --quiet --disable-pip-version-check uv
	.venv-floor/bin/uv pip install --quiet --resolution lowest-direct --python .venv-floor/bin/python --editable '.[dev,bench]'
	.venv-floor/bin/python -m pytest --numprocesses auto --dist loadfile --no-loadscope-reorder

test-wheel: setup      ## build the wheel, install it in clean environments, and use it there
	$(BIN)/python -m benchmarks.install

docs: setup            ## the documentation as a site, in build/site; a broken link is an error
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	$(BIN)/zensical build --strict

coverage: setup        ## branch coverage of the fast tests, in processes that they start too
	$(BIN)/python -m pytest --numprocesses auto --dist loadfile --no-loadscope-reorder --cov --cov-report term-missing:skip-covered

N ?= 10000
SEED ?= 0
fuzz: setup            ## damaged and hostile inputs against the command line: make fuzz N=10000 [SEED=0] [TARGET=images]
	$(BIN)/python -m tests.fuzz --inputs $(N) --seed $(SEED) $(addprefix --target ,$(TARGET)) --jobs $$(nproc)

check: setup           ## style, types, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup           ## time CARP against its peers
	$(BIN)/python -m benchmarks.head
	$(BIN)/python -m benchmarks.sources --quick
	$(BIN)/python -m benchmarks.views
	$(BIN)/python -m benchmarks.compare time --train embedded:shapes --test embedded:shapes-test

clean:
	rm -rf .venv .venv-floor build runs .mypy_cache .ruff_cache .pytest_cache .import_linter_cache

# What a newcomer needs: `make demo` and `make test`. Every target works in a fresh clone: it makes its own virtual
# environment in .venv and builds the Rust kernel in release mode; stamp files keep the second run fast.

PYTHON ?= python3
CARGO ?= cargo

ifeq ($(OS),Windows_NT)
$(error this Makefile needs a Unix shell; on Windows use WSL)
endif

VENV := .venv
PY := $(VENV)/bin/python
TOOLS := $(VENV)/.tools-installed
BUILDER := $(VENV)/.builder-installed
KERNEL := $(VENV)/.kernel-built

# rustup's default place is not on every PATH, and a login shell is not always what runs make.
export PATH := $(PATH):$(HOME)/.cargo/bin
# One interpreter for every build of the bindings: PyO3 recompiles whenever it changes.
export PYO3_PYTHON := $(CURDIR)/$(PY)
# pyright and its node come from the package index; these keep it from looking for newer ones or others.
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1
export PYRIGHT_PYTHON_GLOBAL_NODE := 0
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1

RUST_SOURCES := $(shell find rust -path '*/target' -prune -o \( -name '*.rs' -o -name 'Cargo.*' \) -print 2>/dev/null) \
                $(wildcard Cargo.toml Cargo.lock pyproject.toml rust-toolchain.toml)

# The stamp says when the kernel was built; without the file itself it says nothing.
ifeq ($(wildcard python/perdure/_core*.so),)
.PHONY: $(KERNEL)
endif

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-rust test-python simulate storms traces natural kill-loop bench bench-smoke wheel fuzz kernel clean
.PHONY: check check-format check-lint check-layers check-types check-stubs check-examples check-clippy

help: ## This list
	@echo "perdure: durable workflows for Python, replayed by a Rust kernel."
	@echo
	@sed -n 's/^\([a-z][a-z-]*\):[^#]*## \(.*\)/  make \1|\2/p' $(firstword $(MAKEFILE_LIST)) | awk -F'|' '{ printf "%-18s %s\n", $$1, $$2 }'
	@echo
	@echo "Needed: Python 3.11 or newer with pip, a Rust toolchain (cargo), make. Another Python: make PYTHON=python3.12 demo"

demo: $(KERNEL) ## Three orders on SQLite, a process killed half-way, and what came of them
	@$(PY) -m perdure.demo

test: test-rust test-python ## The Rust tests and the Python tests of both kernels

test-rust: $(BUILDER)
	@echo "==> Rust tests of the kernel core"
	@$(CARGO) test --quiet --locked --manifest-path rust/core/Cargo.toml

test-python: $(KERNEL) $(TOOLS)
	@echo "==> Python tests, both kernels"
	@$(PY) -m pytest --numprocesses auto --maxprocesses 4 -p no:benchmark

SEEDS ?= 10000
SEED ?= 0
simulate: $(KERNEL) ## Simulated worlds with everything that can go wrong: make simulate SEEDS=10000 [SEED=first]
	@echo "==> $(SEEDS) simulated worlds from seed $(SEED)"
	@$(PY) -m perdure.testing.simulation --seeds $(SEEDS) --first $(SEED)

STORE ?= sqlite
SECONDS ?= 60
RUNS ?= 1000
kill-loop: $(KERNEL) $(TOOLS) ## Workers killed all the time: make kill-loop STORE=sqlite|postgres SECONDS=60 [RUNS=1000]
	@PYTHONPATH=tests $(PY) -m worker.kill_loop --store $(STORE) --seconds $(SECONDS) --runs $(RUNS)

TRACES ?= 100
traces: $(KERNEL) $(TOOLS) ## Random traces through all four stores, no difference allowed: make traces TRACES=100
	@echo "==> $(TRACES) traces of store calls and $(TRACES) of engine calls"
	@TRACES=$(TRACES) $(PY) -m pytest --quiet --timeout=0 tests/stores/test_trace.py

STORMS ?= 100
storms: $(KERNEL) $(TOOLS) ## Schedulers, queues and workers that die, in virtual time: make storms STORMS=100
	@echo "==> $(STORMS) storms over each kind of queue"
	@STORM_SEEDS=$(STORMS) $(PY) -m pytest -q tests/dispatch/test_storms.py --timeout=0

PROGRAMS ?= 3000
natural: $(KERNEL) $(TOOLS) ## Natural async workflows in every way, with every change; both forms: make natural PROGRAMS=3000
	@echo "==> about sixty workflows at every place, every change of each, $(PROGRAMS) programs in both forms"
	@NATURAL=everywhere FORMS=$(PROGRAMS) $(PY) -m pytest --quiet --timeout=0 --numprocesses auto --maxprocesses 4 -p no:benchmark \
		tests/coroutine/test_natural.py tests/coroutine/test_mutations.py tests/coroutine/test_forms.py

# Cheap ones first; `make -k check` goes on after a failure and shows them all.
check: check-format check-lint check-layers check-types check-stubs check-examples check-clippy ## Formatting, lints, types, stubs and layers; changes nothing

check-format: $(TOOLS)
	@echo "==> rustfmt, ruff format"
	@$(CARGO) fmt --all --check
	@$(PY) -m ruff format --quiet --diff

check-lint: $(TOOLS)
	@echo "==> ruff"
	@$(PY) -m ruff check --quiet

check-layers: $(KERNEL) $(TOOLS)
	@echo "==> layers"
	@$(PY) -m pytest --quiet tests/test_layers.py

check-types: $(KERNEL) $(TOOLS)
	@echo "==> mypy --strict"
	@$(PY) -m mypy

check-stubs: $(KERNEL) $(TOOLS)
	@echo "==> stubtest of perdure._core"
	@test -f python/perdure/_core.pyi || { echo "python/perdure/_core.pyi is missing"; exit 1; }
	@MYPYPATH=python $(PY) -m mypy.stubtest perdure._core

check-examples: $(KERNEL) $(TOOLS)
	@echo "==> pyright strict on examples/"
	@$(PY) -m pyright --pythonpath $(PY)

check-clippy: $(BUILDER)
	@echo "==> clippy"
	@$(CARGO) clippy --quiet --locked --workspace --all-targets -- -D warnings

bench: $(KERNEL) $(TOOLS) ## The benchmarks, some minutes; writes benches/RESULTS.md
	@$(PY) -m benches.report

bench-smoke: $(KERNEL) $(TOOLS) ## The benchmarks with tiny rounds: do they still run and agree?
	@$(PY) -m benches.report --smoke

wheel: $(TOOLS) ## A release wheel in dist/
	@echo "==> building a wheel in release mode"
	@rm -f dist/*.whl
	@$(PY) -m maturin build --release --locked --quiet --out dist
	@ls dist/*.whl

fuzz: $(KERNEL) $(TOOLS) ## The tests of the two kernels with the deep Hypothesis profile; takes hours
	@echo "==> kernel tests, deep Hypothesis profile (Ctrl-C ends them)"
	@HYPOTHESIS_PROFILE=deep $(PY) -m pytest tests/kernel --timeout=0

kernel: $(KERNEL) ## Only build the Rust kernel into the source tree

clean: ## Remove everything the targets above made, .venv included
	rm -rf $(VENV) target dist demo-data .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
	rm -f python/perdure/_core*.so
	find python tests benches examples -name __pycache__ -type d -prune -exec rm -rf {} +

# --- what the targets stand on -----------------------------------------------------------------------------------------

# Debian splits ensurepip off Python; where it is missing, the pip that is there fills the environment from outside.
$(PY):
	@command -v $(PYTHON) >/dev/null || { echo "perdure needs Python 3.11 or newer, and there is no '$(PYTHON)'. Say which: make PYTHON=/path/to/python3.12"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "perdure needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) -V 2>&1). Say which: make PYTHON=python3.12"; exit 1; }
	@echo "==> making a virtual environment in $(VENV)"
	@rm -rf $(VENV)
	@if $(PYTHON) -c 'import ensurepip' 2>/dev/null; then $(PYTHON) -m venv $(VENV); \
	else $(PYTHON) -m venv --without-pip $(VENV) && $(PYTHON) -m pip --quiet --python $(PY) install pip; fi

# What building and running takes; the linters and type checkers are a larger download that `make demo` does not need.
$(BUILDER): requirements-dev.txt | $(PY)
	@command -v $(CARGO) >/dev/null || { echo "perdure builds its kernel with Rust, and there is no '$(CARGO)'. Install it from https://rustup.rs and try again."; exit 1; }
	@echo "==> installing the build tool and the runtime dependencies"
	@grep -E '^(maturin|orjson|msgspec|typer|rich)' requirements-dev.txt > $(VENV)/builder.txt
	@$(PY) -m pip install --quiet --requirement $(VENV)/builder.txt
	@touch $@

$(TOOLS): requirements-dev.txt $(BUILDER)
	@echo "==> installing the tools of test, check and bench (requirements-dev.txt)"
	@$(PY) -m pip install --quiet --requirement requirements-dev.txt
	@touch $@

# An old file for another ABI would be preferred by the import system, so it goes first.
$(KERNEL): $(BUILDER) $(RUST_SOURCES)
	@echo "==> building the Rust kernel in release mode (a minute or two the first time)"
	@rm -f python/perdure/_core*.so
	@VIRTUAL_ENV="$(CURDIR)/$(VENV)" $(PY) -m maturin develop --release --locked
	@touch $@

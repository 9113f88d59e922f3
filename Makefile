# `make run` shows the seed programs fused; `make test` checks everything. Both make their own
# virtual environment from pinned requirements, and neither needs a compiler.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp

.PHONY: run test bench clean

run: $(STAMP)
	$(BIN)/python -m benchmarks.run

# Against eager and Inductor, the latter with a C++ compiler if there is one. Some of it:
#   make bench BENCH="--only softmax,rope --peers eager"
bench: $(STAMP)
	$(BIN)/python -m benchmarks $(BENCH)

test: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest --numprocesses 2 --dist worksteal

$(STAMP): requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "tofuse needs Python 3.10 or newer; name one with PYTHON=/path/to/python3" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --requirement requirements.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	find src -name '*.egg-info' -type d -prune -exec rm -rf {} +

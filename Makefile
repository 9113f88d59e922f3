# `make run` shows the seed programs fused; `make test` checks everything. Both make their own
# virtual environment from pinned requirements, and neither needs a compiler.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp

# The environment of `make test-torch TORCH=2.15.0`: the pinned packages around another PyTorch,
# which brings its own Triton and limits setuptools.
TORCH_VENV := .venv-torch-$(TORCH)
TORCH_STAMP := $(TORCH_VENV)/.stamp

# Frameworks for the examples: of `make test`, and of `make integrations`.
FRAMEWORKS_SITE := .venv-frameworks
FRAMEWORKS_STAMP := $(FRAMEWORKS_SITE)/.stamp

# llama.cpp and OpenVINO, for `make language-models`.
PEERS_SITE := .venv-peers
PEERS_STAMP := $(PEERS_SITE)/.stamp

# mkdocs, for the site: of `make docs`, and of `make test`, which opens it.
DOCS_VENV := .venv-docs
DOCS_STAMP := $(DOCS_VENV)/.stamp

# timm and torchvision, for `make models`.
MODELS_SITE := .venv-models
MODELS_STAMP := $(MODELS_SITE)/.stamp

.PHONY: run check test test-torch bench opinfo gpu-check models fuzz distributed start stale never-slower gradients integrations language-models docs clean

run: $(STAMP)
	$(BIN)/python -m benchmarks.run

# Against eager and Inductor, the latter with a C++ compiler if there is one. Some of it:
#   make bench BENCH="--only softmax,rope --peers eager"
bench: $(STAMP)
	$(BIN)/python -m benchmarks $(BENCH)

test: $(STAMP) $(FRAMEWORKS_STAMP) $(DOCS_STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest --numprocesses 2 --dist worksteal

# For each commit: one test of most files. `make test` runs all of these, and the long ones.
check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest --numprocesses 2 --dist worksteal --brief

# Every sample of torch's operator database against eager, into docs/coverage.md: hours on two cores,
# half of them for 4 pooling operators. With SAMPLES=64 the large cases run 64 samples each. It goes on
# where it was stopped. Some of it: make opinfo SHARD=1/4 ONLY=gelu JOBS=1 SUITE="--fresh"
opinfo: $(STAMP)
	SAMPLES=$(SAMPLES) $(BIN)/python -m suites.opinfo --shard $(or $(SHARD),1/1) --only "$(ONLY)" $(addprefix --jobs ,$(JOBS)) $(SUITE)

# Random programs against eager, float64 and other options; a failing one is printed, made small.
#   make fuzz SECONDS=3600 JOBS=1 SUITE="--canaries end"
fuzz: $(STAMP)
	$(BIN)/python -m suites.fuzz --seconds $(or $(SECONDS),600) $(addprefix --jobs ,$(JOBS)) $(SUITE)

# The machine code of GPU kernels, compiled without a GPU, against suites/gpu/table.txt: 10 minutes.
# Some of it: make gpu-check ONLY=softmax. After a change on purpose: make gpu-check SUITE=--accept
gpu-check: $(STAMP)
	$(BIN)/python -m suites.gpu_check --only "$(ONLY)" $(addprefix --jobs ,$(JOBS)) $(SUITE)

# Training on 2 and 4 ranks against eager and Inductor, into docs/distributed.md: 20 minutes. Some of it:
#   make distributed ONLY=tensor
distributed: $(STAMP)
	$(BIN)/python -m suites.distributed --jobs 1 --only "$(ONLY)" $(SUITE)

# First steps of new processes against eager and Inductor, into docs/start.md: minutes.
start: $(STAMP)
	$(BIN)/python -m suites.start --jobs 1 --only "$(ONLY)" $(SUITE)

# Programs of which one thing changes between two processes, against eager: a quarter of an hour for 2,000.
#   make stale SUITE="--programs 500 --background"
stale: $(STAMP)
	$(BIN)/python -m suites.stale $(SUITE)

# A hundred programs, forward and training, on one thread and two: the worst ratios of time and of peak
# memory to eager. A quarter of an hour. Some of it: make never-slower ONLY=softmax SUITE=--fresh
never-slower: $(STAMP)
	$(BIN)/python -m suites.never_slower --jobs 1 --only "$(ONLY)" $(SUITE)

# 300 functions and their gradients at three sizes, compiled, against eager: the worst ratios. Half an hour.
gradients: $(STAMP)
	$(BIN)/python -m suites.gradients --jobs 1 --only "$(ONLY)" $(SUITE)

# The suite on another release of PyTorch, which may be a build of several GB.
test-torch: $(TORCH_STAMP)
	$(TORCH_VENV)/bin/python -m pytest --numprocesses 2 --dist worksteal

# Models of transformers and timm against eager and float64, into docs/models.md. It goes on where
# it was stopped. Some of it, or the times of first steps instead:
#   make models ONLY=bert SHARD=1/2 JOBS=1; make models SUITE=--time JOBS=1
models: $(STAMP) $(MODELS_STAMP)
	PYTHONPATH=$(MODELS_SITE) $(BIN)/python -m suites.models --timeout 900 --shard $(or $(SHARD),1/1) --only "$(ONLY)" $(addprefix --jobs ,$(JOBS)) $(SUITE)

# The examples of frameworks, timed against eager and Inductor, into docs/integrations.md.
integrations: $(STAMP) $(FRAMEWORKS_STAMP) $(MODELS_STAMP)
	PYTHONPATH=$(FRAMEWORKS_SITE):$(MODELS_SITE) $(BIN)/python -m suites.integrations --jobs 1 --only "$(ONLY)" $(SUITE)

$(FRAMEWORKS_STAMP): requirements-frameworks.txt $(STAMP)
	$(BIN)/python -m pip install --quiet --no-deps --upgrade --target $(FRAMEWORKS_SITE) --requirement requirements-frameworks.txt
	@touch $@

# Tokens a second and fine-tuning of a Llama against eager, Inductor, llama.cpp and OpenVINO, into
# docs/language-models.md: half an hour. Some of it: make language-models ONLY=tokens/int4
language-models: $(STAMP) $(PEERS_STAMP)
	PYTHONPATH=$(PEERS_SITE) $(BIN)/python -m suites.language_models --jobs 1 --only "$(ONLY)" $(SUITE)

$(PEERS_STAMP): requirements-language-models.txt $(STAMP)
	$(BIN)/python -m pip install --quiet --no-deps --upgrade --target $(PEERS_SITE) --requirement requirements-language-models.txt
	@touch $@

# The documentation as a site, into build/site.
docs: $(DOCS_STAMP)
	NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/mkdocs build --quiet
	@echo build/site/index.html

$(DOCS_STAMP): requirements-docs.txt
	$(PYTHON) -m venv $(DOCS_VENV)
	$(DOCS_VENV)/bin/python -m pip install --quiet --requirement requirements-docs.txt
	@touch $@

# In a folder of their own: with torchvision there, transformers imports it everywhere.
$(MODELS_STAMP): requirements-models.txt $(STAMP)
	$(BIN)/python -m pip install --quiet --no-deps --upgrade --target $(MODELS_SITE) --requirement requirements-models.txt
	@touch $@

$(TORCH_STAMP): requirements.txt pyproject.toml
	@test -n "$(TORCH)" || { echo "name the release: make test-torch TORCH=2.15.0" >&2; exit 1; }
	$(PYTHON) -m venv $(TORCH_VENV)
	grep --extended-regexp --invert-match '^(torch|triton|setuptools)==' requirements.txt > $(TORCH_VENV)/requirements.txt
	$(TORCH_VENV)/bin/python -m pip install --quiet torch==$(TORCH) "setuptools>=77" --requirement $(TORCH_VENV)/requirements.txt
	$(TORCH_VENV)/bin/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

$(STAMP): requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "tofuse needs Python 3.10 or newer; name one with PYTHON=/path/to/python3" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --requirement requirements.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

clean:
	rm -rf $(VENV) .venv-torch-* $(MODELS_SITE) $(FRAMEWORKS_SITE) $(PEERS_SITE) $(DOCS_VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	find src -name '*.egg-info' -type d -prune -exec rm -rf {} +

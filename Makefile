PYTHON ?= python3.11
BIN := .venv/bin
READY := .venv/.ready

.PHONY: help setup test test-fast lint format protos serve load peers bench survival soak gpu-smoke zoo clean

help: ## what can be made here
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

setup: $(READY) ## a virtual environment with everything, versions pinned

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[serve,cpu,export,zoo,load,dev]'
	touch $@

test: lint ## lint, then every test
	$(BIN)/pytest

test-fast: lint ## lint, then the tests that take seconds
	$(BIN)/pytest -m 'not slow'

lint: $(READY) ## ruff and mypy
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(READY) ## let ruff rewrite what it can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

protos: $(READY) ## the Python stubs of the .proto files
	$(BIN)/python protos/generate.py

serve: $(READY) ## from nothing to serving: exports the models of the menu once, then answers
	$(BIN)/headwaiter menu export
	$(BIN)/headwaiter serve deploy/serve.yaml

models/%/1/int8/manifest.json: | $(READY)
	$(BIN)/headwaiter export $* --precision int8

SCENARIO ?= ramp steady burst cancel-storm
load: $(READY) ## load tests against the service that runs, 10 minutes; SCENARIO=soak and LOAD='--p95 500' choose; reports in build/load
	$(BIN)/python -m loadtest.scenarios $(SCENARIO) $(LOAD)

peers: $(READY) models/opus-mt-zh-en/1/int8/manifest.json ## beside other servers of the same models, hours, PEERS=--quick 15 minutes; results in loadtest/results
	$(BIN)/python -m loadtest.peers $(PEERS)

bench: .venv/.bench models/opus-mt-zh-en/1/int8/manifest.json models/opus-mt-zh-en/1/fp32/manifest.json ## the engine beside its peers, 20 minutes; results in loadtest/results
	$(BIN)/python -m loadtest.engine

.venv/.bench: $(READY)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	touch $@

models/%/1/fp32/manifest.json: | $(READY)
	$(BIN)/headwaiter export $*

survival: $(READY) ## nodes, replicas and the controller lost under load, as root, 6 minutes; writes deploy/RESULTS.md
	$(BIN)/pytest -n 0 -s tests/cluster --kills 20 --record

SOAK ?= --calls 100000
soak: $(READY) ## very many mixed calls, and whether replicas grow by them; writes deploy/RESULTS.md
	$(BIN)/headwaiter menu export
	$(BIN)/python -m loadtest.soak $(SOAK)

gpu-smoke: ## for a machine with a GPU: every model in fp16 on CUDA beside the CPU, answers and speed
	@command -v nvidia-smi > /dev/null || { echo 'There is no GPU here (no nvidia-smi); nothing was tried.'; exit 1; }
	$(MAKE) .venv-gpu/.ready
	LD_LIBRARY_PATH=$$(echo "$$PWD"/.venv-gpu/lib/python*/site-packages/nvidia/*/lib | tr ' ' ':') .venv-gpu/bin/python -m loadtest.gpu_smoke

.venv-gpu/.ready: pyproject.toml constraints.txt  # ONNX Runtime's CUDA build, which cannot be where the CPU's is
	$(PYTHON) -m venv .venv-gpu
	.venv-gpu/bin/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[serve,gpu,export]'
	touch $@

zoo: $(READY) ## train every architecture of the zoo, about an hour and a half; writes export/zoo/RESULTS.md
	$(BIN)/python -m export.zoo.results

clean: ## forget the environment and all caches; exported models stay
	rm -rf .venv .venv-gpu .pytest_cache .mypy_cache .ruff_cache *.egg-info

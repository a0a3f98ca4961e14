# The newest suitable Python on the path; PYTHON=… chooses another.
PYTHON ?= $(shell sh deploy/environments/find-python.sh)
BIN := .venv/bin
READY := .venv/.ready
# Sets up an environment of deploy/environments/definitions.py.
INSTALL = @test -n '$(PYTHON)' || { echo 'No suitable Python: install Python 3.11, 3.12 or 3.13 with its venv module (on Debian: apt install python3 python3-venv), or name one with PYTHON=….' >&2; exit 2; }; '$(PYTHON)' -m deploy.environments.install
GRPC_PORT ?= 9000
HTTP_PORT ?= 8000
METRICS_PORT ?= 8080

.PHONY: help setup test test-fast test-all lint format protos copy-graphs serve ports load peers bench fault-injection soak abuse gpu-smoke zoo resolve lock dist clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 25

setup: $(READY) ## create .venv with everything, versions pinned

$(READY): pyproject.toml constraints/dev.txt
	$(INSTALL) dev

resolve: $(READY) ## resolve every environment against the public registry, with the settings of this machine switched off
	$(BIN)/python -m deploy.environments.resolve

lock: $(READY) ## write constraints/*.txt anew, after a change of dependencies in pyproject.toml
	$(BIN)/python -m deploy.environments.resolve --lock

test: lint ## lint, then all tests but the slowest suites
	$(BIN)/pytest -m 'not slowest'

test-fast: lint ## lint, then the tests that are not marked slow
	$(BIN)/pytest -m 'not slow and not slowest'

test-all: lint ## lint, then every test, also zoo trainings and fault injection; what CI runs
	$(BIN)/pytest --durations 30

lint: $(READY) ## ruff, import-linter and mypy
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/mypy

format: $(READY) ## rewrite with ruff what can be rewritten
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

protos: $(READY) ## regenerate the Python stubs of the .proto files
	$(BIN)/python protos/generate.py

copy-graphs: $(READY) ## regenerate the ONNX graphs that copy device memory
	$(BIN)/python service/generate_copy_graphs.py

PORTS = --grpc-port $(GRPC_PORT) --http-port $(HTTP_PORT) --metrics-port $(METRICS_PORT)
serve: ports $(READY) ## set up, export the models of the menu once, and serve them
	@$(BIN)/headwaiter serve deploy/serve.yaml $(PORTS) --check-ports
	$(BIN)/headwaiter menu export
	$(BIN)/headwaiter serve deploy/serve.yaml $(PORTS)

# Before minutes are spent on a new environment; later `headwaiter serve --check-ports` knows of a service that runs.
ports:
	@test -f $(READY) || test -z '$(PYTHON)' || '$(PYTHON)' -m deploy.environments.ports GRPC_PORT=$(GRPC_PORT) HTTP_PORT=$(HTTP_PORT) METRICS_PORT=$(METRICS_PORT)

models/%/1/int8/manifest.json: | $(READY)
	$(BIN)/headwaiter export $* --precision int8

SCENARIO ?= ramp steady burst cancel-storm
load: $(READY) ## load tests against the running service, 10 minutes; SCENARIO=soak, LOAD='--p95 500'; reports in build/load
	$(BIN)/python -m loadtest.scenarios $(SCENARIO) $(LOAD)

peers: $(READY) models/opus-mt-zh-en/1/int8/manifest.json ## compare with other servers of the same models, hours (PEERS=--quick: 15 minutes); results in loadtest/results
	$(BIN)/python -m loadtest.peers $(PEERS)

bench: .venv/.bench models/opus-mt-zh-en/1/int8/manifest.json models/opus-mt-zh-en/1/fp32/manifest.json ## compare the engine with its peers, 20 minutes; results in loadtest/results
	$(BIN)/python -m loadtest.engine

.venv/.bench: $(READY)
	$(INSTALL) dev --extras bench --stamp .bench

models/%/1/fp32/manifest.json: | $(READY)
	$(BIN)/headwaiter export $*

fault-injection: $(READY) ## kill nodes, replicas and the controller under load, as root, 8 minutes; writes deploy/RESULTS.md
	$(BIN)/pytest -n 0 -s tests/cluster --kills 20 --record

SOAK ?= --calls 100000
soak: $(READY) ## 100,000 mixed requests; checks that replicas do not grow; writes deploy/RESULTS.md
	$(BIN)/headwaiter menu export
	$(BIN)/python -m loadtest.soak $(SOAK)

ABUSE ?= --requests 200000
abuse: $(READY) ## hostile behaviour beside good callers, 25 minutes; ABUSE='--only fuzz --requests 20000'; writes deploy/RESULTS.md
	$(BIN)/headwaiter menu export
	$(BIN)/python -m loadtest.abuse $(ABUSE)

gpu-smoke: ## for a machine with a GPU: every model in fp16 on CUDA compared with the CPU, answers and speed
	@command -v nvidia-smi > /dev/null || { echo 'There is no GPU here (no nvidia-smi); nothing was tried.'; exit 1; }
	$(MAKE) $(READY) .venv-gpu/.ready
	$(BIN)/python -m loadtest.gpu_packages
	LD_LIBRARY_PATH=$$(echo "$$PWD"/.venv-gpu/lib/python*/site-packages/nvidia/*/lib | tr ' ' ':') .venv-gpu/bin/python -m loadtest.gpu_smoke

# ONNX Runtime's CUDA build, which cannot be where the CPU build is; no torch, whose CUDA libraries are other versions.
.venv-gpu/.ready: pyproject.toml constraints/serve-gpu.txt
	$(INSTALL) serve-gpu

.venv-cpu/.ready: pyproject.toml constraints/serve-cpu.txt
	$(INSTALL) serve-cpu

zoo: $(READY) ## train every architecture of the zoo, about an hour and a half; writes export/headwaiter_export/zoo/RESULTS.md
	$(BIN)/python -m headwaiter_export.zoo.results

dist: $(READY) ## sdist and wheel in dist/, checked
	rm -rf dist
	$(BIN)/python -m build --quiet
	$(BIN)/twine check --strict dist/*

clean: ## remove environments and caches; exported models stay
	rm -rf .venv .venv-* .venv.lock .pytest_cache .mypy_cache .ruff_cache .import_linter_cache *.egg-info

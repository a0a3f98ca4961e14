PYTHON ?= python3.11
BIN := .venv/bin
READY := .venv/.ready

.PHONY: help setup test test-fast lint format serve bench clean

help: ## what can be made here
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

setup: $(READY) ## a virtual environment with everything, versions pinned

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[serve,cpu,export,dev]'
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

serve: $(READY) models/opus-mt-zh-en/1/int8/manifest.json ## export the default models; serving them is being built
	@echo 'The default models are exported: $(BIN)/headwaiter inspect models/opus-mt-zh-en'
	@echo 'Serving them over gRPC and HTTP is the next part to be built; nothing is listening yet.'

models/%/1/int8/manifest.json: | $(READY)
	$(BIN)/headwaiter export $* --precision int8

bench: $(READY) models/opus-mt-zh-en/1/int8/manifest.json models/opus-mt-zh-en/1/fp32/manifest.json ## the engine beside its peers; results in loadtest/results
	$(BIN)/python -m loadtest.engine

models/%/1/fp32/manifest.json: | $(READY)
	$(BIN)/headwaiter export $*

clean: ## forget the environment and all caches; exported models stay
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache *.egg-info

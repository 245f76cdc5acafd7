# Everything starts from a bare python3 (>= 3.10, with venv), a C++17 compiler and make; `make help` lists the targets.
# Every step is incremental: environments have stamps, the kernels' build decides by content.

PYTHON ?= python3
# The torch that is installed and built against; empty: install none (then name a torch package folder in TBE_AOT_TORCH).
TORCH ?= torch==2.13.0
# ci: a small matrix that covers every axis value; full: what ships. `make wheel` and `make audit` default to full.
PROFILE ?= $(if $(filter wheel audit,$(MAKECMDGOALS)),full,ci)
ARCHS ?= sm90,sm100
JOBS ?= $(shell nproc)
PYTEST_ARGS ?=

TAG := $(shell $(PYTHON) -c 'import sys; print("cp%d%d" % sys.version_info[:2])')
VENV := .venv/$(TAG)
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
ARTIFACTS := build/artifacts/$(PROFILE)
WHEELS := dist/$(PROFILE)
CLEAN := build/clean/$(TAG)

export TBE_AOT_PROFILE = $(PROFILE)
export TBE_AOT_ARCHS = $(ARCHS)
export TBE_AOT_JOBS ?= $(JOBS)
# The same sources give the same wheel, whenever it is built.
export SOURCE_DATE_EPOCH ?= $(or $(shell git log -1 --format=%ct 2>/dev/null),1767225600)

.DEFAULT_GOAL := help
.PHONY: help venv artifacts develop test lint format wheel audit demo bench clean distclean

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "$(PYTHON) is older than 3.10: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet pip==26.3

# torch goes first and alone: a CUDA build pins another triton than the build needs, and the later one wins.
$(VENV)/.torch-$(TORCH): | $(BIN)/python
	$(if $(TORCH),$(PIP) install --quiet '$(TORCH)')
	touch '$@'

$(VENV)/.build: pyproject.toml $(VENV)/.torch-$(TORCH)
	$(PIP) install --quiet --group build --group wheel
	touch $@

$(VENV)/.dev: $(VENV)/.build
	$(PIP) install --quiet --group dev
	touch $@

venv: $(VENV)/.dev ## the developer's environment, in .venv/

artifacts: $(VENV)/.build ## cubins, packs, manifest and generated code, in build/artifacts/
	$(BIN)/python -m aot_build build --specs kernel_specs --profile $(PROFILE) --archs $(ARCHS) --out $(ARTIFACTS)

develop: artifacts ## build the native parts into python/tbe_aot, so that the tree itself can be imported
	TBE_AOT_ARTIFACTS=$(ARTIFACTS) $(BIN)/python setup.py --quiet build_ext --inplace

test: $(VENV)/.dev develop ## every test that this machine can run, the wheel in a clean environment included
	$(BIN)/python -m pytest $(PYTEST_ARGS)

lint: $(VENV)/.dev ## what the commit hooks and CI check
	PATH="$(CURDIR)/$(BIN):$$PATH" pre-commit run --all-files --show-diff-on-failure

format: $(VENV)/.dev ## rewrite Python and C++ in the project's format
	$(BIN)/ruff format
	$(BIN)/ruff check --fix-only --quiet
	git ls-files '*.h' '*.cpp' | grep -v /golden/ | xargs -r $(BIN)/clang-format -i

clean: ## remove what was built; keep the cubin cache and the environments
	rm -rf build/artifacts build/lib* build/bdist* build/temp* build/clean dist python/tbe_aot/lib python/tbe_aot/_launcher*.so python/tbe_aot/_operator_rules.py

distclean: clean ## remove the cubin cache and the environments too
	rm -rf build .venv

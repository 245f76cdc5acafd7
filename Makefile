# Everything starts from a bare python3 (>= 3.10, with venv), a C++17 compiler and make; `make help` lists the targets.
# Every step is incremental: environments and wheels have stamps, the kernels' build decides by content.

PYTHON ?= python3
# The torch that is installed and built against. Empty: install none, and name an unpacked torch package in TBE_AOT_TORCH.
TORCH ?= torch==2.13.0
# ci: a small matrix that covers every axis value; full: what ships.
PROFILE ?= $(if $(filter wheel audit matrix bench,$(MAKECMDGOALS)),full,ci)
ARCHS ?= sm90,sm100
JOBS ?= $(shell nproc)
PYTEST_ARGS ?= -n $(JOBS) --dist loadfile
BENCH_ARGS ?= forward
# The Pythons of `make matrix`, e.g. "cp311 cp312"; empty: all.
BUILD ?=

TAG := $(shell $(PYTHON) -c 'import sys; print("cp%d%d" % sys.version_info[:2])')
VENV := .venv/$(TAG)
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
ARTIFACTS := build/artifacts/$(PROFILE)
MANIFEST := $(ARTIFACTS)/manifest.json
DIST := dist/$(PROFILE)
# What a wheel is made of besides the kernels.
SOURCES := setup.py pyproject.toml README.md LICENSE wheels/provenance.py $(shell find aot_build csrc_launcher licenses python -type f \
  -not -name '*.so' -not -name '*.pyc' -not -path '*/lib/*' -not -name _operator_rules.py 2>/dev/null)
# For the shell to expand; there is one per interpreter.
WHEEL := $(DIST)/*-$(TAG)-*.whl

export TBE_AOT_JOBS ?= $(JOBS)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help venv artifacts develop demo test wheel audit audit-accept audit-wheel bench gpu lint format sdist matrix clean distclean FORCE

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "$(PYTHON) is older than 3.10: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet pip==26.3

# torch goes first and alone: a CUDA build pins another triton than the build needs, and the later one wins.
$(VENV)/.with-$(TORCH): | $(BIN)/python
	$(if $(TORCH),$(PIP) install --quiet '$(TORCH)')
	rm -f $(VENV)/.with-* && touch '$@'

$(VENV)/.build: pyproject.toml $(VENV)/.with-$(TORCH)
	$(PIP) install --quiet --group build --group wheel
	touch $@

$(VENV)/.dev: $(VENV)/.build
	$(PIP) install --quiet --group dev
	touch $@

venv: $(VENV)/.dev ## the developer's environment, in .venv/

# Always asked, since aot_build knows what is stale; it writes the manifest only when something changed.
$(MANIFEST): $(VENV)/.build FORCE
	$(BIN)/python -m aot_build build --specs kernel_specs --profile $(PROFILE) --archs $(ARCHS) --out $(ARTIFACTS)

artifacts: $(MANIFEST) ## cubins, packs, manifest and generated code, in build/artifacts/

develop: $(MANIFEST) ## build the native parts into python/tbe_aot, so that the tree itself can be imported
	TBE_AOT_ARTIFACTS=$(CURDIR)/$(ARTIFACTS) $(BIN)/python setup.py --quiet build_ext --inplace

demo: $(DIST)/.$(TAG) ## look up and train the MLPerf DLRM v2 tables, from the wheel in a clean environment (ci profile)
	$(BIN)/python wheels/clean_env.py build/clean/$(TAG) $(WHEEL) --torch '$(TORCH)' -- python -m examples.dlrm_v2.demo

test: $(VENV)/.dev develop ## every test that this machine can run, the wheel in a clean environment included
	$(BIN)/python -m pytest $(PYTEST_ARGS)

wheel: $(DIST)/.$(TAG) ## the wheel for this interpreter, in dist/ (full profile)
	@ls -l $(WHEEL)

# The commit, for a wheel names it; written only when it is another.
build/revision: FORCE | $(BIN)/python
	@mkdir -p build && $(BIN)/python wheels/provenance.py > $@.now
	@if cmp -s $@.now $@; then rm $@.now; else mv $@.now $@; fi

$(DIST)/.$(TAG): $(MANIFEST) $(SOURCES) build/revision
	rm -rf build/wheel/$(TAG) $(DIST)/*-$(TAG)-*.whl
	TBE_AOT_ARTIFACTS=$(CURDIR)/$(ARTIFACTS) $(PIP) wheel --quiet . --no-build-isolation --no-deps -w build/wheel/$(TAG)
	$(BIN)/python wheels/repair.py build/wheel/$(TAG)/*.whl $(DIST)
	touch $@

audit: $(MANIFEST) ## verify the kernels and write the report, build/audit/*.html (full profile; AGAINST=build, SASS=variants)
	PYTHONPATH=python $(BIN)/python -m tbe_aot_audit verify $(ARTIFACTS)
	PYTHONPATH=python $(BIN)/python -m tbe_aot_audit info $(ARTIFACTS)
	PYTHONPATH=python $(BIN)/python -m tbe_aot_audit report $(ARTIFACTS) --out build/audit/$(PROFILE).html \
	  $(if $(AGAINST),--against $(AGAINST)) $(foreach variant,$(SASS),--sass $(variant))
	$(if $(filter ci,$(PROFILE)),PYTHONPATH=python $(BIN)/python -m tbe_aot_audit baseline $(ARTIFACTS) wheels/baseline/ci.json)

audit-accept: ## record the numbers of the small matrix as the baseline that CI compares with, after a wanted change
	$(MAKE) --no-print-directory artifacts PROFILE=ci
	PYTHONPATH=python $(BIN)/python -m tbe_aot_audit baseline build/artifacts/ci wheels/baseline/ci.json --accept

audit-wheel: $(VENV)/.build ## the audit alone as a pure wheel, in dist/: for laptops without torch
	$(BIN)/python -m wheels.audit_wheel dist

# Said before hundreds of kernels are compiled.
gpu: $(VENV)/.build
	@$(BIN)/python -c 'import sys, torch; sys.exit(None if torch.cuda.is_available() else "make bench needs a GPU and a CUDA build of torch: there is no CUDA device")'

bench: gpu develop ## the benchmarks; needs a GPU; BENCH_ARGS="backward --peer" for another one, beside FBGEMM (full profile)
	PYTHONPATH=python $(BIN)/python -m benchmarks $(BENCH_ARGS)

lint: $(VENV)/.dev ## what the commit hook and CI check
	PATH="$(CURDIR)/$(BIN):$$PATH" pre-commit run --all-files --show-diff-on-failure

format: $(VENV)/.dev ## rewrite Python and C++ in the project's format
	git ls-files '*.py' | xargs -r $(BIN)/ruff format
	$(BIN)/ruff check --fix-only --quiet
	git ls-files '*.h' '*.cpp' '*.cu' '*.cuh' | grep -v /golden/ | xargs -r $(BIN)/clang-format -i

sdist: $(VENV)/.build ## the sources as a package, in dist/
	rm -f dist/*.tar.gz
	$(BIN)/python -m build --quiet --sdist --no-isolation --skip-dependency-check --outdir dist

matrix: $(MANIFEST) sdist ## wheels for every Python through cibuildwheel: wheels/README.md
	$(PIP) install --quiet --group matrix
	$(BIN)/python wheels/matrix.py dist/*.tar.gz $(ARTIFACTS) $(DIST)/wheelhouse --torch '$(TORCH)' $(BUILD)

clean: ## remove what was built; keep the cubin cache and the environments
	rm -rf build/artifacts build/audit build/native build/lib* build/bdist* build/temp* build/wheel build/clean dist python/*.egg-info \
	  python/tbe_aot/lib python/tbe_aot/_launcher*.so python/tbe_aot/_operator_rules.py

distclean: clean ## remove the cubin cache and the environments too
	rm -rf build .venv

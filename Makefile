# Sets up, runs and checks Gangline. Needs Python 3.11 or newer and make, nothing else.
# make demo | test | lint | docs | e2e | test-frameworks | benchmarks | crds | image | clean

# python3.11 where it is, else the machine's python3; tools/bootstrap.py refuses one that is too old.
PYTHON ?= $(shell command -v python3.11 || command -v python3 || echo python3)
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

# Every package is pinned with the hashes of its files, except PyTorch: each platform has builds of its own.
# $(call locked,SECTION): install the sections of constraints.txt before SECTION.
locked = sed '/^\# section $(1)/,$$d' constraints.txt > $(VENV)/locked.txt \
  && $(PIP) install --quiet --require-hashes --no-deps --requirement $(VENV)/locked.txt
TORCH = $(shell sed -n 's/^\# \(torch==[^ ]*\).*/\1/p' constraints.txt)

.PHONY: help setup lock demo test test-unit test-integration lint docs e2e test-frameworks benchmarks crds image clean

help:
	@sed -n '2s/^# //p' Makefile

NATIVE := tools/build_native.py src/gangline/elastic/checkpoint/format/copy_summed.c

$(VENV)/.demo: pyproject.toml constraints.txt tools/bootstrap.py $(NATIVE)
	$(PYTHON) tools/bootstrap.py $(VENV)
	@echo "Fetching the packages of constraints.txt: about 100 MB"
	$(call locked,dev)
	$(BIN)/python tools/install_torch.py $(TORCH)
	$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.demo
	$(call locked,browser)
	@touch $@

$(VENV)/.browser: $(VENV)/.dev
	$(call locked,end)
	@touch $@

setup: $(VENV)/.dev

# After an upgrade in the environment: pin what is installed now.
lock: $(VENV)/.browser
	$(BIN)/python tools/lock.py constraints.txt

demo: $(VENV)/.demo
	@$(BIN)/gangline demo

# Integration tests mostly wait for processes: more workers than cores may pay off.
WORKERS ?= 2

# Unit tests first, also with make -j: the stages share the machine's processors.
.NOTPARALLEL: test

test: test-unit test-integration

test-unit: $(VENV)/.dev
	$(BIN)/python -m pytest -q --numprocesses 2 tests/unit

test-integration: $(VENV)/.dev
	$(BIN)/python -m pytest -q --numprocesses $(WORKERS) tests/integration tests/security

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --site-dir $(VENV)/site
	$(BIN)/python tools/render_manifests.py --check

# The site of the documentation, in site/.
docs: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

e2e: $(VENV)/.dev
	$(BIN)/python -m pytest -q tests/e2e

# Trains with the real frameworks, each in an environment of its own that is made here (docs/frameworks.md).
# make test-frameworks FRAMEWORKS="jax tensorflow" makes and tests these only.
FRAMEWORKS ?=
IMAGE_MAP := .cache/frameworks-image-map.yaml
CLIENTS := .cache/client-environments.json

test-frameworks: $(VENV)/.browser
	$(BIN)/python tools/framework_environments.py --image-map $(IMAGE_MAP) $(FRAMEWORKS)
	$(if $(FRAMEWORKS),,$(BIN)/python tools/client_environments.py --map $(CLIENTS))
	$(BIN)/python -m pytest -q --numprocesses $(WORKERS) --image-map $(IMAGE_MAP) --durations=0 \
	  $(if $(FRAMEWORKS),$(FRAMEWORKS:%=tests/frameworks/test_%.py),tests/frameworks)

benchmarks: $(VENV)/.dev
	$(BIN)/python -m benchmarks

crds: $(VENV)/.dev
	$(BIN)/python tools/generate_crds.py deploy/crds
	$(BIN)/python tools/render_manifests.py

# OCI images in build/images, without a daemon or a registry; needs a Debian machine.
image: $(VENV)/.dev
	$(BIN)/python tools/build_images.py build/images

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache

# Sets up, runs and checks Gangline. Needs Python 3.11 or newer and make, nothing else.
# make demo | test | test-all | release-check | lint | docs | test-site | test-dashboard | e2e | test-frameworks | benchmarks | crds | manifests | image | clean

# python3.11 where it is, else the machine's python3; tools/install.py refuses one that is too old.
PYTHON ?= $(shell command -v python3.11 || command -v python3 || echo python3)
VENV ?= .venv
BIN := $(VENV)/bin
# Some containers set it; without compiled modules each process of a test would compile its own again.
unexport PYTHONDONTWRITEBYTECODE

# Creates the environment and installs sections of constraints.txt, with a line for each step.
INSTALL := @"$(PYTHON)" tools/install.py $(VENV)

.PHONY: help setup lock test-versions demo test test-all test-unit release-check lint docs test-site test-dashboard e2e test-frameworks mutation benchmarks crds manifests image clean

help:
	@sed -n '2s/^# //p' Makefile

NATIVE := tools/build_native.py tools/fetch_assets.py src/gangline/elastic/checkpoint/format/copy_summed.c

INSTALLER := $(addprefix tools/,install.py pip_progress.py install_torch.py bootstrap.py)

$(VENV)/.demo: pyproject.toml constraints.txt $(INSTALLER) $(NATIVE)
	$(INSTALL) --gangline runtime build dashboard demo
	@touch $@

$(VENV)/.dev: $(VENV)/.demo
	$(INSTALL) dev brain brain-postgres brain-mysql initializer
	@touch $@

$(VENV)/.browser: $(VENV)/.dev
	$(INSTALL) browser
	@touch $@

$(VENV)/.docs: $(VENV)/.dev
	$(INSTALL) docs
	@touch $@

setup: $(VENV)/.dev
	@echo "Ready: . $(VENV)/bin/activate"

# Pins what pyproject.toml asks for, in versions that Python 3.11.0 takes; pins that still fit stay.
# make lock UPGRADE=--upgrade takes the newest, make lock UPGRADE="--upgrade-package NAME" those of one package.
UPGRADE ?=
EXTRAS := dashboard demo dev brain brain-postgres brain-mysql initializer browser docs
UV := $(BIN)/python tools/uv.py
RESOLVE := $(UV) pip compile --quiet --no-header --no-annotate pyproject.toml \
  --universal --python-version 3.11.0 --fork-strategy fewest

# One resolution of everything, then split: each section has what those before it have not.
lock: $(VENV)/.demo
	cp constraints.txt $(VENV)/lock.txt
	$(RESOLVE) --all-extras --group build --generate-hashes $(UPGRADE) --output-file $(VENV)/lock.txt
	for section in runtime build $(EXTRAS); do \
	  case $$section in runtime) names=--extra=cluster;; build) names=--group=build;; *) names=--extra=$$section;; esac; \
	  echo "# section $$section"; \
	  $(RESOLVE) --constraint $(VENV)/lock.txt $$names || exit 1; \
	done > $(VENV)/lock-sections.txt
	(echo '# Written by `make lock`: versions and hashes of what `make setup` installs.' && awk -F == ' \
	  FNR == NR { if (/^[a-z]/) name = $$1; lines[name] = lines[name] $$0 "\n"; next } \
	  /^#/ { print "\n" $$0 } \
	  !/^(#|torch=|triton=|nvidia-|cuda-)/ { printf "%s", lines[$$1]; delete lines[$$1] }' \
	  $(VENV)/lock.txt $(VENV)/lock-sections.txt) > $(VENV)/constraints.txt
	mv $(VENV)/constraints.txt constraints.txt

# Unit tests with other versions than the pinned ones: the lowest that pyproject.toml promises, or with
# RESOLUTION=highest the newest; with the Python OTHER_PYTHON, a version such as 3.13 or a path.
RESOLUTION ?= lowest-direct
OTHER_PYTHON ?= $(BIN)/python
OTHER := .venvs/$(RESOLUTION)
TESTS ?= tests/unit

test-versions: $(VENV)/.demo
	$(UV) venv --quiet --clear --no-python-downloads --python "$(OTHER_PYTHON)" $(OTHER)
	$(UV) pip install --quiet --python $(OTHER) --resolution $(RESOLUTION) \
	  --editable '.[dev,dashboard,brain,brain-postgres,brain-mysql]'
	$(UV) pip list --python $(OTHER)
	env -u PYTEST_ADDOPTS $(OTHER)/bin/python -m pytest -q --timeout 600 --override-ini cache_dir=.pytest_cache/$(RESOLUTION) \
	  --pythonwarnings default $(TESTS)

demo: $(VENV)/.demo
	@$(BIN)/gangline demo

# All unit tests, and a core of the integration tests (tests/core.py); test-all runs these completely.
STAGES := $(BIN)/python tools/stages.py $(AGAIN)

test test-all test-unit: $(VENV)/.dev
	$(STAGES) $(@:test-unit=unit)

# What a release needs beyond that, and records in .ci/stages.json; `.ci/tools all` installs the programs for it.
release-check: export GANGLINE_REQUIRE_DATABASES := 1
release-check: $(VENV)/.dev
	$(STAGES) release

lint: $(VENV)/.docs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --site-dir $(VENV)/site
	$(BIN)/python tools/generate_deploy.py --check

# The site of the documentation, in site/.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

e2e: $(VENV)/.dev
	$(BIN)/python -m pytest -q tests/e2e

# The site of the documentation in Debian's Chromium: search, labels, widths.
test-site: $(VENV)/.browser $(VENV)/.docs
	$(BIN)/python -m pytest -q --numprocesses 0 tests/documentation

# The dashboard's pages in Debian's Chromium: live, without script, by axe's rules of accessibility.
test-dashboard: $(VENV)/.browser
	$(BIN)/python -m pytest -q --numprocesses 0 tests/browser

# Trains with the real frameworks, each in an environment of its own that is made here (docs/frameworks.md).
# make test-frameworks FRAMEWORKS="jax tensorflow" makes and tests these only.
FRAMEWORKS ?=
IMAGE_MAP := .cache/frameworks-image-map.yaml
CLIENTS := .cache/client-environments.json

test-frameworks: $(VENV)/.browser
	$(BIN)/python tools/framework_environments.py --image-map $(IMAGE_MAP) $(FRAMEWORKS)
	$(if $(FRAMEWORKS),,$(BIN)/python tools/client_environments.py --map $(CLIENTS))
	$(BIN)/python -m pytest -q --numprocesses 2 --image-map $(IMAGE_MAP) --durations=0 \
	  $(if $(FRAMEWORKS),$(FRAMEWORKS:%=tests/frameworks/test_%.py),tests/frameworks)

benchmarks: $(VENV)/.dev
	$(BIN)/python -m benchmarks

# How many changes of the source its unit tests notice, by a sample: hours on a busy machine.
PACKAGES ?= operator checkpoint apiserver kubelet scheduler
MUTATION ?=

mutation: $(VENV)/.dev
	for package in $(PACKAGES); do \
	  VIRTUAL_ENV=$(VENV) $(UV) run --quiet --no-project --with mutmut==3.8.1 tools/mutation.py $$package $(MUTATION) \
	    || exit 1; done

# What deploy has of the package: CRDs, runtimes, alert rules and boards.
crds: $(VENV)/.dev
	$(BIN)/python tools/generate_deploy.py

# Plain manifests and kustomize bases in build/manifests, and the archive of them that a release publishes.
manifests: $(VENV)/.dev
	rm -rf build/manifests
	$(BIN)/python tools/render_manifests.py build/manifests
	tar -czf build/manifests.tar.gz -C build manifests

# OCI images in build/images, without a daemon or a registry; needs a Debian machine.
image: $(VENV)/.dev
	$(BIN)/python tools/build_images.py build/images

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache

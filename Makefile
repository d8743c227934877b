# make demo        install, build the kernels, train a small model, leave a report
# make test        lint, types, import layers and all tests
# make lint-hls    check that the kernel sources keep to what Vitis HLS can synthesise
# make bitstream   build what XRT loads: TARGET=csim (default) sw_emu hw_emu hw, PLATFORM=name or .xpfm
# make bench       run the benchmarks
# make bench-long  run them with more repetitions
# make policy      train the shipped placement policy from nothing
# make wheel       build the wheel into dist/
# make clean       remove the environment, what was built, and caches
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
export OMP_NUM_THREADS ?= 1
export HF_HUB_OFFLINE ?= 1
export TOKENIZERS_PARALLELISM ?= false

POLICY_RUN ?= runs/policy-$$(date +%Y%m%d-%H%M%S)

.PHONY: demo policy test lint lint-hls types layers format install csim bitstream prerequisites bench bench-long wheel clean help

help:
	@grep -E '^# make' Makefile | cut -c3-

demo: install csim
	@$(BIN)/ecorl run --config demo --set run_dir=runs/demo-$$(date +%Y%m%d-%H%M%S)

test: install lint lint-hls types layers
	$(BIN)/pytest -n 2 --dist loadgroup

prerequisites:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	  || { echo "ecorl needs Python 3.11 or later: set PYTHON=... (now: $$($(PYTHON) --version 2>&1 || echo none))"; exit 2; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null \
	  || { echo "ecorl needs Python's venv module (Debian: apt-get install python3-venv)"; exit 2; }
	@command -v $(firstword $(CXX)) >/dev/null \
	  || { echo "ecorl needs a C++17 compiler, g++ 11 or later (Debian: apt-get install g++); CXX=$(CXX)"; exit 2; }

install: prerequisites $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) (a few minutes the first time)"
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[strict,xrt,policy,bench,serve,dev]"
	@touch $@

csim: install
	@$(BIN)/python -c 'from ecorl.engines.fpga.csim.build import csim_library as c; print("C-simulation:", c("fast", progress=print))'

# CHECKS="csim cosim" simulates each kernel's test bench under Vitis as well.
TARGET   ?= csim
PLATFORM ?=
CHECKS   ?=
bitstream: install
	@$(BIN)/ecorl fpga bitstream --target "$(TARGET)" $(if $(PLATFORM),--platform "$(PLATFORM)") $(addprefix --check ,$(CHECKS))

lint: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/clang-format --dry-run --Werror $$(find hls_kernels -name '*.hpp' -o -name '*.cpp' -o -name '*.h')

lint-hls: install
	$(BIN)/python -m hls_kernels.lint

types: install
	$(BIN)/mypy

layers: install
	$(BIN)/lint-imports

format: install
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/clang-format -i $$(find hls_kernels -name '*.hpp' -o -name '*.cpp' -o -name '*.h')

bench: install csim
	$(BIN)/python -m benchmarks

bench-long: install csim
	$(BIN)/python -m benchmarks --long

policy: install
	@$(BIN)/ecorl policy train --folder $(POLICY_RUN) --out ecorl/scheduler/shipped/scheduler.onnx

wheel: install
	$(BIN)/python -m build --wheel --outdir dist .

clean:
	rm -rf $(VENV) dist build build_dir.* *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

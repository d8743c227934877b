# make demo        install, build the kernels, train a small model, leave a report
# make demo-carbon  a demo that waits for a clean window and pauses for a dirty one
# make demo-all    one run with everything: Ray, cards, placement, gears, widths, pauses
# make demo-ray    the demo over a Ray cluster of two nodes on this machine
# make quick       checks of what changed and the nearest tests that it reaches, 3 minutes: SINCE=REV
# make test        lint, types, import layers and all tests but the deep ones
# make test-all    the same with the deep ones: longer sweeps, and all commands of the pages
# make test-numpy1  tests of the rooms that need no framework, under NumPy before 2
# make test-openrlhf  tests with OpenRLHF itself on the CPU, in an environment that all clones share
# make test-roll   tests with ROLL itself on the CPU, from a checkout: ROLL_SRC=FOLDER
# make pages      run the commands of README.md and the pages beside the code, and renew their outputs
# make size        count what there is to read, and hold it against pyproject.toml
# make lint-hls    check that the kernel sources keep to what Vitis HLS can synthesise; DEEP=1: their recurrences too
# make bitstream   build what XRT loads: TARGET=csim (default) sw_emu hw_emu hw, PLATFORM=name or .xpfm
# make bench       run the benchmarks
# make bench-long  run them with more repetitions
# make gpu         measure what only a GPU shows: MINUTES=9, OUT=DIR, WHEELS=DIR, COMMIT=ID
# make gpu-wheels  fetch into WHEELS=DIR the packages that a GPU machine without a network lacks
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
# Each run of the tests would rewrite the asserts of all of them anew, for half a minute.
unexport PYTHONDONTWRITEBYTECODE

POLICY_RUN ?= runs/policy-$$(date +%Y%m%d-%H%M%S)

.PHONY: demo demo-carbon demo-all demo-ray gpu gpu-wheels policy test test-all quick test-numpy1 test-openrlhf test-roll pages checks size lint lint-hls types layers format install csim bitstream prerequisites bench bench-long wheel clean help

help:
	@grep -E '^# make' Makefile | cut -c3-

demo: install csim
	@$(BIN)/ecorl run --config demo --set run_dir=runs/demo-$$(date +%Y%m%d-%H%M%S)

demo-carbon: install
	@$(BIN)/ecorl run --config demo-carbon --set run_dir=runs/demo-carbon-$$(date +%Y%m%d-%H%M%S)

demo-all: install csim
	@$(BIN)/ecorl run --config demo-all --set run_dir=runs/demo-all-$$(date +%Y%m%d-%H%M%S)

demo-ray: install csim
	@$(BIN)/python -m roll_adapters.demo.two_machines --set run_dir=runs/demo-ray-$$(date +%Y%m%d-%H%M%S)

# A file's tests go to one worker, which makes what they share once; tests/conftest.py orders the files.
# More workers than two cores gain nothing: the trainings over several processes then wait for each
# other.
PYTEST := $(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder --durations=25
# The checks run beside each other; the tests take all cores.
test: install
	@$(MAKE) --no-print-directory -j 2 checks
	$(PYTEST) -m "not deep"

test-all: install
	@$(MAKE) --no-print-directory -j 2 checks
	HYPOTHESIS_PROFILE=all $(PYTEST)
	$(BIN)/python -m tests.pages.longer --deep

quick: install
	@$(BIN)/python -m tests.quick $(if $(SINCE),--since "$(SINCE)")

checks: types lint-hls lint layers size

# An environment of its own, with what these rooms import and no framework. ml_dtypes is what ONNX
# brings; its later releases want NumPy 2.
NUMPY1       := $(VENV)-numpy1
NUMPY1_STAMP := $(NUMPY1)/.installed
NUMPY1_PINS  := s/^numpy==.*/numpy==1.26.4/; s/^ml_dtypes==.*/ml_dtypes==0.5.4/
NUMPY1_NEEDS := filelock huggingface-hub jinja2 matplotlib numpy nvidia-ml-py onnx onnxruntime psutil \
  pydantic rich safetensors scipy tokenizers tomlkit typer hypothesis pytest pytest-timeout pytest-xdist
NUMPY1_ROOMS := $(addprefix tests/unit/,test_records.py test_edi.py config devices ledger runtime \
  scheduler sim stages telemetry)
# They need torch (test_shipped), or take long and are about processes rather than numbers.
NUMPY1_LEFT_OUT := scheduler/test_shipped.py ledger/test_ledger_survival.py telemetry/sampling/test_sampler.py
test-numpy1: prerequisites $(NUMPY1_STAMP)
	$(NUMPY1)/bin/pytest -n 2 --dist loadfile -m "not deep and not slow" $(NUMPY1_ROOMS) \
	  $(addprefix --ignore=tests/unit/,$(NUMPY1_LEFT_OUT))

$(NUMPY1_STAMP): pyproject.toml constraints.txt Makefile
	@test -x $(NUMPY1)/bin/python || $(PYTHON) -m venv $(NUMPY1)
	@sed '$(NUMPY1_PINS)' constraints.txt > $(NUMPY1)/constraints.txt
	@$(NUMPY1)/bin/pip install --quiet --disable-pip-version-check -c $(NUMPY1)/constraints.txt $(NUMPY1_NEEDS)
	@$(NUMPY1)/bin/pip install --quiet --disable-pip-version-check --no-deps -e .
	@touch $@

FRAMEWORKS := tests/frameworks
test-openrlhf: prerequisites
	PYTHON=$(PYTHON) $(FRAMEWORKS)/run.sh openrlhf -m pytest $(FRAMEWORKS)/openrlhf -m "not deep" --durations=15

# ROLL is in no registry: its checkout is named, put on the path, and nothing of it is built.
test-roll: prerequisites
	@test -f "$(ROLL_SRC)/roll/pipeline/rlvr/rlvr_pipeline.py" || { \
	  echo "make test-roll needs ROLL_SRC=<a checkout of ROLL 0.3.0> (now: '$(ROLL_SRC)')"; exit 2; }
	PYTHON=$(PYTHON) FRAMEWORK_SRC=$(abspath $(ROLL_SRC)) $(FRAMEWORKS)/run.sh roll \
	  -m pytest $(FRAMEWORKS)/roll -m "not deep" --durations=15

# The longer ones too; the tests and the benchmarks themselves are left out.
pages: install csim
	$(BIN)/python -m tests.pages.longer --write

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
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[strict,xrt,policy,bench,serve,carbon,gears,trl,ray,roll,dev]"
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
ifneq ($(DEEP),)
	$(BIN)/python -m hls_kernels.lint.recurrences
endif

types: install
	$(BIN)/mypy

layers: install
	$(BIN)/lint-imports

size: install
	@$(BIN)/python -m tests.size

format: install
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/clang-format -i $$(find hls_kernels -name '*.hpp' -o -name '*.cpp' -o -name '*.h')

# OpenRLHF's environment is made before the clock of any benchmark starts.
bench: install csim
	@$(FRAMEWORKS)/environment.sh openrlhf $(PYTHON) >/dev/null
	$(BIN)/python -m benchmarks

bench-long: install csim
	@$(FRAMEWORKS)/environment.sh openrlhf $(PYTHON) >/dev/null
	$(BIN)/python -m benchmarks --long

# The machine's own Python, with its own PyTorch: nothing is installed, and nothing set on the GPU.
MINUTES ?= 9
gpu:
	@$(PYTHON) -m benchmarks.gpu --minutes "$(MINUTES)" $(if $(OUT),--out "$(OUT)") \
	  $(if $(WHEELS),--wheels "$(WHEELS)") $(if $(COMMIT),--commit "$(COMMIT)")

gpu-wheels:
	@$(PYTHON) -m benchmarks.gpu.run.wheels "$(WHEELS)"

policy: install
	@$(BIN)/ecorl policy train --seed 2 --folder $(POLICY_RUN) --out ecorl/scheduler/shipped/scheduler.onnx

wheel: install
	$(BIN)/python -m build --wheel --outdir dist .

clean:
	rm -rf $(VENV) $(NUMPY1) dist build build_dir.* *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

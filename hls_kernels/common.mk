# Compiler flags of the C-simulation: the one place. ecorl/engines/fpga/csim/build.py reads the plain
# "NAME := words" lines of this file; the Makefiles include it.

# No -march: the library runs on any CPU of its architecture, and fast paths choose themselves at
# run time. Words of ap_int and plain integers lie in the same memory (no strict aliasing), and sums
# may wrap as they do on the card (-fwrapv); no floating point is computed here.
# Two warnings are false alarms on others' headers (ap_int's constructors, g++'s own intrinsics), and
# a third on vectors that only inlined functions return (-Wpsabi); labels name the loops for HLS.
# clang has no unique symbols and not the last two warnings, and knows none of their options.
CSIM_CXXFLAGS := -O3 -std=c++17 -fPIC -fno-strict-aliasing -fwrapv -Wall -Wextra -Wno-unknown-pragmas -Wno-unused-label
CSIM_FLAGS_gcc := -fno-gnu-unique -Wno-maybe-uninitialized -Wno-psabi
CSIM_FLAGS_clang :=
CSIM_LDFLAGS := -shared
CSIM_FLAGS_fast := -DECORL_CSIM=1 -DECORL_NATIVE=1
CSIM_FLAGS_strict := -DECORL_CSIM=1 -DECORL_STRICT=1 -Wno-uninitialized
# UBSan without shift: the ap_int headers shift negative numbers on purpose.
CSIM_SANITIZE := -O1 -g1 -fsanitize=address,undefined -fno-sanitize=shift -fno-sanitize-recover=undefined

# ---- test benches: a kernel's Makefile sets KERNEL and includes this file --------------------

ROOT := $(patsubst %/,%,$(dir $(lastword $(MAKEFILE_LIST))))
BUILD ?= strict
SANITIZE ?=
CXX ?= g++
PYTHON ?= python3
BUILD_DIR ?= $(ROOT)/../build/$(KERNEL)-$(BUILD)$(if $(SANITIZE),-sanitize)

ifeq ($(filter $(BUILD),strict fast),)
$(error BUILD = $(BUILD): allowed is strict or fast)
endif

# The ap_int headers: a folder made from the installed hls4ml, or AP_INCLUDE=<folder of your own>.
ifeq ($(BUILD),strict)
AP_INCLUDE ?= $(shell $(PYTHON) -c "from ecorl.engines.fpga.csim.build import ap_headers as f; print(f())")
TB_INCLUDES = -isystem $(AP_INCLUDE)
endif

COMPILER = $(if $(findstring clang,$(shell $(CXX) --version)),clang,gcc)
TB_FLAGS = $(CSIM_CXXFLAGS) $(CSIM_FLAGS_$(COMPILER)) $(CSIM_FLAGS_$(BUILD)) $(if $(SANITIZE),$(CSIM_SANITIZE))
TB_SOURCES = $(wildcard $(ROOT)/$(KERNEL)/*.cpp) $(wildcard $(ROOT)/sim/$(KERNEL)_*.cpp $(ROOT)/sim/dataflow*.cpp)

.PHONY: tb
tb: $(BUILD_DIR)/tb
	$(BUILD_DIR)/tb

$(BUILD_DIR)/tb: $(TB_SOURCES) $(wildcard $(ROOT)/*/*.hpp $(ROOT)/*/*.h)
	@mkdir -p $(BUILD_DIR)
	$(CXX) $(TB_FLAGS) -I$(ROOT)/include -I$(ROOT)/sim $(TB_INCLUDES) $(TB_SOURCES) -o $@

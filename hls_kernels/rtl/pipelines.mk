# Benches of the pipelines, one for each family: every pipeline is a Verilator model of its own, and a
# bench plays random operands through those of its family. Included by Makefile.
#
#   arithmetic    products over DSPs, shifts, quotients, trees over sixteen lanes
#   lanes         what a kernel does with one value (include/lane_functions.hpp, attention_lanes.hpp)
#   scalars       what it computes once a row (include/ecorl_fixed.hpp, ecorl_rows.hpp)
#   moves         words from memory to memory, and the control of a loop
#   group         the sixteen lanes of vector_ops' chain (vector_ops/chain.hpp)
#   benches       the benches; reference.hpp has the functions of the C-simulation
#
#   make pipelines [FAMILIES="lanes scalars"]
#                      the benches, in $(BUILD_DIR)/pipelines; each takes VECTORS SEED and prints
#                      a line of JSON for each pipeline: its latency and its mismatches
#   make synth_pipelines [NAMES="gate quotient"]
#                      ports and cell counts of yosys, in $(BUILD_DIR)/synth/NAME.ports and .json
FOLDERS := arithmetic lanes scalars moves group
PIPELINE_SOURCES := $(foreach folder,$(FOLDERS),$(wildcard $(ROOT)/$(folder)/*.sv))
PACKAGES := $(ROOT)/arithmetic/latency.sv $(ROOT)/group/operation.sv
ALL_SOURCES := $(PACKAGES) $(filter-out $(PACKAGES),$(PIPELINE_SOURCES)) $(SOURCES)
BENCHES := $(ROOT)/benches
PIPELINES_DIR := $(BUILD_DIR)/pipelines

MODELS_arithmetic := product narrow_product shift_left shift_right shifted maximum any_bit total peak \
  divide_factor divide_127 divide_mean divide_inverse divide_reward divide_heads
MODELS_lanes := dequantise fixed quantise exponential reciprocal gate norm rotate residual log_term \
  score weight accumulate
MODELS_scalars := room normalise times plus quantiser mean inverse_root make_fixed make_gate log2
MODELS_moves := move fifo bank skew control
MODELS_group := first_look second_look lane_group
FAMILIES ?= arithmetic lanes scalars moves group
MODELS := $(foreach family,$(FOLDERS),$(MODELS_$(family)))

# Modules with another name than their pipeline, and what they are made with.
MODULE_shifted := rounded_shift
MODULE_maximum := max_tree
MODULE_any_bit := or_tree
MODULE_total := sum_tree
MODULE_room := room_of
MODULE_fifo := weight_fifo
MODULE_bank := row_bank
MODULE_control := loop_control
$(foreach name,factor 127 mean inverse reward heads,$(eval MODULE_divide_$(name) := quotient))
WITH_divide_factor := N=30 D=15
WITH_divide_127 := N=31 D=7
WITH_divide_mean := N=62 D=20
WITH_divide_inverse := N=61 D=31
WITH_divide_reward := N=55 D=23
WITH_divide_heads := N=17 D=8
WITH_fifo := WIDTH=32 DEPTH=16
WITH_bank := STEPS=64
module = $(or $(MODULE_$(1)),$(1))

FIND := $(addprefix -y $(ROOT)/,$(FOLDERS)) -y $(ROOT)
VERILATOR_INCLUDE = $(or $(VERILATOR_ROOT),/usr/share/verilator)/include
BENCH_CXXFLAGS = -O1 -std=c++17 -fwrapv -pthread -Wall -Wextra -Wno-unused-label -Wno-unknown-pragmas \
  $(addprefix -I$(ROOT)/../,include sim vector_ops) -isystem $(VERILATOR_INCLUDE)
# Sixteen lanes in one model compile long, and are not played long.
OPTIMISED_group := -O0
RUNTIME := $(addprefix $(PIPELINES_DIR)/,verilated.o verilated_threads.o)

.PHONY: pipelines lint_pipelines synth_pipelines
pipelines: $(FAMILIES:%=$(PIPELINES_DIR)/%_tb)

lint_pipelines:
	@for source in $(filter-out $(PACKAGES),$(PIPELINE_SOURCES)); do \
	  $(VERILATOR) --lint-only -Wall $(FIND) --top-module $$(basename $$source .sv) $(PACKAGES) $$source \
	    || exit 1; done

# The models of a family are one translation unit: most of the compiler's time goes into headers.
define model_rule
$(PIPELINES_DIR)/$(1)/V$(2).h: $(ALL_SOURCES)
	@mkdir -p $$(@D)
	$(VERILATOR) --cc -Wall -O3 --x-assign unique --x-initial unique $(FIND) -Mdir $$(@D) --prefix V$(2) \
	  $(addprefix -G,$(WITH_$(2))) --top-module $(call module,$(2)) $(PACKAGES) \
	  $(filter %/$(call module,$(2)).sv,$(ALL_SOURCES))
endef
$(foreach family,$(FAMILIES),$(foreach model,$(MODELS_$(family)),\
  $(eval $(call model_rule,$(family),$(model)))))

define family_rule
$(PIPELINES_DIR)/$(1).o: $(MODELS_$(1):%=$(PIPELINES_DIR)/$(1)/V%.h)
	@for source in $(PIPELINES_DIR)/$(1)/V*.cpp; do echo "#include \"$$$$source\""; done >$(PIPELINES_DIR)/$(1).cpp
	$$(CXX) $$(BENCH_CXXFLAGS) $$(OPTIMISED_$(1)) -I$(PIPELINES_DIR)/$(1) -c $(PIPELINES_DIR)/$(1).cpp -o $$@
$(PIPELINES_DIR)/$(1)_tb: $(BENCHES)/$(1)_tb.cpp $(wildcard $(BENCHES)/*.hpp) $(PIPELINES_DIR)/$(1).o $(RUNTIME)
	$$(CXX) $$(BENCH_CXXFLAGS) -I$(PIPELINES_DIR)/$(1) $$(filter %.cpp %.o,$$^) -o $$@
endef
$(foreach family,$(FAMILIES),$(eval $(call family_rule,$(family))))

$(RUNTIME): $(PIPELINES_DIR)/%.o:
	@mkdir -p $(@D)
	$(CXX) -O1 -std=c++17 -c $(VERILATOR_INCLUDE)/$*.cpp -o $@

# ---- yosys --------------------------------------------------------------------------------
NAMES ?= $(MODELS)
synth_pipelines: $(NAMES:%=$(BUILD_DIR)/synth/%.json)

# Plain names in a folder of their own, as in synth.
$(MODELS:%=$(BUILD_DIR)/synth/%.json): $(BUILD_DIR)/synth/%.json: $(ALL_SOURCES)
	@mkdir -p $(@D)/$*
	@cp $(ALL_SOURCES) $(@D)/$*
	cd $(@D)/$* && $(YOSYS) -q -p "read_verilog -sv $(notdir $(ALL_SOURCES)); \
	  $(if $(WITH_$*),chparam $(foreach with,$(WITH_$*),-set $(subst =, ,$(with))) $(call module,$*);) \
	  hierarchy -top $(call module,$*); tee -o ports portlist $(call module,$*); \
	  synth_xilinx -family xcup -uram -noiopad -top $(call module,$*); tee -o cells stat -json -tech xilinx"
	@mv $(@D)/$*/ports $(@D)/$*.ports
	@mv $(@D)/$*/cells $@

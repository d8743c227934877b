"""The FPGA engine: INT8 kernels as C-simulation or on cards, and the cycle model of a card.

engine          scores rows with a frozen model, through the C-simulation or on cards
int8_decoder    the interface of the forward that both have; shared prompts are computed once
estimate        modelled time and energy of a workload
verdict         what a validation found, and whether it allows INT8 for a model
kernels         facts of the kernels, and the sequence in which a forward runs them
numerics        weights in the kernels' integer formats
csim            build, library and decoder of the C-simulation
cycles          the cycle model
bitstream       building, checking and reading what XRT loads
card            the host of real and emulated cards
validation      INT8 against float on held-out preference pairs
"""

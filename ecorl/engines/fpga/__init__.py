"""The FPGA engine: INT8 kernels as C-simulation, and the cycle model of a card.

build (g++, cache) -> gemm (ctypes) -> quantise -> forward (decoder) -> cycles -> engine
"""

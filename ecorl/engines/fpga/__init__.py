"""The FPGA engine: INT8 kernels as C-simulation, and the cycle model of a card.

build (g++, cache) -> gemm (ctypes) -> quantise -> formats (weights as integers) -> memory (what a
card holds) -> segments (which tokens are computed) -> forward (decoder) -> cycles -> engine
"""

"""The HLS C++ kernels of the FPGA engine, as package data.

It exists so that the kernel sources travel in the wheel and are found with `importlib.resources`;
`ecorl.engines.fpga.csim.build` compiles them with g++ (C-simulation). Layout: ``include/`` (shared
headers), ``sim/`` (what the C-simulation adds and Vitis never sees), ``common.mk`` (the one place
of compiler flags), a folder for each kernel, and ``lint/``, the only Python code: the check that
the sources keep to what can be synthesised.
"""

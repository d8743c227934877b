"""Bitstreams: building them, their manifests, the xclbin format, and the reports of the tools.

request          what to build, and whether it can be built
build            builds it: the C-simulation's container, or with AMD's Vitis
vitis            tools, platforms and config files of Vitis
tool_process     runs a tool that takes hours; tool_main is its watching process
manifest         the JSON file beside a bitstream
check            whether a host may load a bitstream
xclbin           XRT's file format; xclbin_metadata the parts of it in XML and JSON
csynth, vivado   reports of Vitis HLS and of Vivado
"""

"""Bitstreams: building them, their manifests, the xclbin format, and the reports of the tools.

build     what to build, and building it: the C-simulation's container, or with AMD's Vitis
vitis     tools, platforms, config files and commands of Vitis; tool_main watches a command
manifest  the JSON file beside a bitstream, and whether a host may load the bitstream
xclbin    XRT's file format; xclbin_metadata the parts of it in XML and JSON
csynth    reports of Vitis HLS and of Vivado
"""

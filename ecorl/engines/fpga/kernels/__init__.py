"""Facts of the kernels, parsed from their sources: arguments, limits, memory banks, buffers."""

"""Facts of the kernels: their arguments and limits, memory banks, buffers, sequence.

interfaces  arguments of the kernels, parsed from their sources
limits      shapes that the kernels can compute, parsed from their headers
banks       buffers of a forward, the memory banks that arguments are wired to, and their capacity
sequence    the order of a forward's operations
"""

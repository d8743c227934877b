"""Facts of the kernels: their arguments and limits, memory banks, buffers, sequence.

interfaces  arguments and limits of the kernels, parsed from their sources
banks       buffers of a forward, the memory banks that arguments are wired to, and their capacity
sequence    the order of a forward's operations
"""

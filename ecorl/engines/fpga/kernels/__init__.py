"""Facts of the kernels: their arguments and limits, memory banks, buffers, sequence.

interfaces  arguments of the kernels, parsed from their sources
limits      shapes that the kernels can compute, parsed from their headers
banks       memory banks that the arguments are wired to, and their capacity
buffers     buffers of a forward, and the arguments that each is passed to
sequence    the order of a forward's operations
"""

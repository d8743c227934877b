"""The decoder kernels in NumPy integers, written from hls_kernels/NUMERICS.md alone.

    arithmetic.py   scales, shift, clip, EXP, RECIP, LOG2, rsqrt
    operations.py   quantise to log-prob, each for one token (and one head where it has heads)
    gating.py       gates and gated rewards, each for one token
    decoder.py      the whole forward over rows of token ids

It is the second, independent implementation that the C++ is held against bit by bit. There is no
float in it: every array is int64, every scalar a Python integer, and what NUMERICS.md says is 32
bits wide, or a product of 64, is asserted to be.
"""

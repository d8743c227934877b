"""The C-simulation library with products by gemm_int8 alone, and its counters."""

from __future__ import annotations

import ctypes
from dataclasses import fields

import numpy as np

from ecorl.engines.fpga.csim.library import CsimLibrary, GemmCounts

PATHS = ("auto", "kernel", "portable", "avx2", "vnni", "amx")
"""Code that computes a product, in the order of the library's numbers."""


class GemmLibrary(CsimLibrary):
    """A loaded library whose products a test computes and counts."""

    def __init__(self, path):
        super().__init__(path)
        pointer, dim = ctypes.c_void_p, ctypes.c_int32
        self.handle.gemm_int8.argtypes = [pointer] * 3 + [dim] * 3
        self.handle.gemm_int8_batched.argtypes = [pointer] * 3 + [dim] * 4
        for name in ("deadlocks", "leftovers"):
            getattr(self.handle, f"dataflow_{name}").restype = ctypes.c_int64
        self.handle.dataflow_set_depth.argtypes = [ctypes.c_int64]

    def gemm(self, a, weight, out=None):
        """``a @ w.T`` for ``a`` ``[m, k] int8`` and a packed weight, as ``[m, n] int32``."""
        a = np.ascontiguousarray(a)
        (m, k), n = a.shape, weight.n
        out = np.empty((m, n), np.int32) if out is None else out
        assert (a.dtype, k, out.shape) == (np.int8, weight.k, (m, n))
        operands = (a.ctypes.data, weight.data.ctypes.data, out.ctypes.data)
        self.check(self.handle.gemm_int8(*operands, m, n, k))
        return out

    def gemm_batched(self, a, w):
        """``a[i] @ w[i].T`` for ``[batch, m, k]`` and ``[batch, n, k] int8``, as int32."""
        a, w = np.ascontiguousarray(a), np.ascontiguousarray(w)
        (batch, m, k), n = a.shape, w.shape[1]
        out = np.empty((batch, m, n), np.int32)
        operands = (a.ctypes.data, w.ctypes.data, out.ctypes.data)
        self.check(self.handle.gemm_int8_batched(*operands, batch, m, n, k))
        return out

    @property
    def deadlocks(self):
        """Dataflow regions that came to a standstill."""
        return self.handle.dataflow_deadlocks()

    @property
    def leftovers(self):
        """Dataflow regions that ended with items in a FIFO."""
        return self.handle.dataflow_leftovers()

    def counters(self):
        """Loop counts of all threads since the last `reset_counters`."""
        counts = np.zeros(len(fields(GemmCounts)), np.int64)
        self.handle.gemm_int8_counters(ctypes.c_void_p(counts.ctypes.data))
        return GemmCounts(*map(int, counts))

    def reset_counters(self):
        self.handle.gemm_int8_counters_reset()

    @property
    def path_in_use(self):
        """The code that computes products now."""
        return PATHS[self.handle.gemm_int8_path()]

    def use_path(self, name):
        """Choose the code that computes products; False where this build or CPU lacks it."""
        return self.handle.gemm_int8_set_path(PATHS.index(name)) == 0

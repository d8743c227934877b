"""INT8 matrix products through the C-simulation library: a thin ctypes wrapper.

ctypes releases the GIL for the length of a call, so host threads may multiply in parallel.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ecorl.engines.fpga.csim.build import Build, csim_library
from ecorl.errors import BuildError, DataflowError

logger = logging.getLogger(__name__)

Int8 = npt.NDArray[np.int8]

TILE_M, TILE_N, TILE_K = 64, 16, 4
BURST_TILES, SETTLE_TRIPS = 16, 8
MAX_K = 16_384
MAX_DIM = 1 << 20
_WORD_BYTES = 64
_POINTER, _DIM, _COUNT = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64

Signatures = Mapping[str, tuple[Any, list[Any]]]
_FAULT = 3  # of the library's calls: a dataflow region could not go on
_ALIGNMENT = 64  # one 512-bit word: a packed tile never straddles two cache lines


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """INT8 weights in the tile order of the card's memory.

    Attributes:
        data: ``[n_bytes] int8``: 512-bit words of 16 rows x 4 k, rows and k padded with zeros.
        n: rows of the weight matrix (outputs).
        k: columns of the weight matrix (inputs).
    """

    data: Int8
    n: int
    k: int


@dataclass(frozen=True, slots=True)
class GemmCounts:
    """Loop counts of gemm_int8, on which the cycle model rests.

    Attributes:
        calls: products.
        tiles: output tiles of 64 x 16.
        mac_cycles: trips of the array's loop in which it multiplies, tails of tiles included.
        fill_cycles: trips in which it waits for activations.
        drain_cycles: trips in which it waits for results to leave.
        bytes_a: activations read from HBM.
        bytes_w: weights read from HBM.
        bytes_c: INT32 results written to HBM.
        macs: useful multiply-accumulates, m * n * k.
    """

    calls: int = 0
    tiles: int = 0
    mac_cycles: int = 0
    fill_cycles: int = 0
    drain_cycles: int = 0
    bytes_a: int = 0
    bytes_w: int = 0
    bytes_c: int = 0
    macs: int = 0


@lru_cache(maxsize=4096)
def gemm_counts(m: int, n: int, k: int) -> GemmCounts:
    """Loop counts of gemm_int8 for one product ``[m, k] x [n, k]^T``, in closed form.

    Args:
        m: rows of activations.
        n: outputs.
        k: inputs.
    """
    steps, n_tiles, blocks = _ceil(k, TILE_K), _ceil(n, TILE_N), _ceil(m, TILE_M)

    tile_trips, last_rows = max(steps, min(m, TILE_M)), m - (blocks - 1) * TILE_M

    def words(rows: int) -> int:
        return _ceil(rows, TILE_N) * steps

    def wait(rows: int) -> int:
        return max(0, words(rows) + SETTLE_TRIPS - n_tiles * tile_trips)

    fill = words(min(m, TILE_M)) + SETTLE_TRIPS
    if blocks > 1:  # a later block's activations load while the block before it is multiplied
        fill += (blocks - 2) * wait(TILE_M) + wait(last_rows)
    return GemmCounts(
        calls=1,
        tiles=blocks * n_tiles,
        mac_cycles=blocks * n_tiles * steps,
        fill_cycles=fill,
        drain_cycles=blocks * n_tiles * (tile_trips - steps) + last_rows,
        bytes_a=words(m) * _WORD_BYTES,
        bytes_w=blocks * n_tiles * steps * _WORD_BYTES,
        bytes_c=n_tiles * m * _WORD_BYTES,
        macs=m * n * k,
    )


class CsimLibrary:
    """A loaded C-simulation library.

    Args:
        path: the shared library, as made by `ecorl.engines.fpga.csim.build.csim_library`.

    Raises:
        BuildError: when the file cannot be loaded or lacks a function.

    Attributes:
        path: the file.
        handle: the `ctypes.CDLL`, for wrappers of the other kernels in the same library.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.handle = ctypes.CDLL(str(path))
            declare(self.handle, _SIGNATURES)
        except (OSError, AttributeError) as error:
            raise BuildError(f"cannot use the C-simulation library {path}: {error}") from error

    @classmethod
    def load(
        cls, build: Build = "fast", *, progress: Callable[[str], None] | None = None
    ) -> CsimLibrary:
        """Load the library, built first if the cache lacks it; see `csim_library` for the errors.

        A cached library that cannot be loaded, because another system made it, is built again once.

        Args:
            build: ``fast`` or ``strict``.
            progress: called with one line for each step of a compilation.
        """
        path = csim_library(build, progress=progress)
        try:
            return cls(path)
        except BuildError as error:
            logger.warning("%s", error)
        return cls(csim_library(build, progress=progress, anew=True))

    def pack(self, weight: Int8) -> PackedWeight:
        """Reorder weights ``[n, k] int8`` into the card's tile order.

        Raises:
            ValueError: for a wrong dtype, rank or size.
        """
        if weight.ndim != 2:
            raise ValueError(f"weight has {weight.ndim} dimensions, want 2")
        if weight.dtype != np.int8:
            raise ValueError(f"weight is {weight.dtype}, want int8")
        n, k = weight.shape
        if not (1 <= n <= MAX_DIM and 1 <= k <= MAX_K):
            raise ValueError(f"weight is [{n}, {k}]: at most [{MAX_DIM}, {MAX_K}], at least 1")
        weight = np.ascontiguousarray(weight)
        packed = _aligned_bytes(self.handle.gemm_int8_packed_bytes(n, k))
        self.handle.gemm_int8_pack(weight.ctypes.data, packed.ctypes.data, n, k)
        return PackedWeight(packed, n, k)

    def check(self, code: int) -> None:
        """Raise what a call that ran a kernel says by its code.

        Raises:
            DataflowError: a dataflow region could not go on; the message says which FIFOs were full
                and which empty. Or a loop depended on itself as no pragma states; it says where.
        """
        if code == _FAULT:
            raise DataflowError(self.dataflow_report())

    def dataflow_report(self) -> str:
        """What the last of them said; empty when there was none."""
        text = ctypes.create_string_buffer(self.handle.dataflow_report(None, 0) + 1)
        self.handle.dataflow_report(text, len(text))
        return text.value.decode()


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


_SIGNATURES: Signatures = {
    "gemm_int8_packed_bytes": (_COUNT, [_DIM, _DIM]),
    "gemm_int8_pack": (None, [_POINTER, _POINTER, _DIM, _DIM]),
    "dataflow_report": (_COUNT, [_POINTER, _COUNT]),
}


def declare(handle: Any, signatures: Signatures) -> None:
    """Tell ctypes the results and arguments of a library's functions.

    Args:
        handle: of the library.
        signatures: result and arguments, by name.

    Raises:
        AttributeError: the library lacks one.
    """
    for name, (result, arguments) in signatures.items():
        function = getattr(handle, name)
        function.restype, function.argtypes = result, arguments


def _aligned_bytes(n_bytes: int) -> Int8:
    raw = np.empty(n_bytes + _ALIGNMENT, dtype=np.int8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + n_bytes]

"""Per-channel symmetric INT8 and INT4 quantisation of frozen weights.

For output channel n of a weight matrix W ``[n, k]``, with L = 127 (8 bits) or 7 (4 bits)::

    scale[n] = max_k |W[n, k]| / L            (float32)
    q[n, k]  = round_half_to_even(W[n, k] * (L / max_k |W[n, k]|))

so that ``|W - scale * q| <= scale / 2`` up to float32 rounding, and q stays within +-L. A channel
of zeros (largest magnitude below 1e-30) has scale 0 and q 0. The paper quantises activations per
tensor (section 3.3); here each token row has its own scale, which the forward computes: so a row's
result cannot depend on its batch.

INT4 serves to study the precision of weights alone: its values are stored and multiplied as INT8 by
the same kernels, activations stay INT8, and nothing becomes smaller or faster.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ecorl.engines.protocol import Float32

Int8 = npt.NDArray[np.int8]

TINY = np.float32(1e-30)
LEVELS = {8: 127, 4: 7}
"""Largest quantised magnitude by bits; symmetric, so -128 and -8 are not used."""

_ROWS_AT_A_TIME = 4096  # bounds the temporaries of a large vocabulary


@dataclass(frozen=True, slots=True)
class QuantisedWeight:
    """A quantised matrix: ``q`` is ``[n, k] int8``, ``scale`` is ``[n] float32``."""

    q: Int8
    scale: Float32


def quantise_weight(weight: Float32, bits: int = 8) -> QuantisedWeight:
    """Quantise a matrix ``[n, k] float32`` per output channel; see the module's formulas.

    Args:
        weight: ``[n, k] float32``.
        bits: 8, or 4; either way ``q`` is int8.

    Raises:
        ValueError: for any other number of bits.
    """
    if bits not in LEVELS:
        raise ValueError(f"weights of {bits} bits: allowed is one of {sorted(LEVELS)}")
    level = np.float32(LEVELS[bits])
    n, k = weight.shape
    q, scale = np.empty((n, k), np.int8), np.empty(n, np.float32)
    for at in range(0, n, _ROWS_AT_A_TIME):
        rows = weight[at : at + _ROWS_AT_A_TIME]
        largest = np.abs(rows).max(axis=1)
        used = largest >= TINY
        factor = np.divide(level, largest, out=np.zeros_like(largest), where=used)
        scale[at : at + len(rows)] = np.where(used, largest / level, np.float32(0))
        q[at : at + len(rows)] = np.rint(rows * factor[:, None])
    return QuantisedWeight(q, scale)

"""Per-channel symmetric INT8 quantisation of frozen weights.

For output channel n of a weight matrix W ``[n, k]``::

    scale[n] = max_k |W[n, k]| / 127          (float32)
    q[n, k]  = round_half_to_even(W[n, k] * (127 / max_k |W[n, k]|))

so that ``|W - scale * q| <= scale / 2`` up to float32 rounding, and q stays within +-127. A channel
of zeros (largest magnitude below 1e-30) has scale 0 and q 0. The paper quantises activations per
tensor (section 3.3); here each token row has a scale of its own, which the forward computes as it
goes: a row's result then cannot depend on its batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ecorl.engines.protocol import Float32

Int8 = npt.NDArray[np.int8]

TINY = np.float32(1e-30)
_ROWS_AT_A_TIME = 4096  # bounds the temporaries of a large vocabulary


@dataclass(frozen=True, slots=True)
class QuantisedWeight:
    """A quantised matrix: ``q`` is ``[n, k] int8``, ``scale`` is ``[n] float32``."""

    q: Int8
    scale: Float32


def quantise_weight(weight: Float32) -> QuantisedWeight:
    """Quantise a matrix ``[n, k] float32`` per output channel; see the module's formulas."""
    n, k = weight.shape
    q, scale = np.empty((n, k), np.int8), np.empty(n, np.float32)
    for at in range(0, n, _ROWS_AT_A_TIME):
        rows = weight[at : at + _ROWS_AT_A_TIME]
        largest = np.abs(rows).max(axis=1)
        used = largest >= TINY
        factor = np.divide(np.float32(127), largest, out=np.zeros_like(largest), where=used)
        scale[at : at + len(rows)] = np.where(used, largest / np.float32(127), np.float32(0))
        q[at : at + len(rows)] = np.rint(rows * factor[:, None])
    return QuantisedWeight(q, scale)

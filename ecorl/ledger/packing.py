"""Roll-ups of one second packed into blocks.

The columns of a block are integers (us, mW, mJ, counts). Most say little that another does not:
times are stored as differences, minimum and maximum as distances from the mean, energies as
distances from the figure that they are near to; signed values are zigzag-coded, the bytes of each
column are transposed (all lowest bytes first) and the whole is deflated. The packing is exact:
`unpack_block` gives back the very integers that `pack_block` was given.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ecorl.ledger.rollup import SecondRow

BLOCK_SECONDS = 600
"""Roll-ups of a series that stand as plain rows before they are packed. Ten minutes: long enough
for the deflater, short enough that the plain rows of 36 devices stay near 1 MB."""

_WHOLE_US = 1_000_000
_N_COLUMNS = 14

Int64 = npt.NDArray[np.int64]


def pack_block(rows: Sequence[SecondRow]) -> bytes:
    """Pack roll-ups of one series, in order of time, into one blob.

    Raises:
        OverflowError: when a value does not fit 64 bits.
    """
    columns = [
        np.array([value or 0 for value in column], dtype=np.int64)
        for column in zip(*rows, strict=True)
    ]
    second, n, missing, mean, low, high = columns[:6]
    held_us, held, counted_us, counted, alone_us, alone, breaks = columns[6:]
    has_power = np.array([row.mean_mw is not None for row in rows], dtype=np.int64)
    packed = np.stack(
        [
            _zigzag(np.diff(second, prepend=0)),
            n,
            missing,
            has_power,
            _zigzag(mean),
            mean - low,
            high - mean,
            _zigzag(held_us - _WHOLE_US),
            _zigzag(held - _near_held(mean, held_us)),
            _zigzag(counted_us - _WHOLE_US),
            _zigzag(counted - _near_counted(held, counted_us)),
            _zigzag(alone_us - _near_alone(held_us, counted_us)),
            _zigzag(alone - _near_alone(held, counted_us)),
            breaks,
        ]
    )
    as_bytes = packed.astype("<i8").view(np.uint8).reshape(_N_COLUMNS, len(rows), 8)
    return zlib.compress(np.ascontiguousarray(as_bytes.transpose(0, 2, 1)).tobytes(), 6)


def unpack_block(packed: bytes, n_seconds: int) -> list[SecondRow]:
    """Unpack the rows that `pack_block` packed.

    Raises:
        ValueError, zlib.error: when the blob is damaged.
    """
    raw = np.frombuffer(zlib.decompress(packed), dtype=np.uint8)
    raw = raw.reshape(_N_COLUMNS, 8, n_seconds).transpose(0, 2, 1)
    c = np.ascontiguousarray(raw).view("<i8").reshape(_N_COLUMNS, n_seconds).astype(np.int64)
    mean = _unzigzag(c[4])
    held_us = _unzigzag(c[7]) + _WHOLE_US
    held = _unzigzag(c[8]) + _near_held(mean, held_us)
    counted_us = _unzigzag(c[9]) + _WHOLE_US
    counted = _unzigzag(c[10]) + _near_counted(held, counted_us)
    alone_us = _unzigzag(c[11]) + _near_alone(held_us, counted_us)
    alone = _unzigzag(c[12]) + _near_alone(held, counted_us)
    second, power = np.cumsum(_unzigzag(c[0])), c[3]
    columns = (second, c[1], c[2], mean, mean - c[5], mean + c[6], held_us, held, counted_us,
               counted, alone_us, alone, c[13])  # fmt: skip
    rows = []
    for has_power, *values in zip(power.tolist(), *(x.tolist() for x in columns), strict=True):
        row = SecondRow(*values)
        rows.append(row if has_power else row._replace(mean_mw=None, min_mw=None, max_mw=None))
    return rows


def _near_held(mean: Int64, held_us: Int64) -> Int64:
    """Energy of a second that is held throughout: its mean power, in mJ."""
    return np.where(held_us == _WHOLE_US, mean, 0)


def _near_counted(held: Int64, counted_us: Int64) -> Int64:
    return np.where(counted_us == _WHOLE_US, held, 0)


def _near_alone(held: Int64, counted_us: Int64) -> Int64:
    """Without a counter all that is held is alone; with one, nothing is."""
    return np.where(counted_us == 0, held, 0)


def _zigzag(values: Int64) -> Int64:
    return (values << 1) ^ (values >> 63)


def _unzigzag(values: Int64) -> Int64:
    return (values >> 1) & _MASK ^ -(values & 1)


_MASK = np.int64(2**63 - 1)

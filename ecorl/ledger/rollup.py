"""Power readings to one-second roll-ups, and roll-ups to packed blocks.

Packing: the columns of a block are integers (mW, mJ, counts); times and energies are stored as
differences, minimum and maximum as distances from the mean, signed values zigzag-coded; the bytes
of each column are transposed (all lowest bytes first) and the whole is deflated. The packing is
exact: `unpack_block` gives back the very integers that `pack_block` was given.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ecorl.records import PowerSample

BLOCK_SECONDS = 600
"""Roll-ups of a series that stand as plain rows before they are packed. Ten minutes: long enough
for the deflater, short enough that the plain rows of 36 devices stay near 1 MB."""

_OPEN_SECONDS = 2
"""A second is closed when a reading this much newer has come: readers of several devices hand
over in batches, so that one second's readings may come in two calls."""

PackedRow = tuple[int, int, int, int | None, int | None, int | None, int | None, int | None]
"""second, n, n_missing, mean_mw, min_mw, max_mw, energy_first_mj, energy_last_mj."""

Int64 = npt.NDArray[np.int64]


def _finite(value: float | None) -> float | None:
    if value is None:
        return None
    number = float(value)
    return number if math.isfinite(number) else None


@dataclass(slots=True)
class _Second:
    n: int = 0
    n_missing: int = 0
    sum_w: float = 0.0
    min_w: float = math.inf
    max_w: float = -math.inf
    first: tuple[float, float] | None = None
    last: tuple[float, float] | None = None

    def add(self, sample: PowerSample) -> None:
        power_w, energy_j = _finite(sample.power_w), _finite(sample.energy_j)
        if power_w is None:
            self.n_missing += 1
        else:
            self.n += 1
            self.sum_w += power_w
            self.min_w, self.max_w = min(self.min_w, power_w), max(self.max_w, power_w)
        if energy_j is not None:
            point = (float(sample.t_s), energy_j)
            if self.first is None or point[0] < self.first[0]:
                self.first = point
            if self.last is None or point[0] >= self.last[0]:
                self.last = point

    def row(self, second: int) -> PackedRow:
        valid = self.n > 0
        return (
            second,
            self.n,
            self.n_missing,
            round(1e3 * self.sum_w / self.n) if valid else None,
            round(1e3 * self.min_w) if valid else None,
            round(1e3 * self.max_w) if valid else None,
            None if self.first is None else round(1e3 * self.first[1]),
            None if self.last is None else round(1e3 * self.last[1]),
        )


@dataclass(slots=True)
class PowerRollup:
    """Gathers the readings of one series into seconds."""

    _open: dict[int, _Second] = field(default_factory=dict)
    _newest: int = -(2**62)

    def add(self, sample: PowerSample) -> None:
        """Count one reading; a reading without power counts as missing."""
        second = math.floor(float(sample.t_s))
        self._open.setdefault(second, _Second()).add(sample)
        self._newest = max(self._newest, second)

    def take(self, *, everything: bool = False) -> list[PackedRow]:
        """Rows of the seconds that are over (or of all), which are then forgotten here."""
        limit = self._newest - _OPEN_SECONDS
        ready = sorted(s for s in self._open if everything or s <= limit)
        return [self._open.pop(second).row(second) for second in ready]


def _zigzag(values: Int64) -> Int64:
    return (values << 1) ^ (values >> 63)


def _unzigzag(values: Int64) -> Int64:
    return (values >> 1) ^ -(values & 1)


def _column(rows: list[PackedRow], index: int) -> Int64:
    return np.array([row[index] or 0 for row in rows], dtype=np.int64)


def pack_block(rows: list[PackedRow]) -> bytes:
    """Pack roll-ups of one series, in order of time, into one blob.

    Raises:
        OverflowError: when a value does not fit 63 bits.
    """
    second, n, missing, mean, low, high, first, last = (_column(rows, i) for i in range(8))
    has_power = np.array([row[3] is not None for row in rows], dtype=np.int64)
    has_energy = np.array([row[6] is not None for row in rows], dtype=np.int64)
    before = np.concatenate(([0], last[:-1]))
    columns = np.stack(
        [
            _zigzag(np.diff(second, prepend=0)),
            n,
            missing,
            has_power + 2 * has_energy,
            _zigzag(mean),
            mean - low,
            high - mean,
            _zigzag(first - before),
            _zigzag(last - first),
        ]
    )
    as_bytes = columns.astype("<i8").view(np.uint8).reshape(columns.shape[0], len(rows), 8)
    return zlib.compress(np.ascontiguousarray(as_bytes.transpose(0, 2, 1)).tobytes(), 6)


def unpack_block(packed: bytes, n_seconds: int) -> list[PackedRow]:
    """The rows that `pack_block` was given.

    Raises:
        ValueError, zlib.error: when the blob is damaged.
    """
    raw = np.frombuffer(zlib.decompress(packed), dtype=np.uint8).reshape(9, 8, n_seconds)
    columns = np.ascontiguousarray(raw.transpose(0, 2, 1)).view("<i8").reshape(9, n_seconds)
    columns = columns.astype(np.int64)
    second = np.cumsum(_unzigzag(columns[0]))
    mean = _unzigzag(columns[4])
    gap, span = _unzigzag(columns[7]), _unzigzag(columns[8])
    last = np.cumsum(gap + span)
    rows: list[PackedRow] = []
    for i in range(n_seconds):
        power, energy = bool(columns[3, i] & 1), bool(columns[3, i] & 2)
        rows.append(
            (
                int(second[i]),
                int(columns[1, i]),
                int(columns[2, i]),
                int(mean[i]) if power else None,
                int(mean[i] - columns[5, i]) if power else None,
                int(mean[i] + columns[6, i]) if power else None,
                int(last[i] - span[i]) if energy else None,
                int(last[i]) if energy else None,
            )
        )
    return rows

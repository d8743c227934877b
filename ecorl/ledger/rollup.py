"""Power readings to one-second roll-ups: how many, how high, and the joules of each second.

Joules are gathered twice, as a window's energy is. A power reading stands until the next one, for
at most ``hold_s``, and a missing reading ends that: the *held* time and energy. The rise of the
device's own counter from one of its readings to the next, spread evenly over the time between
them: the *counted* time and energy. Where the counter fell, was reset or is missing it tells
nothing; what was held there is kept apart as *alone*. So the energy of any stretch of seconds is
counted + alone, nothing is extrapolated, and all of it adds up over parts of a second.

Older seconds are packed into blocks. The columns of a block are integers (us, mW, mJ, counts). Most
say little that another does not: times are stored as differences, minimum and maximum as distances
from the mean, energies as distances from the figure that they are near to; signed values are
zigzag-coded, the bytes of each column are transposed (all lowest bytes first) and the whole is
deflated. The packing is exact: `unpack_block` gives back the very integers that `pack_block` was
given.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ecorl.ledger.rows import EnergySums
from ecorl.records import LOSS_ERRORS, MAX_ENERGY_J, MAX_POWER_W

HOLD_S = 2.0
"""For how long a reading stands without a successor, s, unless the run says otherwise."""

_MAX_TIME_S = 2.0**40
"""No clock of a machine is later; a reading beyond it would end the hold of all that follow."""

_OPEN_SECONDS = 2
"""A second is closed when a reading this much newer has come: readers of several devices hand
over in batches, so that one second's readings may come in two calls."""

_LONGEST_RISE_S = 3600.0
"""Rises of a counter over more than this are not counted: one reading would fill that many rows."""


class SecondRow(NamedTuple):
    """One roll-up as it is stored: integers, powers in mW, energies in mJ, times in us.

    Two rows of one second are two parts of it; all but mean, minimum and maximum add up.
    """

    second: int
    n: int
    n_missing: int
    mean_mw: int | None
    min_mw: int | None
    max_mw: int | None
    held_us: int
    held_mj: int
    counted_us: int
    counted_mj: int
    alone_us: int
    alone_mj: int
    n_breaks: int


def in_units(row: SecondRow) -> tuple[Any, ...]:
    """All but the second: counts as they are, then W, s and J, in the order of `PowerSecond`."""
    watts = (None if v is None else v / 1e3 for v in (row.mean_mw, row.min_mw, row.max_mw))
    return (
        row.n,
        row.n_missing,
        *watts,
        row.held_us / 1e6,
        row.held_mj / 1e3,
        row.counted_us / 1e6,
        row.counted_mj / 1e3,
        row.alone_us / 1e6,
        row.alone_mj / 1e3,
        row.n_breaks,
    )


class _Sample(Protocol):
    """The fields of a reading that the roll-up uses: a `PowerSample`, or a row of the raw ring."""

    @property
    def t_s(self) -> float: ...
    @property
    def power_w(self) -> float | None: ...
    @property
    def energy_j(self) -> float | None: ...
    @property
    def error(self) -> str | None: ...


class OpenReading(NamedTuple):
    """The newest reading behind the stored seconds, and the time up to which they hold it, s."""

    t_s: float
    power_w: float | None
    energy_j: float | None
    from_s: float


def figure(value: float | None, limit: float) -> float | None:
    """A plain float, or None for what is missing, negative, not finite or above ``limit``."""
    if value is None:
        return None
    number = float(value)
    return number if 0 <= number <= limit else None


@dataclass(slots=True)
class _Second(EnergySums):
    n: int = 0
    n_missing: int = 0
    sum_w: float = 0.0
    min_w: float = math.inf
    max_w: float = -math.inf
    n_breaks: int = 0

    def add(self, power_w: float | None) -> None:
        if power_w is None:
            self.n_missing += 1
            return
        self.n += 1
        self.sum_w += power_w
        self.min_w, self.max_w = min(self.min_w, power_w), max(self.max_w, power_w)

    def row(self, second: int) -> SecondRow:
        known = self.n > 0
        return SecondRow(
            second,
            self.n,
            self.n_missing,
            round(1e3 * self.sum_w / self.n) if known else None,
            round(1e3 * self.min_w) if known else None,
            round(1e3 * self.max_w) if known else None,
            round(1e6 * self.held_s),
            round(1e3 * self.held_j),
            round(1e6 * self.counted_s),
            round(1e3 * self.counted_j),
            round(1e6 * self.alone_s),
            round(1e3 * self.alone_j),
            self.n_breaks,
        )


class PowerRollup:
    """Gathers the readings of one series into seconds.

    Readings are taken in the order of time; one that comes late is counted among its second's
    readings and holds nothing.

    Args:
        hold_s: for how long a reading stands without a successor, s.
        after: the reading to go on from, where earlier seconds are in the file already.
    """

    def __init__(self, hold_s: float = HOLD_S, after: OpenReading | None = None) -> None:
        self.hold_s = hold_s
        self._seconds: dict[int, _Second] = {}
        self._newest = -(2**62)
        self._last = after
        self._counter: tuple[float, float] | None = None
        # Held since the newest counter reading, by second: alone, until the next one tells.
        self._uncounted: dict[int, tuple[float, float]] = {}
        # The newest reading before each second that is open, and that of the last take of all.
        self._before: dict[int, OpenReading | None] = {}
        self._flushed = after
        # What lies before is in the file; a rise that reaches back to there counts from here on.
        self._from_s = -math.inf if after is None else after.from_s
        if after is not None and after.energy_j is not None:
            self._counter = (after.t_s, after.energy_j)

    def add(self, sample: _Sample) -> None:
        """Take one reading in; one without power counts as missing.

        Raises:
            ValueError: when its time is none.
        """
        t_s = float(sample.t_s)
        if not abs(t_s) < _MAX_TIME_S:
            raise ValueError(f"a reading at t_s = {t_s}")
        power_w = figure(sample.power_w, MAX_POWER_W)
        energy_j = figure(sample.energy_j, MAX_ENERGY_J)
        second = math.floor(t_s)
        self._second(second).add(power_w)
        if self._last is not None and t_s <= self._last.t_s:
            return
        if second > self._newest:
            self._newest = second
            self._before[second] = self._last
        self.hold_until(t_s)
        self._count(t_s, energy_j, reset=sample.error in LOSS_ERRORS)
        self._last = OpenReading(t_s, power_w, energy_j, t_s)

    def hold_until(self, t_s: float) -> None:
        """Let the newest reading stand until a time, s, as far as its hold reaches."""
        last = self._last
        if last is None or last.power_w is None:
            return
        for second, part_s in _split(last.from_s, min(t_s, last.t_s + self.hold_s)):
            part_j = part_s * last.power_w
            into = self._second(second)
            into.held_s += part_s
            into.held_j += part_j
            into.alone_s += part_s
            into.alone_j += part_j
            if self._counter is not None:
                before_s, before_j = self._uncounted.get(second, (0.0, 0.0))
                self._uncounted[second] = (before_s + part_s, before_j + part_j)

    def take(self, *, everything: bool = False) -> list[SecondRow]:
        """Rows of the seconds that are over (or of all), which are then forgotten here."""
        limit = self._newest - _OPEN_SECONDS
        ready = sorted(s for s in self._seconds if everything or s <= limit)
        if everything:
            self._flushed = self._last
        return [self._seconds.pop(second).row(second) for second in ready]

    def open_reading(self) -> OpenReading | None:
        """The newest reading: with it, a new roll-up can go on from the rows that were taken."""
        limit = self._newest - _OPEN_SECONDS
        self._before = {s: reading for s, reading in self._before.items() if s > limit}
        known = [self._flushed]
        if self._before and (reading := self._before[min(self._before)]) is not None:
            known.append(reading._replace(from_s=max(reading.t_s, limit + 1.0)))
        return max((r for r in known if r is not None), key=lambda r: r.from_s, default=None)

    def _second(self, second: int) -> _Second:
        found = self._seconds.get(second)
        if found is None:
            found = self._seconds[second] = _Second()
        return found

    def _count(self, t_s: float, energy_j: float | None, *, reset: bool) -> None:
        """Count the rise since the newest counter reading, or note that there is none."""
        if energy_j is None and not reset:
            return
        if self._counter is not None:
            since_s, before_j = self._counter
            rises = energy_j is not None and not reset and t_s - since_s <= _LONGEST_RISE_S
            if rises and energy_j is not None and energy_j >= before_j:
                self._rise(since_s, t_s, energy_j - before_j)
            else:
                self._second(math.floor(t_s)).n_breaks += 1
        self._counter = None if energy_j is None else (t_s, energy_j)
        self._uncounted.clear()

    def _rise(self, since_s: float, until_s: float, rise_j: float) -> None:
        for second, part_s in _split(max(since_s, self._from_s), until_s):
            into = self._second(second)
            into.counted_s += part_s
            into.counted_j += rise_j * part_s / (until_s - since_s)
        for second, (held_s, held_j) in self._uncounted.items():
            into = self._second(second)
            into.alone_s -= held_s
            into.alone_j -= held_j


def _split(start_s: float, end_s: float) -> Iterator[tuple[int, float]]:
    """The seconds that a span of time touches, and the length of its part in each, s."""
    second = math.floor(start_s)
    while start_s < end_s:
        border_s = min(second + 1.0, end_s)
        yield second, border_s - start_s
        start_s, second = border_s, second + 1


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

"""Which carbon intensities can be believed, beside what the same grid emitted in the weeks before.

Feeds and recordings hold rows that no grid emitted: zeros, other units, the hour in which a plant
did not report. Two rules find those that look like numbers of a grid:

`doubt_of` knows the past alone, as one must who reads a feed. A value is out of keeping when it
lies far outside of the range of the last weeks **and** is reached by a change far larger than the
changes that the grid usually makes in that time. Either alone is what grids do: one with much
sunshine halves within an hour each morning, one with much water leaves its range for weeks.

`doubts_in` also knows what came after, as one does who reads a recording. On top of the first rule
it doubts a single row that leaves its neighbours, which agree with each other, and that comes back
in one step, when the grid hardly ever does that.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from ecorl.carbon.series import Series

MAX_G_PER_KWH = 3000.0
"""No grid emits more, g/kWh: the worst coal plants emit half of it, small diesel sets a third."""

WINDOW_S = 28 * 86400.0
"""How much of the past a value is compared with, s: long enough for the weather to change, short
enough to follow the seasons."""

MIN_SPAN_S = 3 * 86400.0
"""Time over which values must be known before one can be out of keeping with them, s: a few of the
grid's days."""

MIN_VALUES = 72
"""Number of values that must be known for that: three days of hours."""

FORGET_S = 86400.0
"""When nothing was believed for so long, a change says nothing any more, s, and the next value is
believed: a level that is held for a day is the grid's new one, or at least no slip of a row."""

TRIM = 0.02
"""Share of the values at each end of the past that is left out of its range, and of the changes
that is left out of the usual ones: the past may hold bad rows itself."""

RANGE_FACTOR = 2.0
"""So far outside of the range of the past a value must lie to be doubted: below half of its low
end, or above twice its high one. In the EIA-930 records of four grids for 2022 genuine values lie
outside by a factor of up to 1.6, bad ones by 6 and more."""

CHANGE_FACTOR = 5.0
"""So many times larger than the usual changes a change must be, in logarithms. In the same records
genuine changes to values a quarter and more outside of the range reach 4, bad ones 16 and more."""

LONE_LEAST = math.log(1.2)
"""The least departure of a lone row from its neighbours, in logarithms: a fifth. Smaller slips are
left alone, since they hardly change a sum."""

LONE_FACTOR = 3.0
"""So many times larger a lone row's departure must be, both than the range of the two rows before
and the two after it, and than the grid's usual departures. In the same records genuine rows reach
2.3 of both, bad ones 4.4 and more."""


class Doubt(StrEnum):
    """Why a value is not believed."""

    NOT_FINITE = "not_finite"  # it is no number, or infinite
    NEGATIVE = "negative"  # no electricity takes carbon out of the air
    ZERO = "zero"  # what a dead source reads; no grid of some size is without any emissions
    ABOVE_ANY_GRID = "above_any_grid"  # beyond what any mix of plants can emit
    OUT_OF_KEEPING = "out_of_keeping"  # beyond what this grid does, by its last weeks


def doubt_of(
    start_s: float,
    g_per_kwh: float,
    times_s: NDArray[np.float64],
    values: NDArray[np.float64],
) -> Doubt | None:
    """Why a value is not to be believed, or None.

    Nothing later than the value is used, even when it is given.

    Args:
        start_s: begin of the value's interval, s since 1970.
        g_per_kwh: the value, g/kWh.
        times_s: ``[n] float64``, begins of earlier intervals, ascending, s since 1970.
        values: ``[n] float64``, what was believed for them, g/kWh; those that cannot be by
            themselves are left out.
    """
    by_itself = doubt_by_itself(g_per_kwh)
    if by_itself is not None:
        return by_itself
    is_used = (times_s < start_s) & (times_s >= start_s - WINDOW_S) & (values > 0)
    is_used &= values <= MAX_G_PER_KWH
    past_s, past = times_s[is_used], np.log(values[is_used])
    if not _can_judge(len(past), past_s, start_s):
        return None
    value = math.log(g_per_kwh)
    if not _is_outside(value, np.sort(past)):
        return None
    change = abs(value - float(past[-1]))
    usual = _usual_change(past_s, past, start_s - float(past_s[-1]))
    return Doubt.OUT_OF_KEEPING if change > CHANGE_FACTOR * usual else None


def doubt_by_itself(g_per_kwh: float) -> Doubt | None:
    """Why a value cannot be any grid's intensity, or None.

    Args:
        g_per_kwh: the value, g/kWh.
    """
    if not math.isfinite(g_per_kwh):
        return Doubt.NOT_FINITE
    if g_per_kwh < 0:
        return Doubt.NEGATIVE
    if g_per_kwh == 0:
        return Doubt.ZERO
    return Doubt.ABOVE_ANY_GRID if g_per_kwh > MAX_G_PER_KWH else None


def doubts_in(series: Series) -> dict[int, Doubt]:
    """The values of a recorded series that are not to be believed, by their number.

    Args:
        series: intensities, g/kWh; what is missing (NaN) is not doubted.
    """
    doubts = _one_by_one(series)
    left = series.values.copy()
    left[list(doubts)] = np.nan
    for number in _lone_rows(series.step_s, left):
        doubts[number] = Doubt.OUT_OF_KEEPING
    return dict(sorted(doubts.items()))


def _one_by_one(series: Series) -> dict[int, Doubt]:
    """What `doubt_of` says of each value, given those that it believed before.

    Of a year in steps of five minutes most values are seen to be in range by a sorted window that
    is carried along; only the others are asked about.
    """
    doubts: dict[int, Doubt] = {}
    numbers = np.arange(len(series.values), dtype=np.float64)
    times_s: NDArray[np.float64] = series.start_s + series.step_s * numbers
    believed = series.values.copy()
    window: list[float] = []
    first = 0  # of the window
    for number, g_per_kwh in enumerate(series.values.tolist()):
        if math.isnan(g_per_kwh):
            continue
        doubt = doubt_by_itself(g_per_kwh)
        while times_s[first] < times_s[number] - WINDOW_S:
            if not math.isnan(believed[first]):
                del window[bisect_left(window, math.log(believed[first]))]
            first += 1
        if doubt is None and window and _is_outside(math.log(g_per_kwh), window):
            past = slice(first, number)
            doubt = doubt_of(float(times_s[number]), g_per_kwh, times_s[past], believed[past])
        if doubt is None:
            insort(window, math.log(g_per_kwh))
        else:
            doubts[number] = doubt
            believed[number] = np.nan
    return doubts


def _can_judge(n: int, past_s: NDArray[np.float64], start_s: float) -> bool:
    if n < MIN_VALUES or start_s - past_s[0] < MIN_SPAN_S:
        return False
    return bool(start_s - past_s[-1] <= FORGET_S)


def _is_outside(value: float, ordered: NDArray[np.float64] | list[float]) -> bool:
    """Whether a logarithm lies far outside of the trimmed range of others."""
    n_left_out = min(math.ceil(TRIM * len(ordered)), (len(ordered) - 1) // 2)
    margin = math.log(RANGE_FACTOR)
    low, high = ordered[n_left_out], ordered[-1 - n_left_out]
    return bool(value < low - margin or value > high + margin)


def _usual_change(past_s: NDArray[np.float64], past: NDArray[np.float64], lag_s: float) -> float:
    """The largest change within a time, but for the share `TRIM` of the largest."""
    largest = 0.0
    for n_apart in range(1, len(past)):
        is_within = past_s[n_apart:] - past_s[:-n_apart] <= lag_s * (1 + 1e-9)
        # Neighbours always count: a value may come sooner than they ever did.
        if n_apart > 1 and not is_within.any():
            break
        changes = np.abs(past[n_apart:] - past[:-n_apart])
        largest = max(largest, _trimmed_high(changes[is_within] if n_apart > 1 else changes))
    return largest


def _trimmed_high(values: NDArray[np.float64]) -> float:
    kept = max(0, len(values) - 1 - math.ceil(TRIM * len(values)))
    return float(np.partition(values, kept)[kept])


def _lone_rows(step_s: float, values: NDArray[np.float64]) -> list[int]:
    """Numbers of the rows that depart from all around them for one step."""
    logs = np.log(values)
    n_window = int(WINDOW_S / step_s)
    if len(logs) < MIN_VALUES or len(logs) * step_s < MIN_SPAN_S:
        return []
    before, after = np.full_like(logs, np.nan), np.full_like(logs, np.nan)
    before[1:], after[:-1] = logs[1:] - logs[:-1], logs[:-1] - logs[1:]
    departures = np.where(before * after > 0, np.fmin(np.abs(before), np.abs(after)), 0.0)
    found = []
    for number in np.flatnonzero(departures > LONE_LEAST).tolist():
        around = np.delete(logs[max(0, number - 2) : number + 3], min(2, number))
        departure = float(departures[number])
        if departure <= LONE_FACTOR * float(np.nanmax(around) - np.nanmin(around)):
            continue
        window = departures[max(0, number - n_window) : number + n_window + 1]
        if departure > LONE_FACTOR * _trimmed_high(window):
            found.append(number)
    return found

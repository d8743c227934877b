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

A value of 0 is what a dead source reads. Over the life cycle of its plants no grid emits nothing;
directly, one of wind, sun, water and nuclear power does. So a 0 of the direct scope counts where
the mix of its time explains it, or where several follow each other for an hour, no mix speaks
against them and the weeks before came near 0; how fast they came down does not matter.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from enum import StrEnum

import numpy as np

from ecorl.carbon.series import FloatArray, Series
from ecorl.grid import Fuel, Scope

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

SEVERAL, SEVERAL_S = 3, 3600.0
"""So many zeros in a row count without a mix, in the direct scope, where the last begins at least
so long after the first, s. Invented: a source that drops out for a row or two, or for some rows of
five minutes, does not pass for a grid."""

NEAR_ZERO_G_PER_KWH = 50.0
"""Added to direct intensities before they are compared, g/kWh: relations say nothing of grids that
come down to 0. Invented: one that was at 50 g/kWh in the last weeks may come down to 0, and one
that never was below 100 may not at once."""

EXPLAINED_FROM = 0.99
"""Share of what emits nothing directly from which on a mix explains a 0: a hundredth of gas makes
4 g/kWh, and providers round shares to a thousandth."""

_CARBON_FREE = frozenset({Fuel.WIND, Fuel.SOLAR, Fuel.HYDRO, Fuel.GEOTHERMAL, Fuel.NUCLEAR})
_FOSSIL = frozenset({Fuel.GAS, Fuel.OIL, Fuel.COAL})


class Doubt(StrEnum):
    """Why a value is not believed."""

    NOT_FINITE = "not_finite"  # it is no number, or infinite
    NEGATIVE = "negative"  # no electricity takes carbon out of the air
    ZERO = "zero"  # what a dead source reads, and nothing explains
    ABOVE_ANY_GRID = "above_any_grid"  # beyond what any mix of plants can emit
    OUT_OF_KEEPING = "out_of_keeping"  # beyond what this grid does, by its last weeks


def doubt_of(
    start_s: float,
    g_per_kwh: float,
    times_s: FloatArray,
    values: FloatArray,
    scope: Scope = Scope.LIFE_CYCLE,
    *,
    may_be_zero: bool = False,
    is_explained: bool = False,
) -> Doubt | None:
    """Why a value is not to be believed, or None.

    Nothing later than the value is used, even when it is given.

    Args:
        start_s: begin of the value's interval, s since 1970.
        g_per_kwh: the value, g/kWh.
        times_s: ``[n] float64``, begins of earlier intervals, ascending, s since 1970.
        values: ``[n] float64``, what was believed for them, g/kWh; those that cannot be by
            themselves are left out.
        scope: of the values.
        may_be_zero: whether a 0 counts here, by `zeros_that_count`.
        is_explained: whether something beside the value explains that it is low.
    """
    by_itself = doubt_by_itself(g_per_kwh, may_be_zero)
    if by_itself is not None:
        return by_itself
    is_used = (times_s < start_s) & (times_s >= start_s - WINDOW_S) & (values <= MAX_G_PER_KWH)
    is_used &= values >= 0 if scope is Scope.DIRECT else values > 0
    past_s, past = times_s[is_used], np.log(values[is_used] + _added(scope))
    if not _can_judge(len(past), past_s, start_s):
        return None
    value = math.log(g_per_kwh + _added(scope))
    if is_explained and value < np.median(past):
        return None
    if not _is_outside(value, np.sort(past)):
        return None
    change = abs(value - float(past[-1]))
    usual = _usual_change(past_s, past, start_s - float(past_s[-1]))
    return Doubt.OUT_OF_KEEPING if change > CHANGE_FACTOR * usual else None


def explains_zero(scope: Scope, mix: Mapping[Fuel, float] | None) -> bool | None:
    """Whether a grid of a mix emits nothing; None where the mix does not decide that.

    Args:
        scope: which emissions are meant.
        mix: share of each fuel, 0 to 1; None where it is not known.
    """
    if scope is not Scope.DIRECT:
        return False
    if mix is None:
        return None
    if sum(share for fuel, share in mix.items() if fuel in _CARBON_FREE) >= EXPLAINED_FROM:
        return True
    burnt = sum(share for fuel, share in mix.items() if fuel in _FOSSIL)
    return None if burnt <= 1 - EXPLAINED_FROM else False


def zeros_that_count(
    times_s: FloatArray, values: FloatArray, explained: Sequence[bool | None]
) -> set[int]:
    """Numbers of the zeros that are a grid's, of values of the direct scope in the order of time.

    A row of zeros that nothing explains counts as a whole, or not at all.

    Args:
        times_s: ``[n] float64``, begins of the intervals, s since 1970.
        values: ``[n] float64``, intensities, g/kWh; what is missing (NaN) parts no row of zeros.
        explained: of each value, what `explains_zero` says.
    """
    found: set[int] = set()
    row: list[int] = []
    believed = np.where((values >= 0) & (values <= MAX_G_PER_KWH), values, np.nan)
    for number, value in enumerate((*values.tolist(), math.inf)):
        if value == 0 and explained[number] is not False:
            row.append(number)
            continue
        if value == 0:
            believed[number] = np.nan
        if math.isnan(value) or not row:
            continue
        is_row = len(row) >= SEVERAL and times_s[row[-1]] - times_s[row[0]] >= SEVERAL_S
        is_row = is_row and (
            any(explained[n] for n in row) or _came_near_zero(times_s, believed, row[0])
        )
        counting = [n for n in row if explained[n] or is_row]
        believed[list(set(row).difference(counting))] = np.nan
        found.update(counting)
        row = []
    return found


def _came_near_zero(times_s: FloatArray, believed: FloatArray, number: int) -> bool:
    """Whether a 0 lies within what a grid did in the weeks before it, as far as they are known."""
    first = int(np.searchsorted(times_s, times_s[number] - WINDOW_S))
    past = believed[first:number]
    past = np.sort(np.log(past[~np.isnan(past)] + NEAR_ZERO_G_PER_KWH))
    return not len(past) or not _is_outside(math.log(NEAR_ZERO_G_PER_KWH), past)


def doubt_by_itself(g_per_kwh: float, may_be_zero: bool = False) -> Doubt | None:
    """Why a value cannot be any grid's intensity, or None.

    Args:
        g_per_kwh: the value, g/kWh.
        may_be_zero: whether a 0 counts here, by `zeros_that_count`.
    """
    if not math.isfinite(g_per_kwh):
        return Doubt.NOT_FINITE
    if g_per_kwh < 0:
        return Doubt.NEGATIVE
    if g_per_kwh == 0 and not may_be_zero:
        return Doubt.ZERO
    return Doubt.ABOVE_ANY_GRID if g_per_kwh > MAX_G_PER_KWH else None


def doubts_in(
    series: Series, scope: Scope = Scope.LIFE_CYCLE, explained: Sequence[bool | None] | None = None
) -> dict[int, Doubt]:
    """The values of a recorded series that are not to be believed, by their number.

    Args:
        series: intensities, g/kWh; what is missing (NaN) is not doubted.
        scope: of the values.
        explained: of each value, what `explains_zero` says; None where no mix is known.
    """
    if explained is None:
        explained = [explains_zero(scope, None)] * len(series.values)
    doubts = _one_by_one(series, scope, explained)
    left = series.values.copy()
    left[list(doubts)] = np.nan
    for number in _lone_rows(series.step_s, np.log(left + _added(scope))):
        if not (explained[number] and left[number] < left[number - 1]):
            doubts[number] = Doubt.OUT_OF_KEEPING
    return dict(sorted(doubts.items()))


def _one_by_one(series: Series, scope: Scope, explained: Sequence[bool | None]) -> dict[int, Doubt]:
    """What `doubt_of` says of each value, given those that it believed before.

    Of a year in steps of five minutes most values are seen to be in range by a sorted window that
    is carried along; only the others are asked about.
    """
    doubts: dict[int, Doubt] = {}
    numbers, added = np.arange(len(series.values), dtype=np.float64), _added(scope)
    times_s: FloatArray = series.start_s + series.step_s * numbers
    zeros = zeros_that_count(times_s, series.values, explained)
    believed = series.values.copy()
    window: list[float] = []
    first = 0  # of the window
    for number, g_per_kwh in enumerate(series.values.tolist()):
        if math.isnan(g_per_kwh):
            continue
        doubt = doubt_by_itself(g_per_kwh, number in zeros)
        while times_s[first] < times_s[number] - WINDOW_S:
            if not math.isnan(believed[first]):
                del window[bisect_left(window, math.log(believed[first] + added))]
            first += 1
        if doubt is None and window and _is_outside(math.log(g_per_kwh + added), window):
            past = slice(first, number)
            start_s = float(times_s[number])
            is_explained = bool(explained[number] or g_per_kwh == 0)
            doubt = doubt_of(start_s, g_per_kwh, times_s[past], believed[past], scope,
                             may_be_zero=True, is_explained=is_explained)  # fmt: skip
        if doubt is None:
            insort(window, math.log(g_per_kwh + added))
        else:
            doubts[number] = doubt
            believed[number] = np.nan
    return doubts


def _added(scope: Scope) -> float:
    return NEAR_ZERO_G_PER_KWH if scope is Scope.DIRECT else 0.0


def _can_judge(n: int, past_s: FloatArray, start_s: float) -> bool:
    if n < MIN_VALUES or start_s - past_s[0] < MIN_SPAN_S:
        return False
    return bool(start_s - past_s[-1] <= FORGET_S)


def _is_outside(value: float, ordered: FloatArray | list[float]) -> bool:
    """Whether a logarithm lies far outside of the trimmed range of others."""
    n_left_out = min(math.ceil(TRIM * len(ordered)), (len(ordered) - 1) // 2)
    margin = math.log(RANGE_FACTOR)
    low, high = ordered[n_left_out], ordered[-1 - n_left_out]
    return bool(value < low - margin or value > high + margin)


def _usual_change(past_s: FloatArray, past: FloatArray, lag_s: float) -> float:
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


def _trimmed_high(values: FloatArray) -> float:
    kept = max(0, len(values) - 1 - math.ceil(TRIM * len(values)))
    return float(np.partition(values, kept)[kept])


def _lone_rows(step_s: float, logs: FloatArray) -> list[int]:
    """Numbers of the rows that depart from all around them for one step."""
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

"""What ecorl finds for the claims about carbon: by a made-up day, by models, by recorded grids.

The made-up day is `SyntheticFeed` as it is; it has the extremes of the blog's mock data. Figures of
grids come from recordings. None of them uses a forecast that must be learnt: those are in
`benchmarks.carbon`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from benchmarks.studies.carbon.waits import (
    WAITED_PERCENTILE,
    View,
    Watcher,
    late_watcher,
    play,
)
from benchmarks.studies.papers.carbon_claims import ACT, BLOG, PAPER, UTC_OFFSET_H, hours_of_run
from benchmarks.studies.papers.scheduler_claims import inference_energy_share
from ecorl.carbon.feeds.local import STEP_S, SyntheticFeed
from ecorl.carbon.forecasts.forecast import Forecast
from ecorl.carbon.forecasts.history import DAY_S, HOUR_S
from ecorl.carbon.series import Series
from ecorl.controllers.replay.knowledge import told
from ecorl.controllers.waiting import Waiting

Float64 = NDArray[np.float64]

MAX_WAIT_H = 24.0
JOB_H = 6.0

MIN_DAYS = 7
"""Shortest recording that says anything of a grid, days."""

GRID_EVERY = 7
"""Start times on recordings, in intervals: seven hours have no factor in common with a day's 24, so
that all hours of the day come round."""


def without_grids() -> dict[str, float]:
    """What ecorl finds without a recording, by claim: by the made-up day, or by a model."""
    found = by_series(made_up_days(4), 0.0, 1) | {"average_reduction_6h": _by_percentile()}
    share = inference_energy_share()
    saved_kg = share * PAPER["before_kg"]
    card_kg = PAPER["embodied_kg"][1] / PAPER["runs"]
    return found | {
        "cut_abstract": share,
        "saved_70b": saved_kg,
        "embodied_share": card_kg / saved_kg,
        "net_benefit": saved_kg / card_kg,
        "embodied": PAPER["n_cards"] * act_kg_per_card(),
        "embodied_per_card": PAPER["n_cards"] * act_kg_per_card(),
        "act_per_area": act_kg_per_cm2("7nm"),
    }


def along_grids(grids: Mapping[str, Series]) -> dict[str, dict[str, float]]:
    """What ecorl finds along recordings, by grid and claim.

    Args:
        grids: recorded intensities by grid, g/kWh, in intervals of at most an hour.
    """
    return {
        name: by_series(series, UTC_OFFSET_H.get(name), GRID_EVERY)
        for name, series in grids.items()
        if can_be_used(series)
    }


def can_be_used(series: Series) -> bool:
    """Whether a recording is fine and long enough.

    Args:
        series: the intensity.
    """
    days = len(series.values) * series.step_s / DAY_S
    return series.step_s <= HOUR_S and days >= MIN_DAYS


def made_up_days(n_days: int) -> Series:
    """The made-up day, again and again.

    Args:
        n_days: how often.
    """
    feed = SyntheticFeed()
    values = feed.history(0.0, n_days * DAY_S)
    return Series(0.0, STEP_S, np.array([value.g_per_kwh for value in values]))


def by_series(series: Series, utc_offset_h: float | None, every: int) -> dict[str, float]:
    """Figures of one course of the intensity.

    Args:
        series: the intensity, g/kWh.
        utc_offset_h: local time less UTC, h; None where it is not known.
        every: from one start time to the next, intervals.
    """
    found = {
        "daily_swing": daily_swing(series),
        "average_reduction": threshold_saving(series, every),
        "average_reduction_bound": best_saving(series, series.step_s / HOUR_S),
        "ten_minutes": largest_fall(series, 600.0),
        "invariant_course": saved_share_spread(series),
        "shift_before": best_saving(series, hours_of_run()),
        "shift_after": best_saving(series, hours_of_run(PAPER["speedup"])),
        "grid_mean": float(np.nanmean(series.values)),
    }
    if utc_offset_h is not None:
        found["mock_peak"] = mean_of_hours(series, 18.0, 22.0, utc_offset_h)
        found["mock_low"] = mean_of_hours(series, 2.0, 6.0, utc_offset_h)
    return found


def daily_swing(series: Series) -> float:
    """Highest over lowest value of a day (UTC), the median day.

    Args:
        series: the intensity, from a midnight on.
    """
    day = round(DAY_S / series.step_s)
    n_days = len(series.values) // day
    days = series.values[: n_days * day].reshape(n_days, day)
    days = days[~np.isnan(days).any(axis=1)]
    return float(np.median(days.max(axis=1) / days.min(axis=1)))


def mean_of_hours(series: Series, from_h: float, to_h: float, utc_offset_h: float) -> float:
    """Mean of some hours of the local day, g/kWh.

    Args:
        series: the intensity.
        from_h: first hour, local time.
        to_h: the hour after the last.
        utc_offset_h: local time less UTC, h.
    """
    starts_s = series.start_s + np.arange(len(series.values)) * series.step_s
    local_h = (starts_s / HOUR_S + utc_offset_h) % 24.0
    return float(np.nanmean(series.values[(local_h >= from_h) & (local_h < to_h)]))


def largest_fall(series: Series, within_s: float) -> float:
    """The largest fall within a time, or from one value to the next where they lie farther apart.

    Args:
        series: the intensity.
        within_s: the time, s.
    """
    apart = max(1, round(within_s / series.step_s))
    return float(np.nanmax(series.values[:-apart] - series.values[apart:]))


def threshold_saving(series: Series, every: int) -> float:
    """What the blog's rule saves: a threshold of 300 g/kWh, a job within one interval.

    Args:
        series: the intensity.
        every: from one start time to the next, intervals.
    """
    rule = Waiting(
        threshold_g_per_kwh=BLOG["threshold_g_per_kwh"],
        max_wait_s=MAX_WAIT_H * HOUR_S,
        recheck_s=series.step_s,
    )
    return _played_saving(rule, late_watcher(series), series, 1, every)


def best_saving(series: Series, work_h: float) -> float:
    """What the best start within `MAX_WAIT_H` saves against starting at once, the course known.

    Args:
        series: the intensity; start times with missing values ahead are left out.
        work_h: how long the job works, h, at constant power.
    """
    at_once = _emitted(series, work_h)
    n_wait = round(MAX_WAIT_H * HOUR_S / series.step_s)
    best = np.lib.stride_tricks.sliding_window_view(at_once, n_wait + 1).min(axis=1)
    best = best[: _whole_days(series, len(best))]
    first = at_once[: len(best)]
    is_known = ~np.isnan(best)
    return float(1.0 - best[is_known].sum() / first[is_known].sum())


def saved_share_spread(series: Series) -> float:
    """95th less 5th percentile of the share that the paper's run saves, over its start times.

    Before, it takes `hours_of_run`; after, it draws less energy by the printed share, over a time
    that is shorter by the printed speedup.

    Args:
        series: the intensity.
    """
    before, after = (_emitted(series, hours_of_run(speed)) for speed in (1.0, PAPER["speedup"]))
    n = _whole_days(series, len(before))
    means = [part[:n] / hours for part, hours in (
        (before, hours_of_run()), (after, hours_of_run(PAPER["speedup"])))]  # fmt: skip
    shares = 1.0 - (1.0 - PAPER["energy_cut"]) * means[1] / means[0]
    low, high = np.nanpercentile(shares, (5.0, 95.0))
    return float(high - low)


def act_kg_per_cm2(node: str) -> float:
    """ACT's emissions of an area of logic, kgCO2e/cm2.

    Args:
        node: of the process, ``14nm`` or ``7nm``.
    """
    energy_kg = ACT["energy_kwh_per_cm2"][node] * ACT["fab_g_per_kwh"] / 1e3
    parts = energy_kg + ACT["gas_kg_per_cm2"][node] + ACT["materials_kg_per_cm2"][node]
    return float(parts / ACT["fab_yield"])


def act_kg_per_card() -> float:
    """ACT's emissions of making a card's dies of 14 nm, memory and package, kgCO2e."""
    area_cm2 = PAPER["n_dies"] * PAPER["die_mm2"] / 100.0
    memory_kg = ACT["memory_gb"] * ACT["memory_kg_per_gb"]
    return float(area_cm2 * act_kg_per_cm2("14nm") + memory_kg + ACT["package_kg"])


def _foreseer(series: Series) -> Watcher:
    """Knows an interval's value as it begins, and the coming day without error."""

    def view(number: int) -> View:
        start_s = series.start_s + number * series.step_s
        ahead = series.values[number : number + round(DAY_S / series.step_s)]
        forecast = Forecast("known", start_s, start_s, series.step_s, ahead)
        return View(told(series, number), forecast)

    return view


def _by_percentile() -> float:
    """What ecorl's rule saves on the made-up day for a job of `JOB_H`, hour by hour."""
    fine = made_up_days(5)
    per_hour = round(HOUR_S / fine.step_s)
    hours = Series(0.0, HOUR_S, fine.values.reshape(-1, per_hour).mean(axis=1))
    rule = Waiting(
        threshold_g_per_kwh=None,
        max_wait_s=MAX_WAIT_H * HOUR_S,
        recheck_s=HOUR_S,
        percentile=WAITED_PERCENTILE,
    )
    return _played_saving(rule, _foreseer(hours), hours, round(JOB_H), 1, 24)


def _played_saving(
    rule: Waiting,
    watcher: Watcher,
    series: Series,
    n_work: int,
    every: int,
    n_starts: int | None = None,
) -> float:
    """Share of CO2e that a rule saves against starting at once, all start times together."""
    day, values = round(DAY_S / series.step_s), series.values
    end = len(values) - day - n_work if n_starts is None else day + n_starts
    plain = ruled = 0.0
    for first in range(day, end, every):
        if np.isnan(values[first : first + day + n_work]).any():
            continue
        worked = play(rule, watcher, series, first, n_work)
        plain += float(values[first : first + n_work].sum())
        ruled += float(values[worked].sum())
    return 1.0 - ruled / plain


def _whole_days(series: Series, n: int) -> int:
    """As many intervals in whole days, so that each hour of the day counts alike."""
    day = round(DAY_S / series.step_s)
    return n - n % day


def _emitted(series: Series, work_h: float) -> Float64:
    """g/kWh x h of a job at constant power begun in each interval; NaN where a value is missing."""
    work = work_h * HOUR_S / series.step_s
    n = len(series.values)
    starts = np.arange(max(0, int(np.floor(n - work)) + 1), dtype=np.float64)
    is_missing = np.isnan(series.values)
    edges = np.arange(n + 1, dtype=np.float64)
    sums, gaps = (
        np.concatenate(([0.0], np.cumsum(part)))
        for part in (np.where(is_missing, 0.0, series.values), is_missing.astype(np.float64))
    )
    rises = [np.interp(starts + work, edges, c) - np.interp(starts, edges, c) for c in (sums, gaps)]
    found: Float64 = np.where(rises[1] > 0.0, np.nan, rises[0]) * series.step_s / HOUR_S
    return found

"""What waiting for a clean window saves, over many jobs along a recorded series.

A job draws constant power in whole intervals of the series and begins with one of them. Each
interval it asks `ecorl.controllers.waiting.decide`, with what is known at the interval's begin.
Jobs are pairs: each is played with a rule and started at once, at the same time and with the same
power, so that a saving is a share of what the jobs would have emitted otherwise. Start times stand
on every n-th day, some of each day's hours, and on other hours the next time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.studies.carbon.scores import RememberedForecasts
from ecorl.bench.stats import LEAST_VALUES, RESAMPLES
from ecorl.carbon.forecasts.forecast import Forecast
from ecorl.carbon.forecasts.history import DAY_S, HOUR_S
from ecorl.carbon.series import Series
from ecorl.control import Command
from ecorl.controllers.protocol import Seen
from ecorl.controllers.replay.knowledge import told
from ecorl.controllers.waiting import Waiting, decide
from ecorl.grid import Intensity

WAITED_PERCENTILE = 30.0
"""Percentile of the coming day's forecast at or below which the jobs here run. Stated, not tuned:
about seven hours of a day are at or below it."""


WEEK_S = 7 * DAY_S

START, STEPS, EARLY, FIXED = "start", "steps", "told_early", "fixed_threshold"
BEST_START, BEST_STEPS = "best_start", "best_steps"


class View(NamedTuple):
    """The newest intensity that has been told at the begin of an interval, and a forecast of it."""

    intensity: Intensity | None
    forecast: Forecast | None = None


Watcher = Callable[[int], View]
"""Knows what can be known at the begin of each interval of a series, by its number."""


def late_watcher(series: Series, forecasts: RememberedForecasts | None = None) -> Watcher:
    """Knows an interval's value when it has ended, as of grid operators' records, and forecasts.

    Args:
        series: the intensities, g/kWh.
        forecasts: of the series; None for a watcher without forecasts.
    """

    def view(number: int) -> View:
        forecast = None if forecasts is None else forecasts.after(number)
        return View(told(series, number - 1), forecast)

    return view


def early_watcher(series: Series, forecasts: RememberedForecasts) -> Watcher:
    """Knows an interval's value as it begins, as of providers that estimate it, and forecasts.

    Args:
        series: the intensities, g/kWh.
        forecasts: of the series.
    """

    def view(number: int) -> View:
        ahead = forecasts.after(number + 1)
        now = series.values[number : number + 1]
        middle = ahead.middle if np.isnan(now).any() else np.concatenate((now, ahead.middle))
        start_s = ahead.start_s - (len(middle) - len(ahead.middle)) * ahead.step_s
        made = replace(ahead, start_s=start_s, middle=middle, low=None, high=None)
        return View(told(series, number), made)

    return view


def play(rule: Waiting, watcher: Watcher, series: Series, first: int, n_work: int) -> list[int]:
    """Play one job until it is done.

    Args:
        rule: when it waits; decisions are taken once an interval.
        watcher: what it knows.
        series: for the times of the intervals.
        first: interval in which it may begin.
        n_work: number of intervals that it works.

    Returns:
        The intervals in which it worked.
    """
    worked: list[int] = []
    number = first
    while len(worked) < n_work:
        begun = bool(worked)
        # What nobody looks at need not be forecast.
        view = View(None) if begun and not rule.at_steps else watcher(number)
        seen = Seen(
            intensity=view.intensity,
            forecast=view.forecast,
            waited_s=(number - first - len(worked)) * series.step_s,
            has_begun=begun,
            left_s=(n_work - len(worked)) * series.step_s,
        )
        if decide(rule, series.start_s + number * series.step_s, seen).command is Command.RUN:
            worked.append(number)
        number += 1
    return worked


def best_start(values: NDArray[np.float64], n_work: int) -> float:
    """Least sum of intensities of a job without a pause, with the whole course known.

    Args:
        values: ``[n] float64``, of the intervals in which it may work.
        n_work: number of intervals that it works.
    """
    windows = np.lib.stride_tricks.sliding_window_view(values, n_work)
    return float(windows.sum(axis=1).min())


def best_steps(values: NDArray[np.float64], n_work: int) -> float:
    """Least sum of intensities of a job that may pause at any interval, the whole course known.

    Args:
        values: ``[n] float64``, of the intervals in which it may work.
        n_work: number of intervals that it works.
    """
    return float(np.sort(values)[:n_work].sum())


@dataclass(frozen=True, slots=True)
class WaitingJob:
    """A job that may wait.

    Attributes:
        work_h: how long it works, h.
        max_wait_h: how long it waits at most, h.
    """

    work_h: float = 6.0
    max_wait_h: float = 24.0

    def steps(self, series: Series) -> tuple[int, int]:
        """Work and longest wait in intervals of a series.

        Args:
            series: whose intervals are meant.
        """
        work = max(1, round(self.work_h * HOUR_S / series.step_s))
        return work, round(self.max_wait_h * HOUR_S / series.step_s)


@dataclass(frozen=True, slots=True)
class Saving:
    """What a rule saves.

    Attributes:
        share: of the emissions of all jobs together, 0 to 1; negative where they rise.
        interval_95: of the share, by resampling weeks; None below `LEAST_VALUES` weeks.
        mean_share: mean of each job's own share.
        mean_wait_h: mean wait, h; None for a bound, which is no rule.
    """

    share: float
    interval_95: tuple[float, float] | None
    mean_share: float
    mean_wait_h: float | None


@dataclass(frozen=True, slots=True)
class Savings:
    """What several rules save in the same jobs.

    Attributes:
        n_jobs: number of jobs.
        n_weeks: number of weeks that they lie in.
        n_left_out: number of start times without a job, since values are missing there.
        fixed_g_per_kwh: threshold of the rule that has a fixed one.
        by_rule: the rules' savings by name.
    """

    n_jobs: int
    n_weeks: int
    n_left_out: int
    fixed_g_per_kwh: float
    by_rule: Mapping[str, Saving]


def start_numbers(
    series: Series, warm_up_days: int, every_days: int, every_h: float, ahead: int
) -> list[int]:
    """Intervals in which jobs may begin, rising.

    Args:
        series: along which they are.
        warm_up_days: how much of the series comes before the first, days.
        every_days: from one day with jobs to the next, days.
        every_h: from one job of a day to the next, h; each time other hours of the day come.
        ahead: number of intervals that there must be from a start on.
    """
    day, every = round(DAY_S / series.step_s), round(every_h * HOUR_S / series.step_s)
    hour = round(HOUR_S / series.step_s)
    firsts = range(warm_up_days * day, len(series.values) - day, every_days * day)
    return [
        n
        for turn, first in enumerate(firsts)
        for n in range(first + (turn * hour) % every, first + day, every)
        if n + ahead <= len(series.values)
    ]


def wait_savings(
    series: Series, forecasts: RememberedForecasts, starts: Sequence[int], job: WaitingJob
) -> Savings | None:
    """Play all jobs with all rules.

    Args:
        series: the intensities, g/kWh.
        forecasts: of the series, at least a day long.
        starts: intervals in which jobs may begin, rising.
        job: what is played.

    Returns:
        The savings; None where all start times lie beside missing values.
    """
    n_work, n_wait = job.steps(series)
    values = series.values
    kept = [n for n in starts if not np.isnan(values[n : n + n_wait + n_work]).any()]
    if not kept:
        return None
    fixed = float(np.nanpercentile(values[: starts[0]], WAITED_PERCENTILE))
    emitted: dict[str, list[float]] = {}
    waited: dict[str, list[int]] = {}
    players = _players(series, forecasts, job, fixed)
    for number in kept:
        for name, (rule, watcher) in players.items():
            worked = play(rule, watcher, series, number, n_work)
            emitted.setdefault(name, []).append(float(values[worked].sum()))
            waited.setdefault(name, []).append(worked[-1] + 1 - number - n_work)
        reach = values[number : number + n_wait + n_work]
        emitted.setdefault(BEST_START, []).append(best_start(reach, n_work))
        emitted.setdefault(BEST_STEPS, []).append(best_steps(reach, n_work))
    at_once = np.array([values[n : n + n_work].sum() for n in kept])
    weeks = np.array([(n - kept[0]) * series.step_s // WEEK_S for n in kept], dtype=np.int64)
    hours = series.step_s / HOUR_S
    by_rule = {
        name: Saving(
            share=1.0 - float(np.sum(amounts) / at_once.sum()),
            interval_95=share_interval(at_once, np.array(amounts), weeks),
            mean_share=float(np.mean(1.0 - np.array(amounts) / at_once)),
            mean_wait_h=float(np.mean(waited[name])) * hours if name in waited else None,
        )
        for name, amounts in emitted.items()
    }
    return Savings(len(kept), len(np.unique(weeks)), len(starts) - len(kept), fixed, by_rule)


def _players(
    series: Series, forecasts: RememberedForecasts, job: WaitingJob, fixed_g_per_kwh: float
) -> dict[str, tuple[Waiting, Watcher]]:
    """The rules, and what each knows."""
    by_forecast = Waiting(
        threshold_g_per_kwh=None,
        max_wait_s=job.max_wait_h * HOUR_S,
        recheck_s=series.step_s,
        percentile=WAITED_PERCENTILE,
    )
    fixed = replace(by_forecast, threshold_g_per_kwh=fixed_g_per_kwh, percentile=None)
    late = late_watcher(series, forecasts)
    return {
        START: (by_forecast, late),
        STEPS: (replace(by_forecast, at_steps=True), late),
        EARLY: (by_forecast, early_watcher(series, forecasts)),
        FIXED: (fixed, late_watcher(series)),
    }


def share_interval(
    at_once: NDArray[np.float64],
    amounts: NDArray[np.float64],
    weeks: NDArray[np.int64],
    seed: int = 0,
) -> tuple[float, float] | None:
    """The 95 % interval of a saved share, by drawing weeks with all of their jobs.

    Jobs of one week share its weather; weeks are taken to have nothing to do with each other.

    Args:
        at_once: ``[n] float64``, emissions of each job started at once.
        amounts: ``[n] float64``, emissions of each with a rule.
        weeks: ``[n] int64``, the week of each.
        seed: of the draws.

    Returns:
        Both ends, or None below `LEAST_VALUES` weeks: so few say little of a spread.
    """
    numbers, place = np.unique(weeks, return_inverse=True)
    if len(numbers) < LEAST_VALUES:
        return None
    plain, ruled = (np.bincount(place, part) for part in (at_once, amounts))
    picks = np.random.default_rng(seed).integers(len(numbers), size=(RESAMPLES, len(numbers)))
    shares = 1.0 - ruled[picks].sum(axis=1) / plain[picks].sum(axis=1)
    low, high = np.quantile(shares, [0.025, 0.975])
    return float(low), float(high)

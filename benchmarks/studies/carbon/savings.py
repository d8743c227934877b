"""What waiting saves, over many jobs along a recorded series.

Jobs are pairs: each is played with a rule and started at once, at the same time and with the same
power, so that a saving is a share of what the jobs would have emitted otherwise. Start times stand
on every n-th day, some of each day's hours, and on other hours the next time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.studies.carbon.forecasts import RememberedForecasts
from benchmarks.studies.carbon.waits import (
    WAITED_PERCENTILE,
    EarlyWatcher,
    LateWatcher,
    Watcher,
    best_start,
    best_steps,
    play,
)
from ecorl.bench.stats import LEAST_VALUES, RESAMPLES
from ecorl.carbon.forecasts.history import DAY_S, HOUR_S
from ecorl.carbon.series import Series
from ecorl.controllers.waiting import Waiting

WEEK_S = 7 * DAY_S

START, STEPS, EARLY, FIXED = "start", "steps", "told_early", "fixed_threshold"
BEST_START, BEST_STEPS = "best_start", "best_steps"


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
    found: list[int] = []
    for turn, first in enumerate(
        range(warm_up_days * day, len(series.values) - day, every_days * day)
    ):
        offset = (turn * hour) % every
        found += range(first + offset, first + day, every)
    return [n for n in found if n + ahead <= len(series.values)]


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
            played = play(rule, watcher, series, number, n_work)
            emitted.setdefault(name, []).append(float(values[played.worked].sum()))
            waited.setdefault(name, []).append(played.n_waited)
        reach = values[number : number + n_wait + n_work]
        emitted.setdefault(BEST_START, []).append(best_start(reach, n_work))
        emitted.setdefault(BEST_STEPS, []).append(best_steps(reach, n_work))
    at_once = np.array([values[n : n + n_work].sum() for n in kept])
    weeks = np.array([(n - kept[0]) * series.step_s // WEEK_S for n in kept], dtype=np.int64)
    hours = series.step_s / HOUR_S
    by_rule = {
        name: _saving(
            at_once,
            np.array(amounts),
            weeks,
            float(np.mean(waited[name])) * hours if name in waited else None,
        )
        for name, amounts in emitted.items()
    }
    return Savings(len(kept), len(np.unique(weeks)), len(starts) - len(kept), fixed, by_rule)


def _players(
    series: Series, forecasts: RememberedForecasts, job: WaitingJob, fixed_g_per_kwh: float
) -> dict[str, tuple[Waiting, Watcher]]:
    """The rules, and what each knows."""

    def rule(threshold_g_per_kwh: float | None = None, at_steps: bool = False) -> Waiting:
        return Waiting(
            threshold_g_per_kwh=threshold_g_per_kwh,
            max_wait_s=job.max_wait_h * HOUR_S,
            recheck_s=series.step_s,
            percentile=WAITED_PERCENTILE if threshold_g_per_kwh is None else None,
            at_steps=at_steps,
        )

    late = LateWatcher(series, forecasts)
    return {
        START: (rule(), late),
        STEPS: (rule(at_steps=True), late),
        EARLY: (rule(), EarlyWatcher(series, forecasts)),
        FIXED: (rule(fixed_g_per_kwh), LateWatcher(series)),
    }


def _saving(
    at_once: NDArray[np.float64],
    amounts: NDArray[np.float64],
    weeks: NDArray[np.int64],
    mean_wait_h: float | None,
) -> Saving:
    return Saving(
        share=1.0 - float(amounts.sum() / at_once.sum()),
        interval_95=share_interval(at_once, amounts, weeks),
        mean_share=float(np.mean(1.0 - amounts / at_once)),
        mean_wait_h=mean_wait_h,
    )


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

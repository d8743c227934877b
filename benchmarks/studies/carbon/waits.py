"""One job that waits for a clean window, played on a series of intensities with the real decision.

The job draws constant power in whole intervals of the series and begins with one of them. Each
interval it asks `ecorl.controllers.waiting.decide`, with what is known at the interval's begin.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from benchmarks.studies.carbon.forecasts import RememberedForecasts
from ecorl.carbon.forecasts.forecast import Forecast
from ecorl.carbon.series import Series
from ecorl.control import Command
from ecorl.controllers.protocol import Seen
from ecorl.controllers.replay.knowledge import told
from ecorl.controllers.waiting import Waiting, decide
from ecorl.grid import Intensity

WAITED_PERCENTILE = 30.0
"""Percentile of the coming day's forecast at or below which the jobs here run. Stated, not tuned:
about seven hours of a day are at or below it."""


@dataclass(frozen=True, slots=True)
class View:
    """What is known at the begin of an interval.

    Attributes:
        intensity: the newest that has been told; None where it is missing.
        forecast: of the intensity; None without one.
    """

    intensity: Intensity | None
    forecast: Forecast | None = None


class Watcher(Protocol):
    """Knows what can be known at the begin of each interval of a series."""

    def view(self, number: int) -> View:
        """What is known at the begin of an interval.

        Args:
            number: of the interval.
        """
        ...


class LateWatcher:
    """Knows an interval's value when it has ended, as of grid operators' records, and forecasts.

    Args:
        series: the intensities, g/kWh.
        forecasts: of the series; None for a watcher without forecasts.
    """

    def __init__(self, series: Series, forecasts: RememberedForecasts | None = None) -> None:
        self._series, self._forecasts = series, forecasts

    def view(self, number: int) -> View:
        """What is known at the begin of an interval; see `Watcher.view`."""
        intensity = told(self._series, number - 1)
        forecasts = self._forecasts
        return View(intensity, None if forecasts is None else forecasts.after(number))


class EarlyWatcher:
    """Knows an interval's value as it begins, as of providers that estimate it, and forecasts.

    Args:
        series: the intensities, g/kWh.
        forecasts: of the series.
    """

    def __init__(self, series: Series, forecasts: RememberedForecasts) -> None:
        self._series, self._forecasts = series, forecasts

    def view(self, number: int) -> View:
        """What is known at the begin of an interval; see `Watcher.view`."""
        ahead = self._forecasts.after(number + 1)
        now = self._series.values[number : number + 1]
        middle = ahead.middle if np.isnan(now).any() else np.concatenate((now, ahead.middle))
        start_s = ahead.start_s - (len(middle) - len(ahead.middle)) * ahead.step_s
        made = replace(ahead, start_s=start_s, middle=middle, low=None, high=None)
        return View(told(self._series, number), made)


@dataclass(frozen=True, slots=True, eq=False)
class PlayedWait:
    """A job that was played.

    Attributes:
        worked: ``[n] int64``, the intervals in which it worked.
        n_waited: number of intervals in which it waited.
    """

    worked: NDArray[np.int64]
    n_waited: int


def play(rule: Waiting, watcher: Watcher, series: Series, first: int, n_work: int) -> PlayedWait:
    """Play one job until it is done.

    Args:
        rule: when it waits; decisions are taken once an interval.
        watcher: what it knows.
        series: for the times of the intervals.
        first: interval in which it may begin.
        n_work: number of intervals that it works.
    """
    worked: list[int] = []
    number = first
    while len(worked) < n_work:
        now_s = series.start_s + number * series.step_s
        begun = bool(worked)
        # What nobody looks at need not be forecast.
        view = View(None) if begun and not rule.at_steps else watcher.view(number)
        seen = Seen(
            intensity=view.intensity,
            forecast=view.forecast,
            waited_s=(number - first - len(worked)) * series.step_s,
            has_begun=begun,
            left_s=(n_work - len(worked)) * series.step_s,
        )
        if decide(rule, now_s, seen).command is Command.RUN:
            worked.append(number)
        number += 1
    return PlayedWait(np.array(worked, dtype=np.int64), number - first - n_work)


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

"""What a controller can know along a recorded series, at each time of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ecorl.carbon.forecasts.forecast import Forecast
from ecorl.carbon.series import Series
from ecorl.grid import AverageIntensity, Basis, Gas, Intensity, Scope
from ecorl.kinds import Provenance

_STALE_AFTER = 3
"""For how many intervals after its own a value still counts."""


class Foresight(Protocol):
    """Forecasts along a recorded series."""

    def after(self, n_known: int) -> Forecast | None:
        """The forecast when the first intervals of the series are known, or None.

        Args:
            n_known: how many are; the forecast begins with the next one.
        """
        ...


@dataclass(frozen=True, slots=True)
class GridView:
    """What is known of the grid during one interval.

    Attributes:
        intensity: newest that was told; None where it is unknown or too old to count.
        past: what was told so far.
        forecast: from the end of `past` on; None without one.
    """

    intensity: Intensity | None
    past: Series
    forecast: Forecast | None


class Knowledge:
    """Tells an interval's value as it begins, or some time later.

    Args:
        series: the recorded intensities, g/kWh; NaN where a value is missing.
        late: for how many intervals a value is not told yet; 0: it is told as it begins.
        foresight: forecasts of the series; None without any.
    """

    def __init__(
        self,
        series: Series,
        late: int = 0,
        foresight: Foresight | None = None,
    ) -> None:
        self.series = series
        self._late, self._foresight = late, foresight
        empty = Series(series.start_s, series.step_s, np.zeros(0))
        self._number, self._view = -1, GridView(None, empty, None)

    def at(self, now_s: float) -> GridView:
        """What is known at a time.

        Args:
            now_s: s since 1970, within the series.
        """
        series = self.series
        number = math.floor((now_s - series.start_s) / series.step_s + 1e-9)
        if number != self._number:
            n_known = max(0, number + 1 - self._late)
            past = Series(series.start_s, series.step_s, series.values[:n_known])
            foresight = self._foresight
            forecast = None if foresight is None else foresight.after(n_known)
            self._number = number
            self._view = GridView(self._newest(n_known, number), past, forecast)
        return self._view

    def _newest(self, n_known: int, number: int) -> Intensity | None:
        first = max(0, number - self._late - _STALE_AFTER)
        known = np.flatnonzero(np.isfinite(self.series.values[first:n_known]))
        return told(self.series, first + int(known[-1])) if known.size else None


def told(series: Series, number: int) -> AverageIntensity | None:
    """The value of an interval as a feed would tell it, or None where it is missing.

    Args:
        series: the intensities, g/kWh.
        number: of the interval.
    """
    if not 0 <= number < len(series.values):
        return None
    g_per_kwh = float(series.values[number])
    if math.isnan(g_per_kwh):
        return None
    start_s = series.start_s + number * series.step_s
    return AverageIntensity(
        feed="recording",
        start_s=start_s,
        interval_s=series.step_s,
        g_per_kwh=g_per_kwh,
        gas=Gas.CO2E,
        basis=Basis.LOCATION,
        scope=Scope.LIFE_CYCLE,
        factors="the recording's",
        is_estimated=None,
        fetched_s=start_s,
        provenance=Provenance.REPLAYED,
    )

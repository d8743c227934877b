"""Persistence: what was last goes on."""

from __future__ import annotations

from ecorl.carbon.forecasts.forecast import Forecast
from ecorl.carbon.forecasts.rules import Cycle, Rule
from ecorl.carbon.forecasts.single import Bounds, forecast_by_rule
from ecorl.carbon.series import Series


class Persistence:
    """The newest value goes on, or the last 24 hours are repeated.

    Args:
        daily: whether the last 24 hours are repeated.
        bounds: what the signal cannot be below and above, in its unit; None where nothing is known.
    """

    def __init__(self, daily: bool = False, bounds: Bounds | None = None) -> None:
        self.name = "daily persistence" if daily else "persistence"
        self._rule = Rule(Cycle.DAY, 1) if daily else Rule(Cycle.NEWEST)
        self._bounds = bounds

    def forecast(self, past: Series, n: int) -> Forecast:
        """What the next intervals will bring; see `Forecaster.forecast`.

        Args:
            past: what is known.
            n: number of intervals.

        Raises:
            FeedSilent: when the past holds no value at all.
            ValueError: when `n` is below 1.
        """
        return forecast_by_rule(self.name, self._rule, past, n, self._bounds)

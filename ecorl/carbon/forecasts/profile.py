"""The mean day: each hour of the day as it was on average lately."""

from __future__ import annotations

from ecorl.carbon.forecasts.forecast import Forecast
from ecorl.carbon.forecasts.rules import Cycle, Rule
from ecorl.carbon.forecasts.single import Bounds, forecast_by_rule
from ecorl.carbon.series import Series

PROFILE_DAYS = 14
"""Days that the mean is over. Of 7, 14 and 28 days, 14 served best over all on real grids."""


class MeanDayProfile:
    """The mean of the last days at the same time of the day.

    From two weeks on, Saturdays and Sundays (UTC) are kept apart from the other days.

    Args:
        days: number of days that the mean is over.
        bounds: what the signal cannot be below and above, in its unit; None where nothing is known.
    """

    def __init__(self, days: int = PROFILE_DAYS, bounds: Bounds | None = None) -> None:
        self.name = f"mean day profile of {days} days"
        self.rule = Rule(Cycle.DAY, days, apart=True)
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
        return forecast_by_rule(self.name, self.rule, past, n, self._bounds)

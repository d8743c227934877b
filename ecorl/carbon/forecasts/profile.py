"""The mean day: each hour of the day as it was on average lately."""

from __future__ import annotations

from ecorl.carbon.forecasts.rules import Cycle, Rule
from ecorl.carbon.forecasts.single import Bounds, RuleForecaster

PROFILE_DAYS = 14
"""Days that the mean is over. Of 7, 14 and 28 days, 14 served best over all on real grids."""


class MeanDayProfile(RuleForecaster):
    """The mean of the last days at the same time of the day.

    From two weeks on, Saturdays and Sundays (UTC) are kept apart from the other days.

    Args:
        days: number of days that the mean is over.
        bounds: what the signal cannot be below and above, in its unit; None where nothing is known.
    """

    def __init__(self, days: int = PROFILE_DAYS, bounds: Bounds | None = None) -> None:
        name = f"mean day profile of {days} days"
        super().__init__(name, Rule(Cycle.DAY, days, apart=True), bounds)

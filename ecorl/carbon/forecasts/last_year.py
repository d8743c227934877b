"""Last year's season: the same days a year ago, at the level of now."""

from __future__ import annotations

from ecorl.carbon.forecasts.forecast import Forecast
from ecorl.carbon.forecasts.history import History
from ecorl.carbon.forecasts.profile import MeanDayProfile
from ecorl.carbon.forecasts.rules import Cycle, Rule, has_year
from ecorl.carbon.forecasts.single import Bounds, RuleForecaster, days_to_learn, newest_days
from ecorl.carbon.series import Series


class LastYear(RuleForecaster):
    """The value 364 days ago, so that it is of the same weekday, moved to the level of now.

    It is moved by the difference of the mean of the last 14 days and of the same days a year ago.
    Where the past does not reach back that far, the mean day profile forecasts instead, and the
    forecast's `model` says so.

    Args:
        bounds: what the signal cannot be below and above, in its unit; None where nothing is known.
    """

    def __init__(self, bounds: Bounds | None = None) -> None:
        super().__init__("last year", Rule(Cycle.YEAR), bounds)
        instead = MeanDayProfile()
        name = f"{instead.name}, for want of a year of history"
        self._instead = RuleForecaster(name, instead.rule, bounds)

    def forecast(self, past: Series, n: int) -> Forecast:
        """What the next intervals will bring; see `Forecaster.forecast`.

        Args:
            past: what is known.
            n: number of intervals.

        Raises:
            FeedSilent: when the past holds no value at all.
            ValueError: when `n` is below 1.
        """
        knows_year = has_year(History(newest_days(past, days_to_learn(self.rule))))
        return super().forecast(past, n) if knows_year else self._instead.forecast(past, n)

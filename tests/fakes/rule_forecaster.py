"""A forecast by one simple rule alone, for the pool of rules to be compared with."""

from __future__ import annotations

from ecorl.carbon.forecasts.hindcast import hindcast
from ecorl.carbon.forecasts.history import History
from ecorl.carbon.forecasts.intervals import DayPattern, learn_spread
from ecorl.carbon.forecasts.pool import clipped, days_to_learn, newest_days, next_intervals
from ecorl.carbon.forecasts.rules import Cycle, Rule, predict

NEWEST, LAST_DAY, LAST_YEAR = Rule(Cycle.NEWEST), Rule(Cycle.DAY, 1), Rule(Cycle.YEAR)


def profile(days=14):
    """The mean of the last days at the same time of the day, weekends apart."""
    return Rule(Cycle.DAY, days, apart=True)


class RuleForecaster:
    """Forecasts by one rule, with intervals from the errors that the rule made before."""

    name = "one rule"

    def __init__(self, rule, bounds=None):
        self.rule, self.bounds = rule, bounds

    def forecast(self, past, n):
        near = newest_days(past, days_to_learn(self.rule))
        now, leads = next_intervals(near, n)
        history = History(near)
        tried = hindcast(history)
        pattern = DayPattern(history)
        said = predict(history, (self.rule,), tried.origins, tried.groups.probes)[0]
        errors = (tried.truth - said) / pattern.at(tried.origins, tried.groups.probes)
        middle = predict(history, (self.rule,), now, leads)[0, 0]
        low, high = learn_spread(errors, tried).around(middle, leads, pattern.at(now, leads)[0])
        return clipped(self.name, past, (middle, low, high), self.bounds)

"""Forecasts of a recorded series, each made once, and their scores beside those of simple rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from benchmarks.studies.carbon.forecaster import Forecaster
from benchmarks.studies.carbon.scores import LEADS_H, TINY, LeadScore, score
from ecorl.carbon.forecasts.forecast import Forecast
from ecorl.carbon.forecasts.history import HOUR_S, History
from ecorl.carbon.forecasts.rules import Cycle, Rule, predict
from ecorl.carbon.series import Series

SIMPLE_RULES = {
    "persistence": Rule(Cycle.NEWEST),
    "daily persistence": Rule(Cycle.DAY, 1),
    "last week": Rule(Cycle.WEEK, 1),
    "mean day profile of 7 days": Rule(Cycle.DAY, 7),
    "mean day profile of 14 days": Rule(Cycle.DAY, 14, apart=True),
    "mean day profile of 28 days": Rule(Cycle.DAY, 28, apart=True),
}
"""What anybody would try first; each is one rule, as `RuleForecaster` follows it."""


class RememberedForecasts:
    """A forecaster's forecasts along one series, each made once and as far ahead as is ever asked.

    What is known when a forecast is made are the values whose intervals have ended by then.

    Args:
        forecaster: who forecasts.
        series: the whole series.
        n: number of intervals of each forecast.
    """

    def __init__(self, forecaster: Forecaster, series: Series, n: int) -> None:
        self.name, self.n = forecaster.name, n
        self._forecaster, self._series = forecaster, series
        self._made: dict[int, Forecast] = {}

    def after(self, n_known: int) -> Forecast:
        """The forecast when the first intervals of the series have ended.

        Args:
            n_known: how many have.

        Raises:
            FeedSilent: when none of them has a value.
        """
        found = self._made.get(n_known)
        if found is None:
            whole = self._series
            past = Series(whole.start_s, whole.step_s, whole.values[:n_known])
            found = self._made[n_known] = self._forecaster.forecast(past, self.n)
        return found

    def forecast(self, past: Series, n: int) -> Forecast:
        """As `Forecaster.forecast`, for the beginnings of the series alone.

        Args:
            past: a beginning of the series.
            n: number of intervals, at most that of each forecast.

        Raises:
            FeedSilent: when the past holds no value at all.
            ValueError: for another past, or a longer forecast.
        """
        if past.start_s != self._series.start_s or n > self.n:
            raise ValueError("a forecast that is remembered is of another past, or shorter")
        made = self.after(len(past.values))
        assert made.low is not None
        assert made.high is not None
        return replace(made, middle=made.middle[:n], low=made.low[:n], high=made.high[:n])


@dataclass(frozen=True, slots=True)
class ForecastScores:
    """How good forecasts of a series were.

    Attributes:
        n_origins: number of times at which was forecast.
        leads: scores of the forecaster at `LEADS_H`.
        simple_mape24: mean relative error of each simple rule in the 24th hour, as a fraction, over
            the same values; None where none can be made.
    """

    n_origins: int
    leads: tuple[LeadScore, ...]
    simple_mape24: dict[str, float | None]

    def lead(self, lead_h: int) -> LeadScore:
        """The forecaster's score at a lead time.

        Args:
            lead_h: one of `LEADS_H`.
        """
        return self.leads[LEADS_H.index(lead_h)]

    @property
    def strongest_rule(self) -> tuple[str, float] | None:
        """The simple rule that did best, known only afterwards, and its error; None without one."""
        known = [(mape, name) for name, mape in self.simple_mape24.items() if mape is not None]
        if not known:
            return None
        mape, name = min(known)
        return name, mape


def score_forecasts(
    forecasts: RememberedForecasts, series: Series, origins: Sequence[int]
) -> ForecastScores:
    """Score forecasts from a rolling origin, and the simple rules from the same origins.

    Args:
        forecasts: of the series, at least as long as the longest of `LEADS_H`.
        series: the values, at steps of at most an hour.
        origins: number of intervals that have ended at each origin, rising.
    """
    starts_s = [series.start_s + number * series.step_s for number in origins]
    return ForecastScores(
        n_origins=len(origins),
        leads=score(forecasts, series, LEADS_H, starts_s),
        simple_mape24=rule_errors(series, origins, 24),
    )


def rule_errors(series: Series, origins: Sequence[int], lead_h: int) -> dict[str, float | None]:
    """Mean relative error of each of `SIMPLE_RULES` in one hour after the origins, as a fraction.

    The same as of `score`, for all origins at once: a rule's forecast for an origin uses values
    before it only.

    Args:
        series: the values, at steps of at most an hour.
        origins: number of intervals that have ended at each origin.
        lead_h: which hour after the origin, 1 for the first.
    """
    history = History(series)
    per_hour = round(HOUR_S / series.step_s)
    leads = np.arange((lead_h - 1) * per_hour, lead_h * per_hour, dtype=np.int64) + 1
    starts = np.asarray(origins, dtype=np.int64)
    truth = history.at(starts[:, None] + leads[None, :] - 1)
    said = predict(history, tuple(SIMPLE_RULES.values()), starts, leads)
    smallest = TINY * float(np.nanmean(np.abs(history.values)))
    return {
        name: _relative_error(one, truth, smallest)
        for name, one in zip(SIMPLE_RULES, said, strict=True)
    }


def _relative_error(
    said: NDArray[np.float64], truth: NDArray[np.float64], smallest: float
) -> float | None:
    is_usable = np.isfinite(truth) & (np.abs(truth) > smallest)
    if not is_usable.any():
        return None
    return float(np.mean(np.abs(said - truth)[is_usable] / np.abs(truth[is_usable])))

"""How good a forecaster is, measured on a series whose values are known by now.

Each forecast is made once, and scored beside those of simple rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ecorl.carbon.forecasts.forecast import Forecast
from ecorl.carbon.forecasts.history import HOUR_S, History
from ecorl.carbon.forecasts.rules import Cycle, Rule, predict
from ecorl.carbon.series import FloatArray, Series

LEADS_H = (1, 6, 24, 96)
"""Lead times at which forecasts are compared, h."""

PINBALL_QUANTILES = (0.05, 0.5, 0.95)
"""The quantiles that low, middle and high of a forecast stand for."""

TINY = 0.01
"""Share of the series' mean size below which a value is no denominator for a relative error.
Invented: an error of one hundredth of the usual would count as 100 %."""


SIMPLE_RULES = {
    "persistence": Rule(Cycle.NEWEST),
    "daily persistence": Rule(Cycle.DAY, 1),
    "last week": Rule(Cycle.WEEK, 1),
    "mean day profile of 7 days": Rule(Cycle.DAY, 7),
    "mean day profile of 14 days": Rule(Cycle.DAY, 14, apart=True),
    "mean day profile of 28 days": Rule(Cycle.DAY, 28, apart=True),
}
"""What anybody would try first; each is one rule, as `RuleForecaster` follows it."""


class Forecaster(Protocol):
    """A rule that says from the values of the past alone what comes next.

    A forecaster is not trained beforehand: whatever it learns, it learns from the past that it is
    given. The same past gives the same forecast, however often and in whichever order it is asked.
    It serves every signal that follows the day and the week, such as a grid's intensity and its
    share of renewable electricity.
    """

    def forecast(self, past: Series, n: int) -> Forecast:
        """What the next intervals after the end of the past will bring.

        Args:
            past: what is known, at steps of at most an hour; values may be missing (NaN).
            n: number of intervals to forecast, each as long as those of the past.

        Returns:
            The forecast from ``past.end_s`` on, with `NOMINAL_COVERAGE` intervals. None of its
            numbers is missing, and ``low <= middle <= high`` everywhere.

        Raises:
            FeedSilent: when the past holds no value at all.
            ValueError: when `n` is below 1.
        """
        ...


class RememberedForecasts:
    """A forecaster's forecasts along one series, each made once and as far ahead as is ever asked.

    What is known when a forecast is made are the values whose intervals have ended by then.

    Args:
        forecaster: who forecasts.
        series: the whole series.
        n: number of intervals of each forecast.
    """

    def __init__(self, forecaster: Forecaster, series: Series, n: int) -> None:
        self._forecaster, self._series, self._n = forecaster, series, n
        self._made: dict[int, Forecast] = {}

    def after(self, n_known: int) -> Forecast:
        """The forecast when the first intervals of the series have ended.

        Args:
            n_known: how many have.

        Raises:
            FeedSilent: when none of them has a value.
        """
        if n_known not in self._made:
            whole = self._series
            past = Series(whole.start_s, whole.step_s, whole.values[:n_known])
            self._made[n_known] = self._forecaster.forecast(past, self._n)
        return self._made[n_known]

    def forecast(self, past: Series, n: int) -> Forecast:
        """As `Forecaster.forecast`, for beginnings of the series, as far ahead as each is made."""
        return self.after(len(past.values))


@dataclass(frozen=True, slots=True)
class LeadScore:
    """The score of a forecaster at one lead time h, over many origins.

    "The hour" is the h-th hour after the origin alone; "until" is all hours from the first to the
    h-th. What is missing in the series is left out. A figure is None where nothing was left to
    make it of, or where the forecaster gave no intervals.

    Attributes:
        lead_h: the lead time, h.
        n: number of values in the hour that were compared, over all origins.
        n_tiny: how many of these were too small to be a denominator; they are left out of `mape`.
        mape: mean of abs(forecast - value) / abs(value) in the hour, as a fraction.
        mape_until: the same until then.
        pinball: mean pinball loss in the hour over `PINBALL_QUANTILES`, in the series' unit.
        coverage: share of the values of the hour within the intervals.
        coverage_until: the same until then.
        width: mean width of the intervals in the hour, in the series' unit.
    """

    lead_h: int
    n: int
    n_tiny: int
    mape: float | None
    mape_until: float | None
    pinball: float | None
    coverage: float | None
    coverage_until: float | None
    width: float | None


def score(
    forecaster: Forecaster, series: Series, leads_h: Sequence[int], starts_s: Iterable[float]
) -> tuple[LeadScore, ...]:
    """Scores a forecaster from a rolling origin: at each, it sees what had ended by then only.

    Args:
        forecaster: who is scored.
        series: the values, at steps of at most an hour.
        leads_h: lead times, h; `LEADS_H` are the usual ones.
        starts_s: the origins, s since 1970; those before the series' first value are left out.

    Returns:
        One score for each lead time, in their order.

    Raises:
        ValueError: when there is no lead time of at least 1 h, or the steps are longer.
    """
    if not leads_h or min(leads_h) < 1:
        raise ValueError("a forecast is scored at lead times of at least 1 h")
    if series.step_s > HOUR_S:
        raise ValueError(f"steps of {series.step_s:g} s are longer than the hours to be scored")
    per_hour = round(HOUR_S / series.step_s)
    lines = _forecasts(forecaster, series, max(leads_h) * per_hour, starts_s)
    size = np.abs(series.values[np.isfinite(series.values)])
    smallest = TINY * float(size.mean()) if size.size else 0.0
    return tuple(
        _lead_score(lead_h, lines[..., : lead_h * per_hour], per_hour, smallest)
        for lead_h in leads_h
    )


def pinball_loss(values: FloatArray, forecast: FloatArray, quantile: float) -> FloatArray:
    """Pinball loss of a quantile's forecast: least, in the mean, for the true quantile.

    Args:
        values: what came, of any shape.
        forecast: the quantile that was forecast, in the same unit.
        quantile: which one, 0 to 1.

    Returns:
        The loss of each value, in the same unit and shape.
    """
    above = values - forecast
    loss: FloatArray = np.maximum(quantile * above, (quantile - 1.0) * above)
    return loss


def _forecasts(
    forecaster: Forecaster, series: Series, n: int, starts_s: Iterable[float]
) -> FloatArray:
    """``[4, origins, n]``: what came, middle, low and high; NaN where there is none."""
    rows, nothing = [], np.full(n, np.nan)
    for start_s in starts_s:
        past = series.until(start_s)
        if not np.isfinite(past.values).any():
            continue
        made = forecaster.forecast(past, n)
        truth = nothing.copy()
        came = series.values[len(past.values) : len(past.values) + n]
        truth[: len(came)] = np.where(np.isfinite(came), came, np.nan)
        ends = [nothing if end is None else end for end in (made.low, made.high)]
        rows.append(np.stack([truth, made.middle, *ends]))
    return np.stack(rows, axis=1) if rows else np.empty((4, 0, n))


def _lead_score(lead_h: int, until: FloatArray, per_hour: int, smallest: float) -> LeadScore:
    hour = until[..., -per_hour:]
    truth, middle, low, high = hour[:, np.isfinite(hour[0])]
    losses = [
        pinball_loss(truth, line, quantile)
        for quantile, line in zip(PINBALL_QUANTILES, (low, middle, high), strict=True)
    ]
    return LeadScore(
        lead_h=lead_h,
        n=truth.size,
        n_tiny=int((np.abs(truth) <= smallest).sum()),
        mape=relative_error(hour[1], hour[0], smallest),
        mape_until=relative_error(until[1], until[0], smallest),
        pinball=_mean(np.mean(losses, axis=0)),
        coverage=_coverage(hour),
        coverage_until=_coverage(until),
        width=_mean(high - low),
    )


def relative_error(said: FloatArray, truth: FloatArray, smallest: float) -> float | None:
    """Mean of abs(said - truth) / abs(truth), of values above the smallest; None without any."""
    usable = np.isfinite(truth) & (np.abs(truth) > smallest)
    return _mean(np.abs(said[usable] - truth[usable]) / np.abs(truth[usable]))


def _coverage(lines: FloatArray) -> float | None:
    truth, low, high = lines[[0, 2, 3]][:, np.isfinite(lines[[0, 2, 3]]).all(axis=0)]
    return _mean(((truth >= low) & (truth <= high)).astype(np.float64))


def _mean(values: FloatArray) -> float | None:
    values = values[np.isfinite(values)]
    return float(values.mean()) if values.size else None


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
        name: relative_error(one, truth, smallest)
        for name, one in zip(SIMPLE_RULES, said, strict=True)
    }

"""How good a forecaster is, measured on a series whose values are known by now."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.studies.carbon.forecaster import Forecaster
from ecorl.carbon.forecasts.history import HOUR_S
from ecorl.carbon.series import FloatArray, Series

LEADS_H = (1, 6, 24, 96)
"""Lead times at which forecasts are compared, h."""

PINBALL_QUANTILES = (0.05, 0.5, 0.95)
"""The quantiles that low, middle and high of a forecast stand for."""

TINY = 0.01
"""Share of the series' mean size below which a value is no denominator for a relative error.
Invented: an error of one hundredth of the usual would count as 100 %."""


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


@dataclass(frozen=True, slots=True, eq=False)
class _Lines:
    """Forecasts and what came: ``[origins, n] float64`` each; NaN where there is none."""

    truth: FloatArray
    middle: FloatArray
    low: FloatArray
    high: FloatArray

    def part(self, begin: int, end: int) -> _Lines:
        """The forecasts of some of the intervals.

        Args:
            begin: the first interval.
            end: the first one that is not wanted.
        """
        wanted = slice(begin, end)
        return _Lines(
            self.truth[:, wanted],
            self.middle[:, wanted],
            self.low[:, wanted],
            self.high[:, wanted],
        )


def score(
    forecaster: Forecaster,
    series: Series,
    leads_h: Sequence[int],
    starts_s: Iterable[float],
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
    return tuple(_lead_score(lines, lead, per_hour, smallest) for lead in leads_h)


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


def _forecasts(forecaster: Forecaster, series: Series, n: int, starts_s: Iterable[float]) -> _Lines:
    rows: list[tuple[FloatArray, ...]] = []
    nothing = np.full(n, np.nan)
    for start_s in starts_s:
        past = series.until(start_s)
        if not np.isfinite(past.values).any():
            continue
        forecast = forecaster.forecast(past, n)
        truth = nothing.copy()
        came = series.values[len(past.values) : len(past.values) + n]
        truth[: len(came)] = np.where(np.isfinite(came), came, np.nan)
        low = nothing if forecast.low is None else forecast.low
        high = nothing if forecast.high is None else forecast.high
        rows.append((truth, forecast.middle, low, high))
    if not rows:
        empty = np.empty((0, n))
        return _Lines(empty, empty, empty, empty)
    return _Lines(*(np.stack(part) for part in zip(*rows, strict=True)))


def _lead_score(lines: _Lines, lead_h: int, per_hour: int, smallest: float) -> LeadScore:
    hour = lines.part((lead_h - 1) * per_hour, lead_h * per_hour)
    until = lines.part(0, lead_h * per_hour)
    known = np.isfinite(hour.truth)
    return LeadScore(
        lead_h=lead_h,
        n=int(known.sum()),
        n_tiny=int((np.abs(hour.truth[known]) <= smallest).sum()),
        mape=_mape(hour, smallest),
        mape_until=_mape(until, smallest),
        pinball=_pinball(hour),
        coverage=_coverage(hour),
        coverage_until=_coverage(until),
        width=_mean((hour.high - hour.low)[known]),
    )


def _mape(lines: _Lines, smallest: float) -> float | None:
    usable = np.isfinite(lines.truth) & (np.abs(lines.truth) > smallest)
    truth = lines.truth[usable]
    return _mean(np.abs(lines.middle[usable] - truth) / np.abs(truth))


def _pinball(lines: _Lines) -> float | None:
    losses = [
        pinball_loss(lines.truth, line, quantile)
        for quantile, line in zip(
            PINBALL_QUANTILES, (lines.low, lines.middle, lines.high), strict=True
        )
    ]
    return _mean(np.mean(losses, axis=0)[np.isfinite(lines.truth)])


def _coverage(lines: _Lines) -> float | None:
    known = np.isfinite(lines.truth) & np.isfinite(lines.low) & np.isfinite(lines.high)
    inside = (lines.truth >= lines.low) & (lines.truth <= lines.high)
    return _mean(inside[known].astype(np.float64))


def _mean(values: FloatArray) -> float | None:
    values = values[np.isfinite(values)]
    return float(values.mean()) if values.size else None

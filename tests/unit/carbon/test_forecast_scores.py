"""Scores of forecasters, against numbers made by hand."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.studies.carbon.scores import pinball_loss, score
from ecorl.carbon.forecasts.forecast import Forecast
from ecorl.carbon.forecasts.pool import RecencyAdaptivePool
from ecorl.carbon.series import Series
from tests.fakes.rule_forecaster import LAST_DAY, NEWEST, RuleForecaster

HOUR_S = 3600.0


@dataclass
class Fixed:
    """Says the same whatever the past was, and keeps what it was shown."""

    middle: float
    low: float | None = None
    high: float | None = None
    name: str = "fixed"
    seen: list[Series] = field(default_factory=list)

    def forecast(self, past, n):
        self.seen.append(past)
        line = lambda value: None if value is None else np.full(n, value)  # noqa: E731
        return Forecast(
            self.name,
            past.end_s,
            past.end_s,
            past.step_s,
            line(self.middle),
            line(self.low),
            line(self.high),
        )


def hourly(*values, step_s=HOUR_S):
    return Series(0.0, step_s, np.array(values, dtype=float))


def test_a_lead_time_is_one_hour_and_until_is_all_up_to_it():
    series = hourly(100.0, 110.0, 100.0, 200.0)
    one, three = score(Fixed(100.0, 90.0, 120.0), series, (1, 3), [HOUR_S])
    assert (one.lead_h, one.n, one.n_tiny) == (1, 1, 0)
    assert one.mape == pytest.approx(10 / 110)
    assert one.mape_until == one.mape
    assert (one.coverage, one.width) == (1.0, 30.0)
    assert three.mape == pytest.approx(0.5)
    assert three.mape_until == pytest.approx((10 / 110 + 0.0 + 0.5) / 3)
    assert (three.coverage, three.coverage_until) == (0.0, pytest.approx(2 / 3))
    # 200 lies 110, 100 and 80 above the three quantiles.
    assert three.pinball == pytest.approx((0.05 * 110 + 0.5 * 100 + 0.95 * 80) / 3)


def test_scores_are_means_over_all_origins():
    series = hourly(100.0, 110.0, 125.0)
    (lead,) = score(Fixed(100.0, 105.0, 120.0), series, (1,), [HOUR_S, 2 * HOUR_S])
    assert lead.n == 2
    assert lead.mape == pytest.approx((10 / 110 + 25 / 125) / 2)
    assert lead.coverage == 0.5


def test_missing_values_are_left_out():
    series = hourly(100.0, np.nan, 50.0, np.inf)
    one, two, three = score(Fixed(100.0, 0.0, 200.0), series, (1, 2, 3), [HOUR_S])
    assert (one.n, two.n, three.n) == (0, 1, 0)
    assert (one.mape, one.pinball, one.coverage, one.width) == (None, None, None, None)
    assert two.mape == two.mape_until == three.mape_until == 1.0
    assert three.coverage_until == 1.0


def test_what_lies_beyond_the_series_is_left_out():
    (lead,) = score(Fixed(1.0), hourly(1.0, 1.0), (2,), [HOUR_S, 2 * HOUR_S])
    assert lead.n == 0
    assert lead.mape is None
    assert lead.mape_until == 0.0


def test_tiny_denominators_are_counted_and_left_out_of_relative_errors_alone():
    series = hourly(100.0, 0.0, 0.5, 100.0)
    one, two, three = score(Fixed(50.0, 10.0, 90.0), series, (1, 2, 3), [HOUR_S])
    assert (one.n, one.n_tiny, one.mape) == (1, 1, None)
    assert (two.n, two.n_tiny, two.mape) == (1, 1, None)
    assert one.pinball > 0.0
    assert one.coverage == 0.0
    assert three.mape == three.mape_until == 0.5


def test_a_forecaster_without_intervals_has_no_score_of_them():
    (lead,) = score(Fixed(90.0), hourly(100.0, 100.0), (1,), [HOUR_S])
    assert lead.mape == pytest.approx(0.1)
    assert (lead.pinball, lead.coverage, lead.coverage_until, lead.width) == (None,) * 4


def test_finer_steps_are_all_of_the_hour():
    series = hourly(100.0, 100.0, 80.0, 100.0, 50.0, 40.0, step_s=1800.0)
    one, two = score(Fixed(100.0), series, (1, 2), [3600.0])
    assert (one.n, two.n) == (2, 2)
    assert one.mape == pytest.approx((20 / 80 + 0.0) / 2)
    assert two.mape == pytest.approx((50 / 50 + 60 / 40) / 2)
    assert two.mape_until == pytest.approx((one.mape + two.mape) / 2)


def test_only_intervals_that_have_ended_are_shown():
    fixed = Fixed(1.0)
    score(fixed, hourly(*range(1, 11)), (1,), [3 * HOUR_S, 4.5 * HOUR_S])
    assert [list(past.values) for past in fixed.seen] == [[1, 2, 3], [1, 2, 3, 4]]


def test_origins_without_a_past_are_left_out():
    series = hourly(np.nan, np.nan, 3.0, 3.0)
    (lead,) = score(
        RuleForecaster(NEWEST), series, (1,), [-HOUR_S, 0.0, HOUR_S, 2 * HOUR_S, 3 * HOUR_S]
    )
    assert (lead.n, lead.mape) == (1, 0.0)


def test_without_origins_nothing_is_known():
    (lead,) = score(RuleForecaster(NEWEST), hourly(1.0, 2.0), (1,), [])
    assert (lead.n, lead.mape, lead.coverage) == (0, None, None)


@pytest.mark.parametrize("leads", [(), (0, 1)])
def test_lead_times_begin_with_an_hour(leads):
    with pytest.raises(ValueError, match="1 h"):
        score(RuleForecaster(NEWEST), hourly(1.0), leads, [])


def test_longer_steps_than_an_hour_are_refused():
    with pytest.raises(ValueError, match="7200 s"):
        score(RuleForecaster(NEWEST), hourly(1.0, step_s=7200.0), (1,), [])


@pytest.mark.parametrize("forecaster", [RuleForecaster(LAST_DAY), RecencyAdaptivePool()])
def test_another_future_leaves_the_forecasts_of_now_as_they_were(forecaster):
    values = 100.0 + np.random.default_rng(0).random(24 * 50) * 50.0
    start, lead = 24 * 40, 6
    changed = values.copy()
    changed[start + lead :] = 1e6
    left, right = (
        score(forecaster, hourly(*line), (1, lead), [HOUR_S * start]) for line in (values, changed)
    )
    # The mean size of the series rises with the change, and with it what counts as tiny.
    for before, after in zip(left, right, strict=True):
        assert (before.pinball, before.coverage) == (after.pinball, after.coverage)
        assert before.width == after.width


@given(value=st.floats(-100, 100), forecast=st.floats(-100, 100), quantile=st.floats(0.01, 0.99))
def test_pinball_loss_is_the_tilted_distance(value, forecast, quantile):
    loss = pinball_loss(np.array([value]), np.array([forecast]), quantile)[0]
    gap = value - forecast
    assert loss == pytest.approx(quantile * gap if gap >= 0 else (quantile - 1) * gap)
    assert loss >= 0.0


def test_pinball_loss_is_least_at_the_quantile():
    draws = np.random.default_rng(1).normal(size=20_000)
    losses = {
        q: pinball_loss(draws, np.full_like(draws, np.quantile(draws, q)), 0.95).mean()
        for q in (0.85, 0.90, 0.95, 0.99)
    }
    assert min(losses, key=losses.get) == 0.95

"""An outlook is the provider's own where it has one, else the pool's; without one it says why."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ecorl.carbon.chain import FeedChain
from ecorl.carbon.feeds.local import ConstantFeed, ReplayFeed, SyntheticFeed
from ecorl.carbon.forecasts.forecast import Forecast
from ecorl.carbon.forecasts.pool import RecencyAdaptivePool
from ecorl.carbon.outlook import outlook, renewable_outlook
from ecorl.carbon.series import Series
from ecorl.carbon.traces.trace import GridTrace
from ecorl.errors import FeedUnreachable
from ecorl.grid import Fuel, Gas, Scope
from ecorl.kinds import Provenance
from tests.fakes.grid_series import DAY_S, HOUR_S, MONDAY_S, grid
from tests.fakes.scripted_feed import ScriptedFeed, average

PAST = grid(14, seed=5)
NOW_S = PAST.end_s + 600.0


class Foretelling(ScriptedFeed):
    """A scripted feed with a forecast, or with an error in its place."""

    def __init__(self, name, foretold=None, **more):
        super().__init__(name, **more)
        self.foretold = foretold

    def forecast(self, now_s):
        if isinstance(self.foretold, Exception):
            raise self.foretold
        return self.foretold


def values_of(series, name="a", **more):
    """The values of a series as a feed tells them."""
    return [
        replace(average(name, series.start_s + i * series.step_s, value, series.step_s), **more)
        for i, value in enumerate(series.values)
        if np.isfinite(value)
    ]


def asked(feed, now_s=NOW_S):
    """A chain that remembers what its feed told."""
    chain = FeedChain([feed], 10 * HOUR_S)
    chain.recall(now_s)
    assert chain.ask(now_s).value is not None
    return chain


def feed_of(series=PAST, now_s=NOW_S, foretold=None, **more):
    """A feed that has told a series, and tells the hour under way now."""
    begin_s = series.end_s
    current = replace(average("a", begin_s, 321.0, series.step_s), **more)
    history = values_of(series, **more)
    feed = Foretelling("a", foretold, answers=[current] * 2, history=history)
    feed.info = replace(feed.info, interval_s=series.step_s)
    return feed


def test_the_providers_own_forecast_goes_first():
    own = Forecast("them", NOW_S, NOW_S, HOUR_S, np.full(3, 90.0))
    found = outlook(asked(feed_of(foretold=own)), "a", NOW_S)
    assert found.forecast is own
    assert (found.feed, found.provenance, found.reason) == ("a", Provenance.PUBLISHED, None)


def test_without_one_the_pool_goes_on_with_what_is_remembered(snapshot):
    found = outlook(asked(feed_of()), "a", NOW_S)
    forecast = found.forecast
    assert (forecast.model, found.provenance) == ("recency-adaptive pool", Provenance.MODELLED)
    snapshot(found.reason)
    assert (forecast.issued_s, forecast.start_s, forecast.step_s) == (NOW_S, PAST.end_s, HOUR_S)
    # The hour under way has been told; what follows is the pool's.
    assert forecast.middle[0] == forecast.low[0] == forecast.high[0] == 321.0
    known = Series(PAST.start_s, HOUR_S, np.append(PAST.values, 321.0))
    pools = RecencyAdaptivePool((0.0, np.inf)).forecast(known, 95)
    assert np.array_equal(forecast.middle[1:], pools.middle)
    assert np.array_equal(forecast.low[1:], pools.low)


def test_an_error_of_the_provider_is_told_and_the_pool_takes_over():
    found = outlook(asked(feed_of(foretold=FeedUnreachable("no way"))), "a", NOW_S)
    assert found.forecast.model == "recency-adaptive pool"
    assert found.reason == "no way"


def test_what_has_ended_is_no_part_of_the_forecast():
    late_s = NOW_S + 3 * HOUR_S
    chain = FeedChain([feed_of()], 10 * HOUR_S)
    chain.recall(late_s)
    chain.ask(late_s)
    forecast = outlook(chain, "a", late_s).forecast
    assert forecast.start_s == PAST.end_s + 3 * HOUR_S
    assert len(forecast.middle) == 96
    assert np.isfinite(forecast.middle).all()


def test_values_of_other_lengths_and_begins_are_holes():
    odd = [average("a", MONDAY_S + 26 * HOUR_S, 2000.0, HOUR_S / 2),
           average("a", MONDAY_S + 27.5 * HOUR_S, 2000.0)]  # fmt: skip
    values = PAST.values.copy()
    values[[26, 27]] = np.nan
    holed = Series(PAST.start_s, HOUR_S, values)
    plain, with_odd = feed_of(holed), feed_of(holed)
    with_odd._history = sorted([*with_odd._history, *odd], key=lambda value: value.start_s)
    first, second = (outlook(asked(feed), "a", NOW_S).forecast for feed in (plain, with_odd))
    assert np.array_equal(first.middle, second.middle)


@pytest.mark.parametrize("series", [grid(0.5), grid(8, step_s=2 * HOUR_S)], ids=["few", "long"])
def test_too_few_values_or_too_long_intervals_make_no_forecast(series, snapshot):
    now_s = series.end_s + 60
    found = outlook(asked(feed_of(series, now_s), now_s), "a", now_s)
    assert (found.forecast, found.provenance) == (None, None)
    snapshot(found.reason)


def test_a_stated_figure_has_no_forecast():
    chain = asked(ConstantFeed(450.0, "a data sheet"))
    found = outlook(chain, "constant", NOW_S)
    assert found.forecast is None
    assert "stated figure" in found.reason


def test_a_feed_that_has_told_nothing_has_no_forecast():
    chain = FeedChain([ScriptedFeed("a")], HOUR_S)
    assert outlook(chain, "a", NOW_S).forecast is None
    assert renewable_outlook(chain, "a", NOW_S) is None
    with pytest.raises(KeyError):
        outlook(chain, "b", NOW_S)


def test_a_made_up_day_knows_its_future_and_says_that_it_is_modelled():
    found = outlook(asked(SyntheticFeed()), "synthetic", NOW_S)
    assert (found.forecast.model, found.provenance) == ("synthetic", Provenance.MODELLED)
    assert found.reason is None


def a_recording(series):
    return GridTrace(
        name="X", path=Path("X.csv"), series=series, scope=Scope.DIRECT, gas=Gas.CO2,
        factors="made up", mix=None, renewable=None, estimated=None, stated=None, repairs=(),
    )  # fmt: skip


def test_a_recording_forecasts_by_its_own_hours_or_not_at_all():
    fast = ReplayFeed(a_recording(PAST), PAST.start_s + 9 * DAY_S, NOW_S, speed=3600.0)
    found = outlook(asked(fast, NOW_S + 0.5), "replay", NOW_S + 0.5)
    assert (found.forecast.step_s, found.provenance) == (1.0, Provenance.MODELLED)
    # A slow one has many hours of the clock, and few of its own.
    slow = ReplayFeed(a_recording(grid(2, step_s=300.0)), MONDAY_S + 6 * HOUR_S, NOW_S, speed=0.1)
    found = outlook(asked(slow), "replay", NOW_S)
    assert found.forecast is None
    assert "X.csv" in found.reason


def test_the_renewable_share_is_forecast_from_the_mixes_that_were_told():
    mix = {Fuel.WIND: 0.3, Fuel.GAS: 0.7}
    chain = asked(feed_of(mix=mix))
    share = renewable_outlook(chain, "a", NOW_S)
    assert share.start_s == PAST.end_s
    assert share.middle == pytest.approx(0.3)
    assert (share.low >= 0).all()
    assert (share.high <= 1).all()
    assert renewable_outlook(asked(feed_of()), "a", NOW_S) is None
    replayed = ReplayFeed(a_recording(PAST), PAST.start_s + 9 * DAY_S, NOW_S)
    assert renewable_outlook(asked(replayed), "replay", NOW_S) is None

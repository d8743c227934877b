"""Any answer at all gives a sound value or an error of feeds, whatever the feed."""

from __future__ import annotations

import importlib.util
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ecorl.carbon.feeds import transport
from ecorl.carbon.feeds.electricity_maps import ElectricityMapsFeed
from ecorl.carbon.feeds.http import Reply, Secret
from ecorl.carbon.feeds.uk import UkCarbonIntensityFeed
from ecorl.carbon.feeds.watttime import WattTimeFeed
from ecorl.carbon.forecasts.forecast import Forecast
from ecorl.errors import FeedError
from ecorl.grid import AverageIntensity, MarginalIntensity
from tests.fakes.grid_answers import (
    BREAKDOWN,
    FORECAST,
    MIX,
    NOON_S,
    NOW_S,
    damaged,
    half_hour,
    hour,
    marginal,
    regional,
)

HOME = "http://127.0.0.1"
KEY = Secret("a key")


def uk_feed(**options):
    return UkCarbonIntensityFeed(base_url=HOME, **options)


def maps_feed(**options):
    return ElectricityMapsFeed("DE", KEY, base_url=HOME, **options)


def watttime_feed():
    if importlib.util.find_spec("watttime") is None:
        pytest.skip("the package watttime is not installed")
    return WattTimeFeed("CAISO_NORTH", "me", KEY, base_url=HOME)


CASES = {
    "uk now": (uk_feed, {}, "read", {"data": [half_hour("12:00")]}),
    "uk mix": (uk_feed, {}, "read", {"data": [half_hour("12:00") | {"generationmix": MIX[:2]}]}),
    "uk region": (uk_feed, {"region": 13}, "read", {"data": [regional("12:00")]}),
    "uk forecast": (uk_feed, {}, "forecast", {"data": [half_hour("12:00"), half_hour("12:30")]}),
    "uk history": (uk_feed, {}, "history", {"data": [half_hour("11:00"), half_hour("11:30")]}),
    "zone now": (maps_feed, {}, "read", hour()),
    "zone mix": (maps_feed, {"with_mix": True}, "read", hour() | BREAKDOWN),
    "zone history": (maps_feed, {}, "history", {"zone": "DE", "history": [hour("11:00")]}),
    "zone forecast": (maps_feed, {}, "forecast", FORECAST),
    "region login": (watttime_feed, {}, "read", {"token": "t0ken"}),
    "region now": (watttime_feed, {}, "read", marginal(("12:10", 700))),
    "region history": (watttime_feed, {}, "history", marginal(("11:00", 1), ("11:05", 2))),
    "region forecast": (watttime_feed, {}, "forecast", marginal(("12:10", 7), ("12:15", 8))),
}


def assert_sound(result):
    """What feeds give out has finite numbers of the right types, in the order of time."""
    if isinstance(result, Forecast):
        assert result.middle.dtype == np.float64
        assert np.isfinite(result.middle[-1])
        assert not np.isinf(result.middle).any()
        return
    values = result if isinstance(result, tuple) else (result,)
    assert [v.start_s for v in values] == sorted({v.start_s for v in values})
    for value in values:
        assert isinstance(value, AverageIntensity | MarginalIntensity)
        assert np.isfinite([value.g_per_kwh, value.start_s, value.interval_s]).all()
        assert value.is_estimated in (True, False, None)
        if value.mix is not None:
            assert sum(value.mix.values()) == pytest.approx(1.0)


@pytest.mark.parametrize("case", CASES)
@settings(deadline=None)
@given(data=st.data())
def test_any_answer_gives_a_sound_value_or_an_error_of_feeds(case, data):
    make, options, call, body = CASES[case]
    answer = data.draw(damaged(body))

    def fetch(url, *_):
        is_login = url.endswith("/login") and case != "region login"
        return Reply(200, {}, json.dumps({"token": "t"} if is_login else answer).encode())

    arguments = (NOON_S - 7200, NOON_S) if call == "history" else (NOW_S,)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transport, "fetch", fetch)
        try:
            result = getattr(make(**options), call)(*arguments)
        except FeedError as error:
            result = error
    if isinstance(result, FeedError):
        assert len(str(result).splitlines()) == 1
    else:
        assert_sound(result)

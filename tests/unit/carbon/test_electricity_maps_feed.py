"""Electricity Maps: the values of its answers, and answers without one."""

from __future__ import annotations

import logging
import traceback

import numpy as np
import pytest

from ecorl.carbon.feeds.electricity_maps import ElectricityMapsFeed
from ecorl.carbon.feeds.http import HttpLimits, Secret
from ecorl.carbon.forecasts.forecast import Forecast
from ecorl.errors import (
    ConfigError,
    FeedError,
    FeedMalformed,
    FeedRefused,
    FeedSilent,
    FeedUnreachable,
)
from ecorl.grid import AverageIntensity, Basis, Fuel, Gas, Scope
from ecorl.kinds import Provenance
from tests.fakes.grid_answers import BREAKDOWN, FORECAST, NOON_S, NOW_S, hour, without
from tests.fakes.grid_server import Answer

KEY = "k3y-that-nobody-may-see"
PATIENT = HttpLimits(connect_s=120.0, read_s=120.0, total_s=120.0)


def maps_feed(server, zone="DE", **options):
    return ElectricityMapsFeed(
        zone, Secret(KEY), base_url=f"{server.url}/v3", limits=PATIENT, **options
    )


def test_a_zone_now(server):
    server.script = [hour()]
    feed = maps_feed(server)
    value = feed.read(NOW_S)
    (asked,) = server.asked
    assert asked.path == "/v3/carbon-intensity/latest"
    assert asked.query == {
        "zone": "DE",
        "emissionFactorType": "lifecycle",
        "temporalGranularity": "hourly",
    }
    assert asked.headers["auth-token"] == KEY
    assert value == AverageIntensity(
        feed="electricity_maps",
        start_s=NOON_S,
        interval_s=3600.0,
        g_per_kwh=302.0,
        gas=Gas.CO2E,
        basis=Basis.LOCATION,
        scope=Scope.LIFE_CYCLE,
        factors=value.factors,
        is_estimated=True,
        fetched_s=NOW_S,
        provenance=Provenance.MODELLED,
    )


def test_a_zone_by_direct_emissions(server, snapshot):
    unsaid = {"isEstimated": None, "estimationMethod": None}
    server.script = [hour(emissionFactorType="direct", **unsaid), hour()]
    feed = maps_feed(server, scope=Scope.DIRECT)
    value = feed.read(NOW_S)
    assert (value.scope, value.is_estimated) == (Scope.DIRECT, None)
    assert server.asked[0].query["emissionFactorType"] == "direct"
    with pytest.raises(FeedMalformed) as caught:
        feed.read(NOW_S)
    snapshot(str(caught.value))
    assert feed.forecast(NOW_S) is None
    assert len(server.asked) == 2


def test_the_first_form_of_the_interface_has_fewer_fields(server):
    newer = ("emissionFactorType", "isEstimated", "estimationMethod", "temporalGranularity")
    server.script = [without(hour(), *newer)]
    assert maps_feed(server).read(NOW_S).is_estimated is None


def test_a_zone_with_its_mix(server):
    server.script = [hour(), BREAKDOWN]
    value = maps_feed(server, with_mix=True).read(NOW_S)
    assert server.paths[1] == "/v3/power-breakdown/latest"
    assert sum(value.mix.values()) == pytest.approx(1.0)
    assert value.mix[Fuel.STORAGE] == pytest.approx(0.05)
    assert value.mix[Fuel.OTHER] == pytest.approx(0.03)
    assert Fuel.NUCLEAR not in value.mix  # the service does not know it, which is not none of it
    assert value.renewable_share == pytest.approx(0.4)


@pytest.mark.parametrize(
    "answer",
    [
        BREAKDOWN | {"datetime": "2026-01-15T11:00:00.000Z"},
        BREAKDOWN | {"zone": "FR"},
        BREAKDOWN | {"powerConsumptionBreakdown": {"coal": 0, "wind": None}},
        BREAKDOWN | {"powerConsumptionBreakdown": {"coal": 5, "wind": -1}},
        BREAKDOWN | {"powerConsumptionBreakdown": {"coal": "5"}},
        BREAKDOWN | {"powerConsumptionBreakdown": []},
        without(BREAKDOWN, "powerConsumptionBreakdown"),
        Answer(status=401),
        Answer(b"{"),
    ],
)
def test_a_fault_of_the_mix_costs_the_mix_alone(server, answer):
    server.script = [hour(), answer]
    value = maps_feed(server, with_mix=True).read(NOW_S)
    assert (value.g_per_kwh, value.mix) == (302.0, None)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (hour(zone="FR"), FeedMalformed),
        (without(hour(), "zone"), FeedMalformed),
        (without(hour(), "datetime"), FeedMalformed),
        (without(hour(), "carbonIntensity"), FeedSilent),
        (hour(value=None), FeedSilent),
        (hour(value="302"), FeedMalformed),
        (hour(value=[302]), FeedMalformed),
        (hour(value=False), FeedMalformed),
        (Answer(b'{"zone": "DE", "carbonIntensity": 1e999, "datetime": "2026-01-15T12:00Z"}'),
         FeedMalformed),
        (hour(value=10**400), FeedMalformed),
        (hour(isEstimated="yes"), FeedMalformed),
        (hour(temporalGranularity="15_minutes"), FeedMalformed),
        (hour(datetime="2026-01-15"), FeedMalformed),
        (hour(datetime=1768478400), FeedMalformed),
        (hour(datetime="0001-01-01T00:00+14:00"), None),
        ([], FeedMalformed),
        ({}, FeedMalformed),
        ("ok", FeedMalformed),
        ({"error": 'No recent data for zone "DE"'}, FeedMalformed),
        (Answer({"error": 'No recent data for zone "DE"'}, status=404), FeedSilent),
        (Answer(status=401), FeedRefused),
        (Answer(status=429, headers={"Retry-After": "60"}), FeedRefused),
        (Answer(status=503), FeedRefused),
        (Answer(hour(), cut=9), FeedUnreachable),
    ],
)  # fmt: skip
def test_a_zone_without_a_value(server, answer, error, caplog):
    server.script = [answer]
    if error is None:  # far from true, which is for those to say who know the grid
        assert maps_feed(server).read(NOW_S).start_s < -6e10
        return
    with caplog.at_level(logging.DEBUG), pytest.raises(FeedError) as caught:
        maps_feed(server).read(NOW_S)
    assert type(caught.value) is error
    assert len(str(caught.value).splitlines()) == 1
    assert KEY not in "".join(traceback.format_exception(caught.value)) + caplog.text


@pytest.mark.parametrize("value", [0, -5, 1e9])
def test_an_absurd_value_is_handed_on_for_others_to_judge(server, value):
    server.script = [hour(value=value)]
    assert maps_feed(server).read(NOW_S).g_per_kwh == value


@pytest.mark.parametrize("field", ["history", "data"])
def test_the_last_hours_of_a_zone(server, field):
    hours = [hour("11:00", 3), hour("09:00", 1), hour("10:00", None), hour("08:00", 9),
             hour("12:00", 4), hour("09:00", 2, isEstimated=False)]  # fmt: skip
    server.script = [{"zone": "DE", field: hours}]
    values = maps_feed(server).history(NOON_S - 3 * 3600, NOON_S)
    assert [(v.g_per_kwh, v.start_s - NOON_S) for v in values] == [(2.0, -10800), (3.0, -3600)]
    assert values[0].is_estimated is False
    assert server.paths == ["/v3/carbon-intensity/history"]


def test_the_forecast_of_a_zone(server):
    server.script = [FORECAST]
    forecast = maps_feed(server).forecast(NOW_S)
    assert server.asked[0].query["horizonHours"] == "72"
    assert (forecast.start_s, forecast.step_s) == (NOON_S, 3600.0)
    assert forecast.issued_s == NOON_S - 12 * 60 + 2
    np.testing.assert_array_equal(forecast.middle, [300, 310, np.nan, 330])
    server.script = [FORECAST | {"updatedAt": "2026-01-16T00:00Z"}]
    assert maps_feed(server).forecast(NOW_S).issued_s == NOW_S


def test_the_forecast_that_a_plan_has(server, caplog, snapshot):
    server.script = [Answer(status=403), FORECAST]
    assert isinstance(maps_feed(server).forecast(NOW_S), Forecast)
    assert server.asked[1].query["horizonHours"] == "24"
    refusal = {"error": "Request unauthorized for zoneKey=DE", "message": "no access"}
    server.script = [Answer(refusal, status=401), Answer(refusal, status=401)]
    with caplog.at_level(logging.INFO):
        assert maps_feed(server).forecast(NOW_S) is None
    snapshot("\n".join(caplog.messages))
    server.script = [Answer(status=500)]
    with pytest.raises(FeedRefused):
        maps_feed(server).forecast(NOW_S)


@pytest.mark.parametrize("zone", ["", "de", "DE&zone=FR", "D E", "DE/..", "DE-", "X" * 99])
def test_a_zone_that_is_none(zone):
    with pytest.raises(ConfigError) as caught:
        ElectricityMapsFeed(zone, Secret(KEY))
    assert caught.value.key.endswith("zone")

"""UK Carbon Intensity: the values of its answers, and answers without one."""

from __future__ import annotations

import numpy as np
import pytest

from ecorl.carbon.feeds.http import HttpLimits
from ecorl.carbon.feeds.uk import UkCarbonIntensityFeed
from ecorl.errors import ConfigError, FeedMalformed, FeedSilent
from ecorl.grid import AverageIntensity, Basis, Fuel, Gas, Scope
from ecorl.kinds import Provenance
from tests.fakes.grid_answers import NOON_S, NOW_S, half_hour, mixed, regional
from tests.fakes.grid_server import Answer

PATIENT = HttpLimits(connect_s=120.0, read_s=120.0, total_s=120.0)


def uk_feed(server, region=None, **options):
    return UkCarbonIntensityFeed(region, base_url=server.url, limits=PATIENT, **options)


def test_the_uk_now(server):
    server.script = {
        "/intensity": {"data": [half_hour("12:00")]},
        "/generation": {"data": mixed("12:00")},
    }
    feed = uk_feed(server)
    value = feed.read(NOW_S)
    assert value == AverageIntensity(
        feed="uk_carbon_intensity",
        start_s=NOON_S,
        interval_s=1800.0,
        g_per_kwh=263.0,
        gas=Gas.CO2,
        basis=Basis.LOCATION,
        scope=Scope.DIRECT,
        factors=value.factors,
        is_estimated=True,
        fetched_s=NOW_S,
        provenance=Provenance.MODELLED,
        mix=value.mix,
    )
    assert sum(value.mix.values()) == pytest.approx(1.0)
    assert value.mix[Fuel.GAS] == pytest.approx(0.436)
    assert value.renewable_share == pytest.approx(0.313)
    assert feed.info.licence == "CC BY 4.0"


def test_the_uk_mix_in_its_documented_list_of_another_half_hour_or_not_at_all(server):
    server.script = [{"data": [half_hour("12:00")]}, {"data": [mixed("12:00")]}]
    assert uk_feed(server).read(NOW_S).mix[Fuel.COAL] == pytest.approx(0.007)
    for answer in (
        {"data": mixed("11:30")},
        {"data": mixed("12:00", [])},
        {"data": mixed("12:00", [{"fuel": "gas", "perc": 43.6}])},
        {"data": mixed("12:00", [{"fuel": "gas", "perc": 120}, {"fuel": "coal", "perc": -20}])},
        {"data": 5},
        Answer(status=500),
    ):
        server.script = [{"data": [half_hour("12:00")]}, answer]
        assert uk_feed(server).read(NOW_S).mix is None
    server.script, server.asked[:] = [{"data": [half_hour("12:00")]}], []
    assert uk_feed(server, with_mix=False).read(NOW_S).mix is None
    assert server.paths == ["/intensity"]


def test_a_uk_half_hour_that_is_not_over_is_the_forecast_and_says_so(server):
    server.script = [{"data": [half_hour("12:00", actual=None)]}]
    value = uk_feed(server, with_mix=False).read(NOW_S)
    assert (value.g_per_kwh, value.is_estimated) == (266.0, True)


@pytest.mark.parametrize("region", [13, "13", "RG10", "rg10"])
def test_a_uk_region(server, region):
    postcode = {} if "13" in str(region) else {"postcode": "RG10"}
    server.script = [{"data": [regional("12:00", **postcode)]}]
    value = uk_feed(server, region).read(NOW_S)
    assert (value.g_per_kwh, value.is_estimated) == (266.0, True)
    assert value.mix[Fuel.WIND] == pytest.approx(0.068)
    assert server.paths == ["/regional/postcode/RG10" if postcode else "/regional/regionid/13"]


@pytest.mark.parametrize("as_list", [True, False])
def test_the_uk_forecast_of_a_region(server, as_list):
    answer = regional("11:30", "12:00", "12:30")
    server.script = [{"data": [answer] if as_list else answer}]
    forecast = uk_feed(server, 13).forecast(NOW_S)
    assert server.paths == ["/regional/intensity/2026-01-15T12:10Z/fw48h/regionid/13"]
    assert (forecast.start_s, forecast.step_s, forecast.issued_s) == (NOON_S, 1800.0, NOW_S)
    assert forecast.middle.tolist() == [266.0, 266.0]
    assert forecast.low is forecast.high is None


def test_the_uk_forecast_in_disorder_and_with_gaps(server):
    periods = [half_hour("14:00", 4, None), half_hour("12:30", None), half_hour("11:30", 9),
               half_hour("12:00", 1, 7), half_hour("13:00", 3, None)]  # fmt: skip
    server.script = [{"data": periods}]
    forecast = uk_feed(server).forecast(NOW_S)
    assert server.paths == ["/intensity/2026-01-15T12:10Z/fw48h"]
    np.testing.assert_array_equal(forecast.middle, [1, np.nan, 3, np.nan, 4])


@pytest.mark.parametrize(
    ("periods", "error"),
    [
        ([], FeedSilent),
        ([half_hour("11:00")], FeedSilent),
        ([half_hour("12:30", None)], FeedSilent),
        ([half_hour("12:00"), half_hour("12:00") | {"to": "2026-01-15T12:15Z"}], FeedMalformed),
        ([half_hour("12:00"), half_hour("12:15", until="12:45")], FeedMalformed),
        ([half_hour("12:00"), half_hour("12:00", day="9999-12-31")], FeedMalformed),
        ([half_hour("12:00") | {"from": "2026-01-15T12:00"}], FeedMalformed),
        ([half_hour("12:00") | {"from": "noon"}], FeedMalformed),
        ([half_hour("12:00", "266")], FeedMalformed),
        ([half_hour("12:00", True)], FeedMalformed),
        ([{"from": "2026-01-15T12:00Z", "to": "2026-01-15T12:30Z"}], FeedMalformed),
        ({"from": "2026-01-15T12:00Z"}, FeedMalformed),
    ],
)
def test_a_uk_forecast_that_is_none(server, periods, error):
    server.script = [{"data": periods}]
    with pytest.raises(error) as caught:
        uk_feed(server).forecast(NOW_S)
    assert len(str(caught.value).splitlines()) == 1


def test_the_uk_history_in_several_requests(server):
    day_s = 86400.0
    start_s = NOON_S - 20 * day_s + 1  # the half hour that has begun is no part of it
    server.script = [
        {"data": [half_hour("12:00", day="2025-12-26"), half_hour("12:30", day="2025-12-26")]},
        {"data": [mixed("12:30") | {"from": "2025-12-26T12:30Z", "to": "2025-12-26T13:00Z"}]},
        {"data": [half_hour("11:30"), half_hour("11:30", actual=1), half_hour("11:00", None, None),
                  half_hour("10:30", actual=None), half_hour("12:00")]},
        {"data": []},
    ]  # fmt: skip
    values = uk_feed(server).history(start_s, NOON_S)
    assert server.paths == [
        "/intensity/2025-12-26T12:30Z/2026-01-08T12:30Z",
        "/generation/2025-12-26T12:30Z/2026-01-08T12:30Z",
        "/intensity/2026-01-08T12:30Z/2026-01-15T12:00Z",
        "/generation/2026-01-08T12:30Z/2026-01-15T12:00Z",
    ]
    assert [(v.g_per_kwh, v.is_estimated, v.mix is None) for v in values] == [
        (263.0, True, False),
        (266.0, True, True),
        (1.0, True, True),
    ]
    assert [v.start_s - NOON_S for v in values] == [-20 * day_s + 1800, -5400.0, -1800.0]


def test_no_history_is_asked_for_that_cannot_be(server):
    feed = uk_feed(server)
    for start_s, end_s in [(NOON_S, NOON_S), (NOON_S, 0), (NOON_S + 1, NOON_S + 1801)]:
        assert feed.history(start_s, end_s) == ()
    assert not server.asked


@pytest.mark.parametrize(
    ("region", "answer", "error"),
    [
        (None, {"data": []}, FeedSilent),
        (None, {"data": [half_hour("12:00", None, None)]}, FeedSilent),
        (None, {"error": {"code": "400 Bad Request", "message": "no"}}, FeedMalformed),
        (None, {"data": {}}, FeedMalformed),
        (None, [], FeedMalformed),
        (13, {"data": []}, FeedSilent),
        (13, {"data": [regional(region=13)]}, FeedSilent),
        (13, {"data": [regional("12:00", region=12)]}, FeedMalformed),
        (13, {"data": [regional("12:00", region="13")]}, FeedMalformed),
        ("RG10", {"data": [regional("12:00", postcode="RG41")]}, FeedMalformed),
    ],
)
def test_a_uk_answer_without_a_value(server, region, answer, error):
    server.script = [answer]
    with pytest.raises(error):
        uk_feed(server, region, with_mix=False).read(NOW_S)


@pytest.mark.parametrize("region", [0, 18, -1, "0", "18", "9" * 5000, "", "RG10 1AA", "Ä1", True])
def test_a_uk_region_that_is_none(region):
    with pytest.raises(ConfigError, match="1 to 17") as caught:
        UkCarbonIntensityFeed(region)
    assert caught.value.key.endswith("region")

"""WattTime: the values of its answers by its own client, and what the client alone would do."""

from __future__ import annotations

import base64
import logging
import os
import sys
import traceback

import numpy as np
import pytest

from ecorl.carbon.feeds.http import HttpLimits, Secret
from ecorl.carbon.feeds.watttime import WattTimeFeed
from ecorl.errors import (
    ConfigError,
    FeedError,
    FeedMalformed,
    FeedRefused,
    FeedSilent,
    FeedUnreachable,
    MissingToolError,
)
from ecorl.grid import Basis, Gas, MarginalIntensity, Scope
from ecorl.kinds import Provenance
from tests.fakes.grid_answers import NOON_S, NOW_S, marginal, without
from tests.fakes.grid_server import Answer

KEY = "k3y-that-nobody-may-see"
TOKEN = "t0ken-that-nobody-may-see"
LOGIN = {"token": TOKEN}
PATIENT = HttpLimits(connect_s=120.0, read_s=120.0, total_s=120.0)
QUICK = HttpLimits(connect_s=120.0, read_s=0.2, total_s=0.4)
G_PER_LB = 0.45359237


@pytest.fixture
def feed(server):
    pytest.importorskip("watttime", reason="the package watttime is not installed")
    return watttime_feed(server, PATIENT)


def watttime_feed(server, limits):
    return WattTimeFeed("CAISO_NORTH", "me", Secret(KEY), base_url=server.url, limits=limits)


def test_a_region_now(server, feed):
    server.script = [LOGIN, marginal(("12:10", 870.5))]
    value = feed.read(NOW_S)
    login, asked = server.asked
    assert login.path == "/login"
    assert base64.b64decode(login.headers["authorization"].removeprefix("Basic ")) == (
        f"me:{KEY}".encode()
    )
    assert asked.path == "/v3/forecast"
    assert asked.query == {
        "region": "CAISO_NORTH",
        "signal_type": "co2_moer",
        "horizon_hours": "0",
    }
    assert asked.headers["authorization"] == f"Bearer {TOKEN}"
    assert value == MarginalIntensity(
        feed="watttime",
        start_s=NOW_S,
        interval_s=300.0,
        g_per_kwh=pytest.approx(870.5 * G_PER_LB, rel=1e-12),
        gas=Gas.CO2,
        basis=Basis.LOCATION,
        scope=Scope.DIRECT,
        factors=value.factors,
        is_estimated=True,
        fetched_s=NOW_S,
        provenance=Provenance.MODELLED,
    )


def test_neither_the_environment_nor_the_logging_of_the_process_changes(server, feed, caplog):
    root = logging.getLogger()
    before = list(root.handlers), root.level
    server.script = [LOGIN, marginal(("12:10", 1))]
    with caplog.at_level(logging.DEBUG):
        feed.read(NOW_S)
    assert (list(root.handlers), root.level) == before
    assert "WATTTIME_USER" not in os.environ
    assert KEY not in os.environ.values()
    assert KEY not in caplog.text
    assert TOKEN not in caplog.text
    assert "warnings" in caplog.text


def test_the_import_of_the_client_sets_up_no_logging(feed, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "watttime"]:
        monkeypatch.delitem(sys.modules, name)
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "level", logging.WARNING)
    WattTimeFeed("CAISO_NORTH", "me", Secret(KEY))
    assert "watttime" in sys.modules
    assert (root.handlers, root.level) == ([], logging.WARNING)


def test_of_several_points_the_one_that_has_begun(server, feed):
    points = marginal(("12:15", 3), ("12:05", 1), ("12:10", 2))
    server.script = [LOGIN, points, points]
    assert feed.read(NOW_S).g_per_kwh == 2 * G_PER_LB
    assert feed.read(NOON_S).g_per_kwh == 1 * G_PER_LB  # a clock that is behind the service's
    assert server.paths.count("/login") == 1


def test_the_past_of_a_region(server, feed):
    imputed, whole = {"imputed_data_used": True}, {"imputed_data_used": False}
    points = marginal(
        ("11:05", 2, imputed), ("11:10", None), ("10:55", 0), ("11:00", 1, whole), ("11:55", 3),
        ("12:00", 4),
    )  # fmt: skip
    server.script = [LOGIN, points]
    values = feed.history(NOON_S - 3600, NOON_S)
    assert server.asked[1].path == "/v3/historical"
    assert server.asked[1].query == {
        "region": "CAISO_NORTH",
        "signal_type": "co2_moer",
        "include_imputed_marker": "true",
        "start": "2026-01-15T11:00:00+00:00",
        "end": "2026-01-15T12:00:00+00:00",
    }
    assert [v.start_s - NOON_S for v in values] == [-3600, -3300, -300]
    assert [v.g_per_kwh for v in values] == pytest.approx([G_PER_LB, 2 * G_PER_LB, 3 * G_PER_LB])
    assert [v.is_estimated for v in values] == [False, True, None]


def test_a_long_past_takes_a_request_a_month(server, feed):
    server.script = [LOGIN, marginal(("11:00", 1)), marginal(("11:05", 2))]
    values = feed.history(NOON_S - 40 * 86400, NOON_S)
    assert len(values) == 2
    assert server.paths == ["/login", "/v3/historical", "/v3/historical"]


def test_no_past_is_asked_for_that_cannot_be(server, feed):
    for start_s, end_s in [(NOON_S, NOON_S), (NOON_S, 0), (NOON_S, NOON_S + 299)]:
        assert feed.history(start_s, end_s) == ()
    assert not server.asked


def test_the_forecast_of_a_region(server, feed):
    server.script = [LOGIN, marginal(("12:20", 3), ("12:05", 9), ("12:10", 1), ("12:25", None))]
    forecast = feed.forecast(NOW_S)
    assert server.asked[1].query["horizon_hours"] == "72"
    assert (forecast.start_s, forecast.step_s, forecast.issued_s) == (NOW_S, 300.0, NOW_S)
    np.testing.assert_allclose(forecast.middle, np.array([1, np.nan, 3]) * G_PER_LB)
    assert forecast.low is forecast.high is None


def test_a_token_that_has_run_out_is_renewed_once(server, feed):
    good = marginal(("12:10", 1))
    server.script = [LOGIN, good, Answer(status=401), LOGIN, good]
    feed.read(NOW_S)
    feed.read(NOW_S)
    assert server.paths.count("/login") == 2
    server.script = [Answer(status=401), LOGIN, Answer(status=401)]
    with pytest.raises(FeedRefused, match="just given"):
        feed.read(NOW_S)


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ([Answer(status=401)], FeedRefused),
        ([Answer(status=403)], FeedRefused),
        ([Answer(status=429, headers={"Retry-After": "3600"})], FeedRefused),
        ([Answer(status=503, headers={"Retry-After": "3600"})], FeedRefused),
        ([Answer(status=500)], FeedRefused),
        ([{}], FeedMalformed),
        ([[]], FeedMalformed),
        ([{"token": ""}], FeedMalformed),
        ([{"token": None}], FeedMalformed),
        ([{"token": 5}], FeedMalformed),
        ([{"token": "a\nb"}], FeedMalformed),
        ([{"token": "é"}], FeedMalformed),
        ([LOGIN, Answer(status=403)], FeedRefused),
        ([LOGIN, Answer(status=429, headers={"Retry-After": "3600"})], FeedRefused),
        ([LOGIN, Answer(status=502)], FeedRefused),
        ([LOGIN, Answer(b"{")], FeedMalformed),
        ([LOGIN, []], FeedMalformed),
        ([LOGIN, {"error": "no", "message": "no"}], FeedMalformed),
        ([LOGIN, without(marginal(("12:10", 1)), "meta")], FeedMalformed),
        ([LOGIN, without(marginal(("12:10", 1)), "data")], FeedMalformed),
        ([LOGIN, marginal()], FeedSilent),
        ([LOGIN, marginal(("12:10", None))], FeedSilent),
        ([LOGIN, marginal(("12:10", "870"))], FeedMalformed),
        ([LOGIN, marginal(("noon", 870))], FeedMalformed),
        ([LOGIN, marginal(("12:10", 1), region="PJM")], FeedMalformed),
        ([LOGIN, marginal(("12:10", 1), signal_type="co2_aoer")], FeedMalformed),
        ([LOGIN, marginal(("12:10", 1), units="percentile")], FeedMalformed),
        ([LOGIN, marginal(("12:10", 1), data_point_period_seconds=3600)], FeedMalformed),
        ([LOGIN, marginal(("12:10", 1), model={"date": ["2023"]})], FeedMalformed),
        ([LOGIN, marginal(("12:10", 1), model=None)], FeedMalformed),
    ],
)
def test_a_region_without_a_value(server, feed, script, error, caplog):
    server.script = list(script)
    caught = the_error_of(feed, caplog)
    assert type(caught) is error
    # The client alone would ask four times, and wait as long as it is told.
    assert len(server.asked) == len(script)
    if "429" in str(caught):
        assert caught.retry_after_s == 3600.0


def the_error_of(feed, caplog):
    """What reading a feed raises: one line, and no secret in it or in the log."""
    with caplog.at_level(logging.DEBUG), pytest.raises(FeedError) as raised:
        feed.read(NOW_S)
    caught = raised.value
    assert str(caught).startswith("WattTime, region CAISO_NORTH")
    assert len(str(caught).splitlines()) == 1
    shown = "".join(traceback.format_exception(caught)) + caplog.text
    for secret in (KEY, TOKEN, base64.b64encode(f"me:{KEY}".encode()).decode()):
        assert secret not in shown
    return caught


@pytest.mark.parametrize(
    "script",
    [
        [Answer(LOGIN | {"more": "x" * 2000}, drip_s=0.05)],
        [LOGIN, Answer(marginal(("12:10", 1), model={"more": "x" * 5000}), drip_s=0.02)],
    ],
    ids=["login", "value"],
)  # fmt: skip
def test_an_answer_that_drips_is_cut_off(server, script, caplog):
    pytest.importorskip("watttime", reason="the package watttime is not installed")
    server.script = list(script)
    assert type(the_error_of(watttime_feed(server, QUICK), caplog)) is FeedUnreachable
    assert len(server.asked) <= len(script)


@pytest.mark.parametrize("call", ["history", "forecast"])
def test_past_and_forecast_of_a_broken_answer(server, feed, call):
    arguments = (NOON_S - 3600, NOON_S) if call == "history" else (NOW_S,)
    for answer in ({}, marginal(("11:00", 1), model={}), Answer(status=403), Answer(b"[1")):
        server.script, server.asked[:] = [LOGIN, answer], []
        with pytest.raises(FeedError):
            getattr(feed, call)(*arguments)
        server.script = []
        feed = watttime_feed(server, PATIENT)


@pytest.mark.parametrize(
    ("region", "user", "key"),
    [("", "me", "region"), ("caiso", "me", "region"), ("A&b=1", "me", "region"),
     ("PJM", "", "user"), ("PJM", "a:b", "user"), ("PJM", "a\nb", "user")],
)  # fmt: skip
def test_what_can_be_no_region_or_user(region, user, key):
    with pytest.raises(ConfigError) as caught:
        WattTimeFeed(region, user, Secret(KEY))
    assert caught.value.key.endswith(key)


def test_without_the_client(monkeypatch, snapshot):
    monkeypatch.setitem(sys.modules, "watttime", None)
    with pytest.raises(MissingToolError) as caught:
        WattTimeFeed("PJM", "me", Secret(KEY))
    snapshot(str(caught.value))

"""Marks by which providers and files say that values are estimates, or made up."""

from __future__ import annotations

import copy

import pytest

from ecorl.carbon.chain import FeedChain
from ecorl.carbon.feeds.answers import AnswerPart, refuse_made_up
from ecorl.carbon.feeds.electricity_maps import ElectricityMapsFeed
from ecorl.carbon.feeds.http import HttpLimits, Secret
from ecorl.carbon.feeds.uk import UkCarbonIntensityFeed
from ecorl.carbon.feeds.watttime import WattTimeFeed
from ecorl.carbon.marks import names_estimation, says_made_up
from ecorl.carbon.traces.reading import read_trace
from ecorl.errors import DataError, FeedMadeUp
from ecorl.grid import Scope, provenance_label
from ecorl.kinds import Provenance
from tests.fakes.grid_answers import FORECAST, NOON_S, NOW_S, half_hour, hour, marginal, regional
from tests.fakes.scripted_feed import ScriptedFeed, average

PATIENT = HttpLimits(connect_s=120.0, read_s=120.0, total_s=120.0)
DISCLAIMER = {"_disclaimer": "SANDBOX MODE - values are made up and must not be used."}
SANDBOX = {"isEstimated": True, "estimationMethod": "SANDBOX_MODE_DATA"}


@pytest.mark.parametrize(
    "text",
    ["SANDBOX_MODE_DATA", "sandbox", "Mocked values", "MOCK_DATA", "isMock", "fake data",
     "test mode", "TEST_DATA", "testKey", "randomly generated", "made-up", "Not real data",
     "SANDBOX MODE - values are made up and must not be used.", "SIMULATED_DATA", "SYNTHETIC",
     "is_test", "isTest", "SAMPLE_DATA"],
)  # fmt: skip
def test_words_for_what_is_made_up(text):
    assert says_made_up(text)


@pytest.mark.parametrize(
    "text",
    ["", "TIME_SLICER_AVERAGE", "RECONSTRUCT_BREAKDOWN", "CONSTRUCT_ZERO", "MEASURED",
     "GENERAL_PURPOSE_ZONE_MODEL", "not real-time", "North Scotland", "latest", "entsoe.eu",
     "hammock grid", "some values are imputed", "SSEN test area 7",
     "The data may not be used for commercial purposes without permission",
     "Data must not be used for settlement purposes", "mix made up of 40 % wind",
     "5 minute sample values averaged", "synthetic load profiles", "This is tested"],
)  # fmt: skip
def test_words_for_estimates_and_places_mark_nothing_as_made_up(text):
    assert not says_made_up(text)


@pytest.mark.parametrize(("method", "is_one"), [
    ("TIME_SLICER_AVERAGE", True), ("", False), (" MEASURED", False), ("None", False),
])  # fmt: skip
def test_the_name_of_a_method_marks_an_estimate(method, is_one):
    assert names_estimation(method) is is_one


@pytest.mark.parametrize("value", [{"sandbox": True}, {"meta": [{"warnings": ["mock data"]}]}])
def test_a_mark_counts_wherever_it_stands(value):
    with pytest.raises(FeedMadeUp, match=r"^Source "):
        refuse_made_up(AnswerPart("Source", "", value))


@pytest.mark.parametrize("value", [{"sandbox": False}, {"sandbox": None}, {"a": ["x", 1, None]}])
def test_a_mark_that_denies_counts_for_nothing(value):
    refuse_made_up(AnswerPart("Source", "", value))


# ---------------------------------------------------------------- live


def test_made_up_hours_of_electricity_maps_are_refused_and_the_next_feed_counts(server, snapshot):
    details = []
    for mark in (SANDBOX, DISCLAIMER, {"isTest": True}, {"note": "mock " * 40}):
        server.script = [hour(value=42, isEstimated=False, estimationMethod=None) | mark]
        feed = ElectricityMapsFeed("DE", Secret("k"), base_url=server.url, limits=PATIENT)
        answer = FeedChain([feed, ScriptedFeed("b", [average("b", NOON_S)])], 3600.0).ask(NOW_S)
        assert answer.value.feed == "b"
        (refusal,) = answer.refusals
        assert refusal.reason == "FeedMadeUp"
        details.append(refusal.detail)
    snapshot("\n".join(details))


@pytest.mark.parametrize("call", ["history", "forecast"])
def test_no_made_up_past_or_forecast_of_electricity_maps_counts(server, call):
    server.script = [{"zone": "DE", "history": [hour("11:00", **SANDBOX)]}]
    arguments = (NOON_S - 7200, NOON_S)
    if call == "forecast":
        server.script, arguments = [FORECAST | DISCLAIMER], (NOW_S,)
    feed = ElectricityMapsFeed("DE", Secret("k"), base_url=server.url, limits=PATIENT)
    with pytest.raises(FeedMadeUp):
        getattr(feed, call)(*arguments)


def test_made_up_values_of_the_other_services_are_refused(server):
    server.script = [{"data": [half_hour("12:00")]} | DISCLAIMER]
    with pytest.raises(FeedMadeUp):
        UkCarbonIntensityFeed(base_url=server.url, limits=PATIENT).read(NOW_S)
    server.script = [{"data": [regional("12:00") | {"isMock": True}]}]
    with pytest.raises(FeedMadeUp):
        UkCarbonIntensityFeed(13, base_url=server.url, limits=PATIENT).read(NOW_S)
    pytest.importorskip("watttime", reason="the package watttime is not installed")
    answer = copy.deepcopy(marginal(("12:10", 870.5)))
    answer["meta"]["warnings"] = [{"type": "TEST_DATA", "message": "mock values"}]
    server.script = [{"token": "t"}, answer]
    with pytest.raises(FeedMadeUp):
        WattTimeFeed("CAISO_NORTH", "me", Secret("k"), base_url=server.url, limits=PATIENT).read(
            NOW_S
        )


@pytest.mark.parametrize(("flag", "method", "expected"), [
    (True, "TIME_SLICER_AVERAGE", True), (None, "TIME_SLICER_AVERAGE", True),
    (None, "MEASURED", None), (None, None, None), (False, None, False),
])  # fmt: skip
def test_an_estimate_of_electricity_maps_counts_and_says_so(server, flag, method, expected):
    server.script = [hour(isEstimated=flag, estimationMethod=method)]
    feed = ElectricityMapsFeed("DE", Secret("k"), base_url=server.url, limits=PATIENT)
    value = feed.read(NOW_S)
    assert value.is_estimated is expected
    assert value.provenance is (Provenance.MODELLED if expected else Provenance.PUBLISHED)
    assert value.is_provided


def test_no_estimate_is_told_as_published():
    assert provenance_label(Provenance.PUBLISHED, None) == "published"
    assert provenance_label(Provenance.PUBLISHED, False) == "published"
    estimated = provenance_label(Provenance.PUBLISHED, True)
    assert estimated.startswith("estimated")
    assert provenance_label(Provenance.MODELLED, True) == estimated
    assert provenance_label(Provenance.MODELLED, None) == "modelled"
    assert provenance_label(Provenance.REPLAYED, True) == "replayed, estimated"


# ---------------------------------------------------------------- exports

HEADER = (
    "Datetime (UTC),Zone id,Carbon intensity gCO₂eq/kWh (Life cycle),"
    "Carbon intensity gCO₂eq/kWh (direct),Carbon-free energy percentage (CFE%),"
    "Data source,Data estimated,Data estimation method\n"
)


def export(path, rows):
    """An export of Electricity Maps: intensities, share, source, flag and method of each hour."""
    lines = [f"2025-06-01 {n:02d}:00:00,PY,{row}" for n, row in enumerate(rows)]
    path.write_text(HEADER + "\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("scope", Scope)
@pytest.mark.parametrize(("source", "method", "column"), [
    ("x.org", "SANDBOX_MODE_DATA", "Data estimation method"), ("mock", "", "Data source"),
])  # fmt: skip
def test_an_export_with_made_up_rows_is_refused_by_its_first_one(
    tmp_path, scope, source, method, column
):
    rows = ["300,270,50,x.org,false,"] * 3 + [f"100,70,50,{source},true,{method}"]
    with pytest.raises(DataError, match=rf":5: {column} = '.*': .*made up"):
        read_trace(export(tmp_path / "a.csv", rows), scope)


def test_a_method_marks_estimates_of_an_export_without_a_flag(tmp_path):
    rows = ["300,270,50,x.org,,", "300,270,50,x.org,,TIME_SLICER_AVERAGE",
            "300,270,50,x.org,true,", "300,270,50,x.org,false,MEASURED"]  # fmt: skip
    trace = read_trace(export(tmp_path / "a.csv", rows))
    assert trace.estimated.tolist() == [False, True, True, False]


def test_a_column_of_estimates_by_its_name_says_so(tmp_path):
    path = tmp_path / "a.csv"
    for name, expected in (("g_per_kwh_estimated", [True, True]), ("g_per_kwh", None)):
        path.write_text(f"time,{name}\n2025-06-01T00:00Z,40\n2025-06-01T01:00Z,41\n")
        estimated = read_trace(path).estimated
        assert expected == (None if estimated is None else estimated.tolist())


@pytest.mark.parametrize(("shares", "believed"), [
    ((100, 100, 100), [30.0, 0.0, 30.0]), ((60, 60, 60), [30.0, None, 30.0]),
    (("", "", ""), [30.0, None, 30.0]),
])  # fmt: skip
def test_a_single_zero_of_an_export_counts_where_its_mix_explains_it(tmp_path, shares, believed):
    rows = [f"24,{g},{share},x.org,false," for g, share in zip((30, 0, 30), shares, strict=True)]
    values = read_trace(export(tmp_path / "a.csv", rows), Scope.DIRECT).series.values
    assert [None if v != v else v for v in values.tolist()] == believed


def test_a_share_of_an_export_explains_what_the_mix_of_a_feed_explains(tmp_path):
    """Below 99 % neither says what the rest is: a row counts by the hours before it."""
    for before, believed in ((30, 0.0), (300, None)):
        rows = [f"24,{g},90,x.org,false," for g in (before, 0, 0, 0, before)]
        values = read_trace(export(tmp_path / "a.csv", rows), Scope.DIRECT).series.values
        told = [None if v != v else v for v in values.tolist()]
        assert told == [before, *[believed] * 3, before]


def test_a_zero_over_the_life_cycle_is_told_without_a_mix(tmp_path, snapshot):
    rows = [f"{g},30,100,x.org,false," for g in (24, 0, 24)]
    (repair,) = (r for r in read_trace(export(tmp_path / "a.csv", rows)).repairs if "0.0" in r.what)
    snapshot(repair.what)


def test_an_export_of_zeros_alone_is_one_of_water_power(tmp_path, snapshot):
    path = export(tmp_path / "a.csv", ["24,0,,x.org,false,"] * 4)
    assert read_trace(path, Scope.DIRECT).series.values.tolist() == [0.0] * 4
    path = export(tmp_path / "b.csv", ["24,0.04,,x.org,false,"] * 4)
    assert read_trace(path, Scope.DIRECT).series.values.tolist() == [0.04] * 4
    zeros = export(tmp_path / "c.csv", ["0,0,,x.org,false,"] * 4)
    with pytest.raises(DataError) as caught:
        read_trace(zeros)
    snapshot(str(caught.value))


def test_direct_values_in_another_unit_are_found_among_zeros(tmp_path):
    path = tmp_path / "a.csv"

    def read(name):
        rows = [f"2025-06-01T{n:02d}:00Z,{value}" for n, value in enumerate([0, 0, 0, 0.4, 0.4])]
        path.write_text(f"time,{name}\n" + "\n".join(rows))
        return read_trace(path, Scope.DIRECT).series.values.tolist()

    with pytest.raises(DataError, match=r" 0\.4"):
        read("direct")
    with pytest.raises(DataError, match="direct_kg_per_litre"):
        read("direct_kg_per_litre")
    assert read("direct_kg_per_kwh") == [0, 0, 0, 400, 400]

"""``ecorl carbon``: a local server in the place of a provider, recordings, and feeds that fail."""

from __future__ import annotations

import json
import math
import re
import sys
import time
from datetime import UTC, datetime

import pytest

from ecorl import cli
from tests.fakes.grid_answers import MIX, NOW_S, half_hour, hour, marginal, mixed
from tests.fakes.grid_series import grid
from tests.fakes.grid_server import Answer, GridServer, unused_url

KEYS = ("ELECTRICITY_MAPS_TOKEN", "WATTTIME_USER", "WATTTIME_PASSWORD")


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    server = GridServer()
    yield server
    server.close()


@pytest.fixture
def command(monkeypatch, capsys):
    """Run the command in this process at noon of the providers' scripted day, without any key."""
    for name in KEYS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()

    def call(*args):
        monkeypatch.setattr(sys, "argv", ["ecorl", *map(str, args)])
        with monkeypatch.context() as then:
            then.setattr(time, "time", lambda: NOW_S)
            with pytest.raises(SystemExit) as caught:
                cli.main()
        streams = capsys.readouterr()
        return caught.value.code, streams.out, streams.err

    yield call
    monkeypatch.delenv("TZ")
    time.tzset()


@pytest.fixture
def config(tmp_path):
    """A config with the feeds that are given, each as a dict, and keys of its table carbon."""

    def write(*feeds, **carbon):
        lines = ["[carbon]", *(f"{key} = {json.dumps(value)}" for key, value in carbon.items())]
        for feed in feeds:
            lines += ["[[carbon.feeds]]"]
            lines += [f"{key} = {json.dumps(value)}" for key, value in feed.items()]
        path = tmp_path / "carbon.toml"
        path.write_text("\n".join(lines) + "\n")
        return path

    return write


def the_line(outcome):
    """The one line on standard error of a user's mistake."""
    code, out, err = outcome
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("ecorl: ")
    return line


def last(out):
    return out.rstrip("\n").splitlines()[-1]


def uk_answers(hours=(), now_value=263):
    """What the service says of now, and what it forecasts: pairs of clock and intensity."""
    return {
        "/intensity": {"data": [half_hour("12:00", forecast=266, actual=now_value)]},
        "/generation": {"data": mixed("12:00", MIX)},
        "/intensity/2026-01-15T12:10Z/fw48h": {
            "data": [half_hour(clock, forecast=value, actual=None) for clock, value in hours]
        },
    }


AHEAD = [("12:00", 266), ("12:30", 240), ("13:00", 190), ("13:30", 170), ("14:00", 220)]


def uk(server):
    return {"type": "uk", "base_url": server.url}


def watttime(server):
    return {"type": "watttime", "region": "CAISO_NORTH", "user": "me", "base_url": server.url}


# ------------------------------------------------------------------------------------------- now


def test_now_tells_all_that_is_known_of_a_value(command, config, server):
    server.script = uk_answers()
    code, out, err = command("carbon", "now", "--config", config(uk(server)))
    assert (code, err) == (0, "")
    told = dict(re.findall(r"^  (\S+)  +(.*)$", out, re.M))
    assert told["value"] == "263 gCO2/kWh"
    assert told["feed"] == "uk_carbon_intensity"
    assert told["interval"] == "today 12:00 to 12:30 (UTC)"
    assert told["age"] == "under way for 10 min, ends in 20 min"
    assert told["basis"] == "location-based"
    assert told["scope"] == "direct emissions of power stations"
    assert told["estimated"] == "yes"
    assert told["renewable"] == "31.3 %"
    assert told["mix"].startswith("gas 43.6 %, solar 18.4 %, ")
    assert told["provenance"] == "estimated by its provider"
    assert told["licence"] == "CC BY 4.0"
    assert "NESO" in told["factors"]
    assert last(out) == (
        "The grid emits 263 gCO2/kWh (UK Carbon Intensity, Great Britain, estimated by its "
        "provider); no threshold is configured: training would run now."
    )


@pytest.mark.parametrize(
    ("carbon", "rest"),
    [
        ({"threshold_g_per_kwh": 300.0},
         ": at or below the threshold of 300: training would run now."),
        ({"threshold_g_per_kwh": 200.0},
         ": above the threshold of 200: training would wait, for 12 h at most."),
        ({"threshold_g_per_kwh": 200.0, "max_wait_s": 0.0},
         ": above the threshold of 200, but carbon.max_wait_s is 0: training would run now."),
        ({"threshold_percentile": 50.0},
         ": above the threshold of 220 (percentile 50 of the coming 24 h): training would wait, "
         "for 12 h at most."),
    ],
)  # fmt: skip
def test_now_says_what_training_would_do(command, config, server, carbon, rest):
    server.script = uk_answers(AHEAD)
    code, out, _ = command("carbon", "now", "--config", config(uk(server), **carbon))
    assert code == 0
    assert last(out).endswith(
        f"(UK Carbon Intensity, Great Britain, estimated by its provider){rest}"
    )


@pytest.mark.parametrize(
    ("deadline", "rest"),
    [
        ("2026-01-15T18:00:00Z", "would wait, for 12 h at most, and until today 18:00 (UTC)."),
        ("2026-01-15T12:00:00Z", "but carbon.soft_deadline leaves no time to wait: training "
         "would run now."),
    ],
)  # fmt: skip
def test_now_knows_the_deadline(command, config, server, deadline, rest):
    server.script = uk_answers()
    path = config(uk(server), threshold_g_per_kwh=200.0)
    code, out, _ = command("carbon", "now", "-c", path, "-s", f"carbon.soft_deadline={deadline}")
    assert code == 0
    assert last(out).endswith(rest)


def test_a_percentile_without_a_forecast_does_not_keep_training_waiting(command, config):
    feed = {"type": "constant", "g_per_kwh": 100.0, "source": "a data sheet"}
    code, out, _ = command("carbon", "now", "-c", config(feed, threshold_percentile=30.0))
    assert code == 0
    assert "takes a forecast, and there is none (a stated figure says nothing" in last(out)
    assert last(out).endswith("training would run now.")


def test_now_asks_for_average_and_marginal(command, config, server, monkeypatch):
    monkeypatch.setenv("WATTTIME_PASSWORD", "s3cret")
    server.script = uk_answers() | {
        "/login": {"token": "t"},
        "/v3/forecast": marginal(("12:10", 900.0)),
    }
    path = config(uk(server), watttime(server), waits_for="marginal", threshold_g_per_kwh=500.0)
    code, out, err = command("carbon", "now", "--config", path)
    assert (code, err) == (0, "")
    average, _, rest = out.partition("marginal intensity")
    assert "263 gCO2/kWh" in average
    assert "watttime" in rest
    assert last(out) == (
        "One more kilowatt-hour emits 408 gCO2/kWh (WattTime, region CAISO_NORTH, estimated by its "
        "provider): at or below the threshold of 500: training would run now."
    )
    code, out, _ = command("carbon", "now", "--config", path, "--json")
    found = json.loads(out)
    assert (code, found["waits_for"], found["command"]) == (0, "marginal", "run")
    assert found["average"]["value"]["mix"]["gas"] == pytest.approx(0.436)
    assert found["average"]["value"]["renewable_share"] == pytest.approx(0.313)
    assert found["marginal"]["value"]["g_per_kwh"] == pytest.approx(408.2, abs=0.1)
    assert found["marginal"]["value"]["mix"] is None
    assert found["marginal"]["value"]["start"] == "2026-01-15T12:10:00Z"
    assert "s3cret" not in out


@pytest.mark.parametrize("waits", [{}, {"threshold_g_per_kwh": 200.0}])
def test_a_dead_feed_leaves_the_intensity_unknown(command, config, waits):
    path = config({"type": "uk", "base_url": unused_url()}, **waits)
    code, out, err = command("carbon", "now", "--config", path)
    assert (code, err) == (1, "")
    assert "  value         unknown\n" in out
    assert re.search(r"^  passed over   uk_carbon_intensity, FeedUnreachable: .*reached", out, re.M)
    assert "The intensity of the grid is unknown: " in last(out)
    assert "0 gCO2" not in out
    code, out, _ = command("carbon", "now", "--config", path, "--json")
    found = json.loads(out)["average"]
    assert (code, found["value"]) == (1, None)
    assert found["refusals"][0]["reason"] == "FeedUnreachable"


def test_the_next_feed_takes_over_and_the_first_is_named(command, config, server):
    server.script = uk_answers(now_value=0) | {"/intensity": {"data": [half_hour("12:00", 0, 0)]}}
    constant = {"type": "constant", "g_per_kwh": 300.0, "source": "a data sheet"}
    code, out, _ = command("carbon", "now", "--config", config(uk(server), constant))
    assert code == 0
    assert "passed over   uk_carbon_intensity, zero: 0 gCO2/kWh" in out
    assert "The grid emits 300 gCO2e/kWh (constant, a stated figure, published)" in last(out)


def test_without_a_config_the_constant_counts_and_a_line_says_what_to_write(command):
    for name in ("now", "forecast"):
        code, out, err = command("carbon", name)
        assert (code, err) == (0, "")
        assert "450 gCO2e/kWh (accounting, a stated figure, published)" in out
        assert 'add the two lines [[carbon.feeds]] and type = "uk"' in last(out)
    code, out, _ = command("carbon", "forecast", "--json")
    found = json.loads(out)
    assert (code, found["forecast"], found["next_clean_window"]) == (0, None, None)
    assert "stated figure" in found["reason"]


# -------------------------------------------------------------------------------------- forecast


def rows_of(out):
    """The table: the cells of each row below the heads."""
    lines = out.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("from"))
    rest = lines[first:]
    return [re.split(r"  +", line) for line in rest[: rest.index("")]]


def test_the_providers_forecast_by_the_hour(command, config, server):
    server.script = uk_answers(AHEAD)
    path = config(uk(server), threshold_g_per_kwh=200.0)
    code, out, err = command("carbon", "forecast", "--config", path)
    assert (code, err) == (0, "")
    heads, *rows = rows_of(out)
    # Half a day is longer than this forecast, so that its rows are its half hours.
    assert heads == ["from (UTC)", "middle", "clean"]
    assert [row[1:] for row in rows] == [
        ["266", "no"], ["240", "no"], ["190", "yes"], ["170", "yes"], ["220", "no"],
    ]  # fmt: skip
    assert "Great Britain. Forecast by the same source (published), made today 12:10" in out
    assert "without an interval" in out
    assert last(out) == (
        "The next clean window, by the threshold of 200: today 13:00 to 14:00 (UTC), 1 h, about "
        "180 gCO2/kWh; in 50 min."
    )
    code, out, _ = command("carbon", "forecast", "--config", path, "--json")
    found = json.loads(out)
    assert found["next_clean_window"]["mean_g_per_kwh"] == 180.0
    assert found["forecast"]["provenance"] == "published"
    assert [i["is_clean"] for i in found["forecast"]["intervals"]] == [
        False, False, True, True, False,
    ]  # fmt: skip
    assert found["forecast"]["intervals"][0]["low_g_per_kwh"] is None


@pytest.mark.parametrize(
    ("carbon", "sentence"),
    [
        ({"threshold_g_per_kwh": 100.0},
         "No clean window until the forecast ends, today 14:30 (UTC): its lowest value is 170 "
         "gCO2/kWh, above the threshold of 100."),
        ({"threshold_g_per_kwh": 270.0},
         "The grid is clean now, by the threshold of 270: today 12:10 to 14:30 (UTC), 2 h 20 min, "
         "about 217 gCO2/kWh, and there the forecast ends."),
        ({}, "No threshold is configured (carbon.threshold_g_per_kwh). The lowest 30 min: today "
         "13:30 to 14:00 (UTC), about 170 gCO2/kWh; in 1 h 20 min."),
    ],
)  # fmt: skip
def test_the_sentence_about_the_time_ahead(command, config, server, carbon, sentence):
    server.script = uk_answers(AHEAD)
    code, out, _ = command("carbon", "forecast", "--config", config(uk(server), **carbon))
    assert code == 0
    assert last(out) == sentence


def test_hours_that_a_provider_leaves_out_are_missing_and_not_zero(command, config, server):
    server.script = uk_answers([*AHEAD[:2], ("13:00", None), ("13:30", 170)])
    path = config(uk(server), threshold_percentile=10.0)
    code, out, _ = command("carbon", "forecast", "--config", path, "--json")
    assert code == 0
    intervals = json.loads(out)["forecast"]["intervals"]
    assert [i["middle_g_per_kwh"] for i in intervals] == [266, 240, None, 170]
    assert intervals[2]["is_clean"] is None
    assert command("carbon", "forecast", "--config", path)[0] == 0


def electricity_maps(server, monkeypatch, forecast, n_hours=24):
    """A day of the service: its past as a sine, and a forecast or a refusal."""
    monkeypatch.setenv("ELECTRICITY_MAPS_TOKEN", "t0ken")
    past = [
        hour(value=300 + 50 * math.sin(i / 4), datetime=moment(NOW_S - 600 - 3600 * (n_hours - i)))
        for i in range(n_hours)
    ]
    server.script = {
        "/carbon-intensity/latest": hour(),
        "/carbon-intensity/history": {"zone": "DE", "history": past},
        "/carbon-intensity/forecast": forecast,
    }
    return {"type": "electricity_maps", "zone": "DE", "base_url": server.url}


def moment(t_s):
    return datetime.fromtimestamp(t_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")


def test_without_the_providers_forecast_the_past_goes_on(command, config, server, monkeypatch):
    feed = electricity_maps(server, monkeypatch, Answer(status=403))
    code, out, _ = command("carbon", "forecast", "--config", config(feed), "--hours", 5)
    assert code == 0
    heads, *rows = rows_of(out)
    assert heads == ["from (UTC)", "middle", "low", "high"]
    assert len(rows) == 5
    assert rows[0] == ["Thu 12:00", "302", "302", "302"]
    assert all(float(low) <= float(mid) <= float(high) for _, mid, low, high in rows)
    assert "Forecast by the recency-adaptive pool (modelled, from estimated values)" in out
    assert "90 % of the values are to lie from low to high" in out
    assert "not the feed's own: Electricity Maps, zone DE has no forecast of its own." in out
    assert "t0ken" not in out


def test_too_short_a_past_makes_no_forecast(command, config, server, monkeypatch):
    feed = electricity_maps(server, monkeypatch, Answer(status=500), n_hours=5)
    code, out, err = command("carbon", "forecast", "--config", config(feed))
    assert (code, err) == (1, "")
    assert "refuses with status 500" in last(out)
    assert "takes values of 20 h, and those of 6 h are known" in last(out)


def test_a_dead_feed_has_no_forecast(command, config):
    path = config({"type": "uk", "base_url": unused_url()})
    code, out, err = command("carbon", "forecast", "--config", path)
    assert (code, err) == (1, "")
    assert out.startswith("passed over: uk_carbon_intensity, FeedUnreachable: ")
    assert last(out) == "There is no forecast, since the intensity is unknown."
    code, out, _ = command("carbon", "forecast", "--config", path, "--json")
    assert (code, json.loads(out)["forecast"]) == (1, None)


@pytest.fixture
def recording(tmp_path):
    series = grid(12, seed=2)
    lines = [
        f"{moment(series.start_s + 3600 * i)},{value:.3f}" for i, value in enumerate(series.values)
    ]
    path = tmp_path / "west_2024.csv"
    path.write_text("\n".join(["time,g/kWh", *lines]) + "\n")
    starts_at = moment(series.start_s + 10 * 86400)
    return {"type": "replay", "name": "west", "path": str(path)}, starts_at


def test_a_recording_is_replayed_from_now_on(command, config, recording):
    feed, starts_at = recording
    path = config(feed, threshold_g_per_kwh=280.0)
    path.write_text(path.read_text() + f"starts_at = {starts_at}\n")
    code, out, _ = command("carbon", "now", "--config", path)
    assert code == 0
    assert re.search(r"^  provenance +replayed$", out, re.M)
    assert "(recorded in west_2024.csv, replayed)" in last(out)
    code, out, _ = command("carbon", "forecast", "--config", path, "--hours", 48)
    assert code == 0
    heads, *rows = rows_of(out)
    assert heads == ["from (UTC)", "middle", "low", "high", "clean"]
    assert len(rows) == 48
    assert "(modelled, from replayed values)" in out
    assert last(out).startswith("The next clean window, by the threshold of 280: ")


def test_a_recording_that_has_just_begun_has_no_forecast(command, config, recording):
    code, out, _ = command("carbon", "forecast", "--config", config(recording[0]))
    assert code == 1
    assert "west_2024.csv, as told by now: a forecast takes values of 20 h" in last(out)


def test_a_fast_made_up_day_has_rows_of_seconds(command, config):
    path = config({"type": "synthetic", "speed": 3600.0}, threshold_g_per_kwh=300.0)
    code, out, _ = command("carbon", "forecast", "--config", path, "--hours", 6)
    assert code == 0
    _, *rows = rows_of(out)
    assert [row[0] for row in rows[:3]] == ["Thu 12:10:00", "Thu 12:10:04", "Thu 12:10:08"]
    assert "it knows what will be told" in out
    assert re.search(r"today 12:\d\d:\d\d to 12:\d\d:\d\d \(UTC\), .* s, about", last(out))


# -------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize("name", ["now", "forecast"])
@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("carbon.feeds=[{type='uk', region='99'}]", ["carbon.feeds.0.region = ", "1 to 17"]),
        ("carbon.feeds=[{type='uk', regoin='1'}]", ["carbon.feeds", "regoin", "region"]),
        ("carbon.feeds=[{type='replay', path='nowhere.csv'}]", ["carbon.feeds.0.path", "nowhere"]),
        ("carbon.feeds=[{type='electricity_maps', zone='DE'}]", ["ELECTRICITY_MAPS_TOKEN"]),
        ("carbon.feeds=[{type='watttime', region='X'}]", ["carbon.feeds.0.user", "WATTTIME_USER"]),
        ("carbon.threshold_g_per_kwh=-1.0", ["carbon.threshold_g_per_kwh = -1.0"]),
        ("carbon.waits_for='marginal'", ["carbon.waits_for = 'marginal'", "'average'"]),
    ],
)
def test_a_mistake_is_one_line(command, name, override, parts):
    line = the_line(command("carbon", name, "--set", override))
    for part in parts:
        assert part in line


def test_other_mistakes_are_one_line_too(command, tmp_path):
    assert "--config = 'nope'" in the_line(command("carbon", "now", "--config", "nope"))
    assert "--hours" in the_line(command("carbon", "forecast", "--hours", 49))
    assert "No such command" in the_line(command("carbon", "then"))
    code, out, _ = command("carbon")
    assert code == 2
    assert "forecast" in out

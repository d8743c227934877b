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


def head(out):
    return out.partition("\n\n")[0]


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


def test_now_says_what_training_would_do(command, config, server, snapshot):
    server.script = uk_answers(AHEAD)
    stated = {"type": "constant", "g_per_kwh": 100.0, "source": "a data sheet"}
    above, sentences = {"threshold_g_per_kwh": 200.0}, []
    for feed, carbon, override, expected in (
        (uk(server), {}, None, ("run", "ungoverned", None)),
        (uk(server), {"threshold_g_per_kwh": 300.0}, None, ("run", "clean", 300.0)),
        (uk(server), above, None, ("pause", "dirty", 200.0)),
        (uk(server), above | {"max_wait_s": 0.0}, None, ("run", "waited", 200.0)),
        (uk(server), above, "soft_deadline=2026-01-15T18:00:00Z", ("pause", "dirty", 200.0)),
        (uk(server), above, "soft_deadline=2026-01-15T12:00:00Z", ("run", "deadline", 200.0)),
        (uk(server), {"threshold_percentile": 50.0}, None, ("pause", "dirty", 220.0)),
        (stated, {"threshold_percentile": 30.0}, None, ("run", "unknown", None)),
    ):
        given = () if override is None else ("-s", f"carbon.{override}")
        code, out, _ = command("carbon", "now", "-c", config(feed, **carbon), *given, "--json")
        found = json.loads(out)
        assert code == 0
        assert (found["command"], found["why"], found["threshold_g_per_kwh"]) == expected
        sentences.append(found["sentence"])
    snapshot("\n".join(sentences))


def test_now_asks_for_average_and_marginal(command, config, server, monkeypatch, snapshot):
    monkeypatch.setenv("WATTTIME_PASSWORD", "s3cret")
    server.script = uk_answers() | {
        "/login": {"token": "t"},
        "/v3/forecast": marginal(("12:10", 900.0)),
    }
    path = config(uk(server), watttime(server), waits_for="marginal", threshold_g_per_kwh=500.0)
    code, out, err = command("carbon", "now", "--config", path)
    assert (code, err) == (0, "")
    snapshot(out)
    code, out, _ = command("carbon", "now", "--config", path, "--json")
    found = json.loads(out)
    assert (code, found["waits_for"], found["command"]) == (0, "marginal", "run")
    assert found["average"]["value"]["mix"]["gas"] == pytest.approx(0.436)
    assert found["average"]["value"]["renewable_share"] == pytest.approx(0.313)
    assert found["marginal"]["value"]["g_per_kwh"] == pytest.approx(408.2, abs=0.1)
    assert found["marginal"]["value"]["mix"] is None
    assert found["marginal"]["value"]["start"] == "2026-01-15T12:10:00Z"
    assert "s3cret" not in out


def test_a_dead_feed_leaves_the_intensity_unknown(command, config, snapshot):
    url, sentences = unused_url(), []
    for waits in ({}, {"threshold_g_per_kwh": 200.0}):
        path = config({"type": "uk", "base_url": url}, **waits)
        code, out, _ = command("carbon", "now", "--config", path, "--json")
        found = json.loads(out)
        assert (code, found["average"]["value"]) == (1, None)
        assert found["average"]["refusals"][0]["reason"] == "FeedUnreachable"
        sentences.append(found["sentence"])
    code, out, err = command("carbon", "now", "--config", path)
    assert (code, err) == (1, "")
    snapshot("\n".join((*sentences, "", out)), url=url)


def test_the_next_feed_takes_over_and_the_first_is_named(command, config, server):
    server.script = uk_answers(now_value=0) | {"/intensity": {"data": [half_hour("12:00", 0, 0)]}}
    constant = {"type": "constant", "g_per_kwh": 300.0, "source": "a data sheet"}
    code, out, _ = command("carbon", "now", "--config", config(uk(server), constant), "--json")
    found = json.loads(out)["average"]
    assert (code, found["value"]["feed"], found["value"]["g_per_kwh"]) == (0, "constant", 300.0)
    (passed_over,) = found["refusals"]
    assert (passed_over["feed"], passed_over["reason"]) == ("uk_carbon_intensity", "zero")


def test_without_a_config_the_constant_counts_and_a_line_says_what_to_write(command, snapshot):
    for name in ("now", "forecast"):
        code, out, err = command("carbon", name)
        assert (code, err) == (0, "")
        snapshot(out, name)
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


def test_the_providers_forecast_by_the_hour(command, config, server, snapshot):
    server.script = uk_answers(AHEAD)
    path = config(uk(server), threshold_g_per_kwh=200.0)
    code, out, err = command("carbon", "forecast", "--config", path)
    assert (code, err) == (0, "")
    # Half a day is longer than this forecast, so that its rows are its half hours.
    assert [row[1:] for row in rows_of(out)[1:]] == [
        ["266", "no"], ["240", "no"], ["190", "yes"], ["170", "yes"], ["220", "no"],
    ]  # fmt: skip
    snapshot(out)
    code, out, _ = command("carbon", "forecast", "--config", path, "--json")
    found = json.loads(out)
    assert found["next_clean_window"]["mean_g_per_kwh"] == 180.0
    assert found["forecast"]["provenance"] == "published"
    assert [i["is_clean"] for i in found["forecast"]["intervals"]] == [
        False, False, True, True, False,
    ]  # fmt: skip
    assert found["forecast"]["intervals"][0]["low_g_per_kwh"] is None


def test_the_sentence_about_the_time_ahead(command, config, server, snapshot):
    server.script, sentences = uk_answers(AHEAD), []
    for carbon in ({"threshold_g_per_kwh": 100.0}, {"threshold_g_per_kwh": 270.0}, {}):
        code, out, _ = command("carbon", "forecast", "--config", config(uk(server), **carbon))
        assert code == 0
        sentences.append(last(out))
    snapshot("\n".join(sentences))


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


def test_without_the_providers_forecast_the_past_goes_on(
    command, config, server, monkeypatch, snapshot
):
    feed = electricity_maps(server, monkeypatch, Answer(status=403))
    code, out, _ = command("carbon", "forecast", "--config", config(feed), "--hours", 5)
    assert code == 0
    heads, *rows = rows_of(out)
    assert heads == ["from (UTC)", "middle", "low", "high"]
    assert len(rows) == 5
    assert rows[0] == ["Thu 12:00", "302", "302", "302"]
    assert all(float(low) <= float(mid) <= float(high) for _, mid, low, high in rows)
    snapshot(head(out))
    assert "t0ken" not in out


def test_where_there_is_no_forecast_the_reason_is_told(
    command, config, server, monkeypatch, recording, snapshot
):
    url, reasons = unused_url(), []
    short = electricity_maps(server, monkeypatch, Answer(status=500), n_hours=5)
    for feed in (short, {"type": "uk", "base_url": url}, recording[0]):
        path = config(feed)
        code, out, err = command("carbon", "forecast", "--config", path)
        assert (code, err) == (1, "")
        reasons.append(out)
        code, out, _ = command("carbon", "forecast", "--config", path, "--json")
        assert (code, json.loads(out)["forecast"]) == (1, None)
    snapshot("\n".join(reasons), url=url)


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


def test_a_recording_is_replayed_from_now_on(command, config, recording, snapshot):
    feed, starts_at = recording
    path = config(feed, threshold_g_per_kwh=280.0)
    path.write_text(path.read_text() + f"starts_at = {starts_at}\n")
    code, out, _ = command("carbon", "now", "--config", path)
    assert code == 0
    assert re.search(r"^  provenance +replayed$", out, re.M)
    assert "west_2024.csv" in last(out)
    code, out, _ = command("carbon", "forecast", "--config", path, "--hours", 48)
    assert code == 0
    heads, *rows = rows_of(out)
    assert heads == ["from (UTC)", "middle", "low", "high", "clean"]
    assert len(rows) == 48
    snapshot(head(out))


def test_a_fast_made_up_day_has_rows_of_seconds(command, config, snapshot):
    path = config({"type": "synthetic", "speed": 3600.0}, threshold_g_per_kwh=300.0)
    code, out, _ = command("carbon", "forecast", "--config", path, "--hours", 6)
    assert code == 0
    _, *rows = rows_of(out)
    assert [row[0] for row in rows[:3]] == ["Thu 12:10:00", "Thu 12:10:04", "Thu 12:10:08"]
    snapshot(head(out))
    assert re.search(r"\b12:\d\d:\d\d to 12:\d\d:\d\d\b", last(out))


# -------------------------------------------------------------------------------------- mistakes


def test_a_mistake_is_one_line(command, tmp_path, snapshot):
    lines = []
    for override in (
        "carbon.feeds=[{type='uk', region='99'}]",
        "carbon.feeds=[{type='uk', regoin='1'}]",
        "carbon.feeds=[{type='replay', path='nowhere.csv'}]",
        "carbon.feeds=[{type='electricity_maps', zone='DE'}]",
        "carbon.feeds=[{type='watttime', region='X'}]",
        "carbon.threshold_g_per_kwh=-1.0",
        "carbon.waits_for='marginal'",
    ):
        now, forecast = (
            the_line(command("carbon", name, "--set", override)) for name in ("now", "forecast")
        )
        assert now == forecast
        lines.append(now)
    lines.append(the_line(command("carbon", "now", "--config", "nope")))
    lines.append(the_line(command("carbon", "forecast", "--hours", 49)))
    lines.append(the_line(command("carbon", "then")))
    snapshot("\n".join(lines))


def test_without_a_command_the_help_is_a_mistake(command):
    code, out, _ = command("carbon")
    assert code == 2
    assert "forecast" in out

"""``ecorl carbon plan``, ``simulate`` and ``profile``, along hours that are made up."""

from __future__ import annotations

import csv
import json
import os
import re
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from ecorl import cli
from ecorl.cli.carbon.planning.schedule import MOST_ROWS
from ecorl.controllers.planning import comparison
from ecorl.controllers.planning.tables import read_table
from ecorl.errors import MissingToolError
from ecorl.ledger import LEDGER_FILE, Ledger
from tests.fakes.recordings import NEW_YEAR_S, two, write
from tests.unit.controllers.test_planning import execution

DAY_S, DAYS = 86400.0, 20
PNG = b"\x89PNG"
START = "2022-01-11"
"""Ten days after the recording's begin."""


@pytest.fixture
def command(monkeypatch, capsys):
    """Run the command in this process, in UTC."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()

    def call(*args):
        monkeypatch.setattr(sys, "argv", ["ecorl", "carbon", *map(str, args)])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        streams = capsys.readouterr()
        return caught.value.code, streams.out, streams.err

    yield call
    monkeypatch.delenv("TZ")
    time.tzset()


def hours(days=DAYS, low=100.0, high=500.0):
    """Clean from 8 to 16 o'clock, dirty otherwise."""
    n = np.arange(24 * days) % 24
    return np.where((n >= 8) & (n < 16), low, high).tolist()


@pytest.fixture
def trace(tmp_path):
    return write(tmp_path, two(hours()))


@pytest.fixture
def planned(command, trace):
    """Plans three days from the recording's tenth on, at a third of what could be trained."""

    def call(*args):
        return command(
            "plan", "--trace", trace, "--start", START, "--days", 3, "--tokens", 6.9e9, *args
        )

    return call


@pytest.fixture
def simulated(command, trace):
    def call(*args):
        return command("simulate", "--traces", trace, "--start", START, "--days", 3, *args)

    return call


def the_line(outcome):
    """The one line on standard error of a user's mistake."""
    code, out, err = outcome
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("ecorl: ")
    return line.removeprefix("ecorl: ")


def last(out):
    return out.rstrip("\n").splitlines()[-1]


def row(out, name):
    """The cells of the table's row that begins with a name."""
    (line,) = [line for line in out.splitlines() if line.startswith(f"{name}  ")]
    return re.split(r"  +", line)[1:]


# --------------------------------------------------------------------------------------------- plan


def test_a_plan_says_when_to_train_and_what_it_is_worth(planned, snapshot):
    code, out, err = planned()
    assert (code, err) == (0, "")
    snapshot(out)


def test_a_plan_as_data_has_all_spans_and_no_nan(planned):
    code, out, _ = planned("--json")
    found = json.loads(out)
    assert code == 0
    assert found["provenance"] == "modelled"
    assert found["grid"]["provenance"] == "replayed"
    assert (found["table"]["provenance"], found["table"]["widths"][-1]) == ("modelled", 8)
    first = found["spans"][0]
    assert (first["start"], first["end"]) == ("2022-01-11T08:00:00Z", "2022-01-11T16:00:00Z")
    assert (first["width"], first["g_per_kwh"]) == (8, pytest.approx(100.0, abs=0.5))
    assert sum(span["tokens"] for span in found["spans"]) == pytest.approx(6.9e9)
    assert {span["gear"] for span in found["spans"]} == {"FP8"}
    assert found["expected"]["saving_on_static_fp8"] > 0.7
    assert found["intervals"]["n_courses"] == len(found["courses"]) == 8
    earliest, *_, own = found["deadlines"]
    assert [one["slack"] for one in found["deadlines"]][:3] == [1.0, 1.25, 1.67]
    assert earliest["saving_on_static_fp8"] == pytest.approx(0.0, abs=0.0005)
    assert (own["is_own"], own["slack"]) == (True, pytest.approx(2.99, abs=0.005))
    assert found["worth"]["g_per_token"] > 0.0


def test_a_plan_does_not_look_at_what_the_recording_has_after_the_start(command, tmp_path, planned):
    whole = planned()[1]
    values = hours()
    values[240:] = [300.0] * 240
    other = write(tmp_path, two(values))
    again = command(
        "plan", "--trace", other, "--start", START, "--days", 3, "--tokens", 6.9e9
    )  # fmt: skip
    assert again[1] == whole


def test_an_older_recording_is_planned_from_its_end(command, trace):
    _, out, _ = command("plan", "--trace", trace, "--days", 2, "--tokens", 2e9, "--json")
    found = json.loads(out)
    assert (found["start"], found["deadline"]) == ("2022-01-21T00:00:00Z", "2022-01-23T00:00:00Z")


def test_a_picture_is_written(planned, tmp_path):
    path = tmp_path / "folder" / "plan.png"
    code, out, _ = planned("--plot", path)
    assert code == 0
    assert last(out) == f"picture: {path}"
    assert path.read_bytes().startswith(PNG)


def test_a_long_schedule_is_cut_with_a_word_of_the_rest(command, trace):
    args = ("plan", "--trace", trace, "--start", START, "--days", 12, "--tokens", 4e10)
    _, out, _ = command(*args)
    rows = re.findall(r"^(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)\b.*\bFP8\b", out, re.M)
    assert len(rows) == MOST_ROWS
    found = re.search(r"^\.\.\. \D+(\d+)", out, re.M)
    data = json.loads(command(*args, "--json")[1])
    assert len(data["spans"]) == MOST_ROWS + int(found[1])


def test_other_zones_are_told_beside_utc(planned, monkeypatch):
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    _, out, _ = planned()
    assert row(out, "from (UTC+09:00)")[0] == "UTC"
    assert row(out, "Tue 11 Jan 17:00")[0] == "Tue 11 Jan 08:00"
    assert "UTC+09:00" in last(out)


def test_a_plan_says_so_where_it_is_not_worth_it(command, tmp_path, snapshot):
    sentences = []
    for low in (300.0, 290.0):
        path = write(tmp_path, two(hours(10, low, 300.0)))
        # With fewer workers the modelled table trains more of a joule: that is left out here.
        args = ("--days", 3, "--tokens", 6.9e9, "--scaling", 1)
        sentences.append(last(command("plan", "--trace", path, *args)[1]))
    snapshot("\n".join(sentences))


def test_a_table_without_fp8_is_held_against_bf16(planned):
    code, out, _ = planned("--gpu", "a100_sxm", "--tokens", 2e9)
    assert code == 0
    assert "FP8" not in out.partition("\n\n")[2]
    assert "static BF16" in last(out)


def test_a_mistake_is_one_line_and_writes_nothing(planned, tmp_path, snapshot):
    before, lines = set(tmp_path.rglob("*")), []
    for args in (
        ["--tokens", 9e12],
        ["--tokens", 0],
        ["--deadline", "2022-01-20"],
        ["--start", "2022-01-02"],
        ["--start", "2023-01-02"],
        ["--start", "soon"],
        ["--soft-deadline", "2022-01-13"],
        ["--table", "nowhere.toml"],
        ["--gpu", "u55c"],
        ["--model", "9z"],
        ["--workers", 1],
        ["--fp8-gain", 99],
        ["--plot", "/"],
        ["--config", "nowhere.toml"],
        ["-s", "carbon.control.low_share=2.0"],
        ["--days", "x"],
        ["--what"],
    ):
        plot = [] if "--plot" in args else ["--plot", tmp_path / "plan.png"]
        lines.append(the_line(planned(*plot, *args)))
        assert set(tmp_path.rglob("*")) == before
    snapshot("\n".join(lines))


def test_what_has_to_be_said_is_asked_for(command, trace, snapshot):
    lines = [
        the_line(command("plan", *args))
        for args in (
            ("--trace", trace, "--tokens", 1e9),
            ("--trace", trace, "--days", 3),
            ("--days", 3, "--tokens", 1e9),
            ("--trace", "none.csv", "--days", 3, "--tokens", 1e9),
            ("--trace", trace, "--deadline", "2022-01-03", "--tokens", 1e9),
        )
    ]
    snapshot("\n".join(lines))


def test_the_config_says_what_the_options_leave_out(command, tmp_path, trace):
    table = tmp_path / "table.toml"
    table.write_text(
        'provenance = "measured"\nsource = "by hand"\nwidths = [1, 2]\n'
        "[power_w]\nBF16 = [700.0, 1390.0]\n[tokens_per_s]\nBF16 = [1e4, 1.9e4]\n"
    )
    config = tmp_path / "run.toml"
    config.write_text(
        f"[carbon.control]\ntokens = 1e9\ntable = '{table}'\nslack = 2.0\n"
        "idle_w = 70.0\nbase_w = 100.0\n[accounting]\npue = 1.5\nsource = 'mine'\n"
    )
    asked = ("plan", "--config", config, "--trace", trace)
    code, out, _ = command(*asked, "--json")
    found = json.loads(out)
    assert code == 0
    assert found["table"] == {
        "provenance": "measured", "source": "by hand", "gears": ["BF16"], "widths": [1, 2],
    }  # fmt: skip
    assert (found["slack"], found["pue"]) == (pytest.approx(2.0), 1.5)
    assert "idle_w = 0" not in command(*asked)[1]
    assert the_line(command(*asked, "--workers", 4)).startswith("--workers = 4")


def test_a_plan_of_feeds_goes_by_what_they_told(command, tmp_path, trace, snapshot):
    config = tmp_path / "run.toml"

    def asked(feed):
        config.write_text(f"[[carbon.feeds]]\n{feed}\n")
        args = ("plan", "--config", config, "--days", 3, "--tokens", 6.9e9, "--json")
        return command(*args)

    replay = f'type = "replay"\npath = "{trace}"'
    code, out, err = asked(f"{replay}\nstarts_at = 2022-01-13T00:00:00Z")
    assert (code, err) == (0, "")
    found = json.loads(out)
    grid = found["grid"]
    assert (grid["source"], grid["provenance"]) == ("recorded in X_2022.csv", "replayed")
    assert grid["known_days"] == pytest.approx(12.0, abs=1 / 24)
    assert found["expected"]["saving_on_static_fp8"] > 0.7
    lines = []
    for feed in (replay, 'type = "constant"\ng_per_kwh = 300.0\nsource = "a data sheet"'):
        code, out, err = asked(feed)
        assert (code, out) == (1, "")
        lines += err.splitlines()
    assert len(lines) == 2
    snapshot("\n".join(lines))


# ----------------------------------------------------------------------------------------- simulate


def test_a_simulation_tells_savings_and_the_distance_to_the_bound(simulated, snapshot):
    pytest.importorskip("scipy")
    code, out, err = simulated("--slack", 3)
    assert (code, err) == (0, "")
    snapshot(out)
    first, second = out.split("\n\n")[1:3]
    saved = dict.fromkeys(("static BF16", "static FP8", "carbonscaler", "stochastic", "LP bound"))
    for name in saved:
        saved[name] = float(row(first, name)[2].removesuffix(" %"))
    assert saved["static BF16"] < saved["static FP8"] == 0.0
    assert saved["stochastic"] > 70.0
    assert saved["LP bound"] >= saved["stochastic"]
    assert row(first, "LP bound")[3:] == ["0.0 %", "100.0 %"]
    assert row(first, "static FP8")[4] == "0.0 %"
    assert row(second, "stochastic")[1:3] == ["0", "100.0 %"]


def test_a_simulation_as_data_rows_and_a_picture(simulated, tmp_path):
    rows, plot = tmp_path / "rows.csv", tmp_path / "new" / "sim.png"
    code, out, _ = simulated(
        "--json", "--controller", "race", "--csv", rows, "--plot", plot, "--every-days", 2
    )
    found = json.loads(out)
    assert code == 0
    assert found["starts"] == [f"2022-01-{day}T00:00:00Z" for day in (11, 13, 15, 17)]
    assert [one["name"] for one in found["controllers"]] == ["race"]
    assert found["controllers"][0]["saving_low"] == pytest.approx(0.0)
    assert found["slack"] == pytest.approx(1.67)
    with rows.open() as file:
        read = list(csv.DictReader(file))
    assert len(read) == 4 * 3
    assert {one["controller"] for one in read} == {"static BF16", "static FP8", "race"}
    assert all(float(one["carbon_g"]) > 0.0 for one in read)
    assert plot.read_bytes().startswith(PNG)


def test_without_scipy_the_bound_is_missing_with_its_reason(simulated, monkeypatch):
    def missing(problem, truth):
        raise MissingToolError("the bound takes SciPy: pip install 'ecorl[policy]'")

    monkeypatch.setattr(comparison, "lp_bound", missing)
    code, out, _ = simulated()
    assert code == 0
    assert row(out.split("\n\n")[1], "stochastic")[3:] == ["-", "-"]
    assert "ecorl[policy]" in out
    assert "LP bound" not in out


def test_forecasts_may_be_told(simulated):
    plain = json.loads(simulated("--json", "--controller", "carbonscaler")[1])
    told = json.loads(
        simulated("--json", "--controller", "carbonscaler", "--forecast", "archived")[1]
    )
    assert (plain["forecast"], told["forecast"]) == ("none", "archived")
    assert plain["controllers"] != told["controllers"]


def test_holes_and_a_static_training_that_is_too_late_are_told(command, tmp_path, snapshot):
    values = hours()
    numbers = [n for n in range(len(values)) if n not in (250, 251)]
    path = write(tmp_path, two([values[n] for n in numbers], numbers=numbers))
    args = ("--start", START, "--days", 3, "--slack", 1, "--controller", "race")
    notes = command("simulate", "--traces", path, *args)[1].split("\n\n")[3].splitlines()
    snapshot("\n".join(notes[1:-1]))
    found = json.loads(command("simulate", "--traces", path, *args, "--json")[1])
    assert found["bridged_values"] == 2
    assert found["static"][0]["name"] == "static BF16"
    assert found["static"][0]["done_days"] > 3.0
    numbers = [n for n in range(len(values)) if not 250 <= n < 299]
    path = write(tmp_path, two([values[n] for n in numbers], numbers=numbers))
    line = the_line(command("simulate", "--traces", path, *args))
    assert line.startswith("carbon.control.trace = ")


def test_a_recording_of_the_config_is_played(command, tmp_path, trace):
    config = tmp_path / "run.toml"
    config.write_text(f'[[carbon.feeds]]\ntype = "replay"\npath = "{trace}"\n')
    args = ("simulate", "-c", config, "--days", 3, "--controller", "race", "--json")
    code, out, _ = command(*args)
    assert (code, json.loads(out)["trace"]) == (0, str(trace))


def test_a_mistake_in_a_simulation_is_one_line_and_writes_nothing(simulated, tmp_path, snapshot):
    before, lines = set(tmp_path.rglob("*")), []
    for args in (
        ["--controller", "nobody"],
        ["--tokens", 9e14],
        ["--tokens", 1e18],
        ["--days", 21],
        ["--days", 12],
        ["--slack", 0.9],
        ["--slack", 2, "--tokens", 1e9],
        ["--deadline", "2022-01-13"],
        ["--controller", "spot"],
        ["--forecast", "sure"],
        ["-s", "carbon.control.epoch_s=700.0"],
        ["--traces", "none.csv"],
        ["--csv", "/"],
    ):
        files = ["--plot", tmp_path / "sim.png"]
        files += [] if "--csv" in args else ["--csv", tmp_path / "rows.csv"]
        lines.append(the_line(simulated(*files, *args)))
        assert set(tmp_path.rglob("*")) == before
    snapshot("\n".join(lines))


def test_prices_that_cannot_be_used_name_their_key(simulated, tmp_path, snapshot):
    path, lines = tmp_path / "prices.csv", []
    for rows in (
        "2022-01-11T00:00Z,2\n2022-01-11T01:00Z,-3\n",
        "2022-02-11T00:00Z,2\n2022-02-11T01:00Z,3\n",
    ):
        path.write_text(f"time,price\n{rows}")
        setting = f"carbon.control.spot_prices={path}"
        lines.append(the_line(simulated("--controller", "spot", "-s", setting)))
    snapshot("\n".join(lines))


def test_prices_decide_for_the_controller_that_goes_by_them(simulated, tmp_path):
    path = tmp_path / "prices.csv"
    lines = [f"{NEW_YEAR_S + 3600 * n:.0f},{1 + n % 24 // 12}" for n in range(24 * DAYS)]
    path.write_text("\n".join(["time,price", *lines, ""]))
    setting = f"carbon.control.spot_prices={path}"
    code, out, _ = simulated("--controller", "spot", "--slack", 3, "-s", setting)
    assert code == 0
    assert int(row(out.split("\n\n")[2], "spot")[4]) > 1


@pytest.mark.parametrize(("feeds", "is_read"), [
    ('[[carbon.feeds]]\ntype = "electricity_maps"\nzone = "PY"\nscope = "direct"\n', True),
    ('[[carbon.feeds]]\ntype = "uk"\n'
     '[[carbon.feeds]]\ntype = "replay"\npath = "x.csv"\nscope = "direct"\n', True),
    ('[[carbon.feeds]]\ntype = "electricity_maps"\nzone = "PY"\nscope = "direct"\n'
     '[[carbon.feeds]]\ntype = "replay"\npath = "x.csv"\nscope = "life_cycle"\n', False),
    ("", False),
])  # fmt: skip
@pytest.mark.parametrize("args", [
    ["plan", "--tokens", 6.9e9, "--trace"], ["simulate", "--controller", "race", "--traces"],
])  # fmt: skip
def test_a_recording_of_chimneys_is_read_by_the_scope_of_the_config(
    command, tmp_path, feeds, is_read, args
):
    trace, config = write(tmp_path, two(hours(low=0.0, high=40.0))), tmp_path / "run.toml"
    trace.write_text(trace.read_text().replace("40.0", "0.0", 24 * DAYS // 3))
    config.write_text(feeds)
    outcome = command(*args, trace, "-c", config, "--start", START, "--days", 3)
    if is_read:
        assert outcome[0] == 0
    else:
        assert 'scope = "direct"' in the_line(outcome)


def test_a_recording_is_needed(command):
    assert the_line(command("simulate")).startswith("--traces = (not given)")


@pytest.mark.skipif("ECORL_TRACES" not in os.environ, reason="ECORL_TRACES names no folder")
def test_a_real_year_saves_on_static_fp8(command):
    path = next(iter(sorted(Path(os.environ["ECORL_TRACES"]).glob("CISO*.csv"))), None)
    if path is None:
        pytest.skip("no recording of California in ECORL_TRACES")
    began_s = time.perf_counter()
    found = json.loads(command("simulate", "--traces", path, "--json")[1])
    assert time.perf_counter() - began_s < 30.0
    best = next(one for one in found["controllers"] if one["name"] == "stochastic")
    assert best["saving_low"] > 0.1
    assert best["deficit"] == 0.0
    assert best["regret"] is None or best["regret"] < 0.05


# ------------------------------------------------------------------------------------------ profile


@pytest.fixture
def run(tmp_path):
    """A run whose training stage was executed in two gears and widths."""

    def make(rows):
        folder = tmp_path / "run"
        folder.mkdir()
        with Ledger.create(
            folder / LEDGER_FILE, run_id="r-1", config_toml="seed = 1\n", meta={}
        ) as ledger:
            for one in rows:
                ledger.result(one.result)
        return folder

    return make


def steps(gear, width, power_w, n_tokens, first, n=3):
    return [execution(first + k, gear, width, power_w=power_w, n_tokens=n_tokens) for k in range(n)]


def test_a_profile_is_told_and_written_as_a_table(command, run, tmp_path, snapshot):
    rows = [*steps("BF16", 1, 700.0, 1000, 1), *steps("BF16", 2, 1390.0, 1900, 11)]
    rows += [*steps("FP8", 1, 710.0, 1200, 21), *steps("FP8", 2, 1400.0, 2300, 31)]
    rows += [execution(41, gear=None, width=None), execution(42, "FP8", 2, power_w=None)]
    folder, out_file = run(rows), tmp_path / "table.toml"
    code, out, err = command("profile", folder, "--out", out_file)
    assert (code, err) == (0, "")
    snapshot(out)
    found = read_table(out_file)
    assert found.power_w.tolist() == [[700.0, 1390.0], [710.0, 1400.0]]
    assert (found.widths, str(found.provenance)) == ((1, 2), "measured")
    data = json.loads(command("profile", folder, "--json")[1])
    assert [one["n"] for one in data["readings"]] == [2, 2, 2, 2]
    assert data["readings"][-1]["tokens_per_s"] == pytest.approx(230.0)
    assert sorted(data["left_out"].values()) == [1, 1, 4]


def test_a_profile_feeds_a_plan(command, run, tmp_path, trace):
    rows = [*steps("BF16", 1, 700.0, 100_000, 1), *steps("BF16", 2, 1390.0, 190_000, 11)]
    out_file = tmp_path / "table.toml"
    command("profile", run(rows), "--out", out_file)
    args = ("--trace", trace, "--days", 3, "--tokens", 1.5e9, "--table", out_file, "--json")
    code, out, _ = command("plan", *args)
    assert code == 0
    table = json.loads(out)["table"]
    assert (table["provenance"], table["gears"], table["widths"]) == ("measured", ["BF16"], [1, 2])
    assert str(tmp_path / "run") in table["source"]


def test_a_profile_that_falls_with_the_width_writes_nothing(command, run, tmp_path):
    rows = [*steps("BF16", 1, 700.0, 1000, 1), *steps("BF16", 2, 600.0, 1900, 11)]
    found = the_line(command("profile", run(rows), "--out", tmp_path / "table.toml"))
    assert found.startswith("carbon.control.table.power_w.BF16 = 600.0")
    assert not (tmp_path / "table.toml").exists()


def test_what_nobody_tells_of_a_run_may_be_said(command, run, snapshot):
    rows = [execution(n, gear=None, width=None) for n in range(3)]
    folder = run(rows)
    snapshot(the_line(command("profile", folder)))
    code, out, _ = command("profile", folder, "--gear", "BF16", "--width", 1)
    assert code == 0
    assert row(out, "BF16")[:2] == ["1", "700 ± 0"]
    assert "told no gear" not in out


def test_a_folder_without_a_run_is_one_line(command, tmp_path):
    assert str(tmp_path) in the_line(command("profile", tmp_path))
    assert "--gear" in the_line(command("profile", tmp_path, "--gear", "INT4"))


@pytest.mark.parametrize("name", ["plan", "simulate", "profile"])
def test_help_tells_the_options(command, name):
    code, out, _ = command(name, "--help")
    assert code == 0
    assert "--json" in out

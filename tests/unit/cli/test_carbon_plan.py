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


def test_a_plan_says_when_to_train_and_what_it_is_worth(planned):
    code, out, err = planned()
    assert (code, err) == (0, "")
    head = out.splitlines()
    assert head[0] == (
        "Grid: X, recorded in X_2022.csv (replayed), 10 days of it; the time ahead is modelled "
        "from that."
    )
    assert head[1].startswith("Training stage: 2 to 8 workers in BF16 and FP8 (modelled): ")
    assert head[2].startswith(
        "To train: 6.90 billion tokens from Tue 11 Jan 2022 00:00 until Fri 14 Jan 2022 00:00 "
        "(UTC): 3 d, 2.99 times"
    )
    assert "What follows is modelled." in head[2]
    assert re.search(r"^Tue 11 Jan 08:00 +8 h +8 +FP8 +100 ", out, re.M)
    assert row(out, "static FP8 at once")[1].endswith(" %")
    assert re.search(r"the earliest +1\.00 +0\.0 %", out)
    assert re.search(r"this plan +2\.99 ", out)
    assert "A million tokens less would save " in out
    assert "Each hour more until the deadline, up to a day, would " in out
    assert "played on 8 courses of the grid, drawn around the expected one" in out
    assert "(carbon.control.idle_w = 0)" in out
    assert re.match(
        r"Train in the times above \(\d+ % of the tokens from .*\), from Tue 11 Jan 08:00 on, done "
        r"Thu 13 Jan \d\d:\d\d: that is expected to emit 7\d\.\d % or .* less than static FP8 at "
        r"once, which is done Wed 12 Jan 00:0\d \(modelled; in 90 % of cases it is .* times in "
        r"UTC\)\.$",
        last(out),
    )


def test_a_plan_as_data_has_all_spans_and_no_nan(planned):
    code, out, _ = planned("--json")
    found = json.loads(out)
    assert code == 0
    assert found["provenance"] == "modelled"
    assert found["grid"]["provenance"] == "replayed"
    assert sum(span["tokens"] for span in found["spans"]) == pytest.approx(6.9e9)
    assert {span["gear"] for span in found["spans"]} == {"FP8"}
    assert found["expected"]["saving_on_static_fp8"] > 0.7
    assert found["intervals"]["n_courses"] == len(found["courses"]) == 8
    assert [one["slack"] for one in found["deadlines"]][:3] == [1.0, 1.25, 1.67]
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
    _, out, _ = command("plan", "--trace", trace, "--days", 2, "--tokens", 2e9)
    assert "from Fri 21 Jan 2022 00:00 until Sun 23 Jan 2022 00:00 (UTC)" in out


def test_a_picture_is_written(planned, tmp_path):
    path = tmp_path / "folder" / "plan.png"
    code, out, _ = planned("--plot", path)
    assert code == 0
    assert last(out) == f"picture: {path}"
    assert path.read_bytes().startswith(PNG)


def test_a_long_schedule_is_cut_with_a_word_of_the_rest(command, trace):
    args = ("plan", "--trace", trace, "--start", START, "--days", 12, "--tokens", 4e10)
    _, out, _ = command(*args)
    rows = re.findall(r"^(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) .* FP8 ", out, re.M)
    assert len(rows) == MOST_ROWS
    found = re.search(r"^\.\.\. and (\d+) more until ", out, re.M)
    data = json.loads(command(*args, "--json")[1])
    assert len(data["spans"]) == MOST_ROWS + int(found[1])


def test_other_zones_are_told_beside_utc(planned, monkeypatch):
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    _, out, _ = planned()
    assert re.search(r"^from \(UTC\+09:00\) +UTC +length", out, re.M)
    assert re.search(r"^Tue 11 Jan 17:00 +Tue 11 Jan 08:00 ", out, re.M)
    assert last(out).endswith("times in UTC+09:00).")


@pytest.mark.parametrize(
    ("low", "high", "begin"),
    [(300.0, 300.0, "Waiting is worth nothing here: "), (290.0, 300.0, "The saving is small: ")],
)
def test_a_plan_says_so_where_it_is_not_worth_it(command, tmp_path, low, high, begin):
    path = write(tmp_path, two(hours(10, low, high)))
    # With fewer workers the modelled table trains more of a joule: that is left out here.
    args = ("--days", 3, "--tokens", 6.9e9, "--scaling", 1)
    _, out, _ = command("plan", "--trace", path, *args)
    assert last(out).startswith(begin)
    assert "static FP8 at once" in last(out)


def test_a_table_without_fp8_is_held_against_bf16(planned):
    code, out, _ = planned("--gpu", "a100_sxm", "--tokens", 2e9)
    assert code == 0
    assert "FP8" not in out.partition("\n\n")[2]
    assert "less than static BF16 at once" in last(out)


def test_few_days_of_the_past_are_told(command, tmp_path):
    path = write(tmp_path, two(hours(3)))
    _, out, _ = command("plan", "--trace", path, "--days", 1, "--tokens", 1e9)
    assert "Only 3 days of the grid's past are known" in out


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (["--tokens", 9e12], r"carbon\.control\.tokens = 9.*: allowed is at most .* by 2022-01-14 "
         r"00:00 UTC; these take until 20.* UTC, the earliest feasible deadline$"),
        (["--tokens", 0], r"carbon\.control\.tokens = 0"),
        (["--deadline", "2022-01-20"], r"--days = 3\.0: allowed is nothing beside --deadline"),
        (["--start", "2022-01-02"], r".*X_2022\.csv: 1 days of the grid's past are known"),
        (["--start", "2023-01-02"], r"--start = '2023-01-02 00:00': allowed is at most 2 days "
         r"after the recording's end, 2022-01-21 00:00 UTC"),
        (["--start", "soon"], r"--start = 'soon': allowed is a date"),
        (["--soft-deadline", "2022-01-13"], r"carbon\.control\.late_g_per_h = 0\.0"),
        (["--table", "nowhere.toml"], r"carbon\.control\.table = 'nowhere\.toml'"),
        (["--gpu", "u55c"], r"--gpu = 'u55c': allowed is the profile of a GPU"),
        (["--model", "9z"], r"model size = '9z'"),
        (["--workers", 1], r"--workers = 1: allowed is at least 2"),
        (["--fp8-gain", 99], r"--fp8-gain = 99"),
        (["--plot", "/"], r"--plot = '/': allowed is a file that can be written"),
        (["--config", "nowhere.toml"], r"--config = 'nowhere\.toml'"),
        (["-s", "carbon.control.low_share=2.0"], r".*carbon\.control\.low_share = 2"),
        (["--days", "x"], r"Invalid value for '--days'"),
        (["--what"], r"No such option: --what"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_and_writes_nothing(planned, tmp_path, args, line):
    before = set(tmp_path.rglob("*"))
    plot = [] if "--plot" in args else ["--plot", tmp_path / "plan.png"]
    found = the_line(planned(*plot, *args))
    assert re.match(line, found), found
    assert set(tmp_path.rglob("*")) == before


def test_what_has_to_be_said_is_asked_for(command, trace):
    found = the_line(command("plan", "--trace", trace, "--tokens", 1e9))
    assert found.startswith("carbon.control.deadline = (not given)")
    found = the_line(command("plan", "--trace", trace, "--days", 3))
    assert re.match(r"carbon\.control\.tokens = \(not given\): .*at most 2\.06\de\+10", found)
    found = the_line(command("plan", "--days", 3, "--tokens", 1e9))
    assert found.startswith("carbon.feeds = (not given)")
    found = the_line(command("plan", "--trace", "none.csv", "--days", 3, "--tokens", 1e9))
    assert found.startswith("--trace = 'none.csv'")
    early = ("plan", "--trace", trace, "--deadline", "2022-01-03", "--tokens", 1e9)
    assert the_line(command(*early)).startswith("--deadline = '2022-01-03T00:00:00Z'")


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
    code, out, _ = command("plan", "--config", config, "--trace", trace)
    assert code == 0
    assert "1 to 2 workers in BF16 (measured): by hand." in out
    assert ", 2 times the least time that they take; PUE 1.5" in out
    assert "idle_w = 0" not in out
    found = the_line(command("plan", "-c", config, "--trace", trace, "--workers", 4))
    assert found.startswith("--workers = 4: allowed is nothing beside the table")


def test_a_plan_of_feeds_goes_by_what_they_told(command, tmp_path, trace):
    config = tmp_path / "run.toml"
    config.write_text(
        f'[[carbon.feeds]]\ntype = "replay"\npath = "{trace}"\nstarts_at = 2022-01-13T00:00:00Z\n'
    )
    code, out, err = command("plan", "--config", config, "--days", 3, "--tokens", 6.9e9)
    assert (code, err) == (0, "")
    assert out.startswith("Grid: recorded in X_2022.csv (replayed), 12 days of it")
    assert "less than static FP8 at once" in last(out)
    config.write_text(f'[[carbon.feeds]]\ntype = "replay"\npath = "{trace}"\n')
    code, out, err = command("plan", "--config", config, "--days", 3, "--tokens", 6.9e9)
    assert (code, out) == (1, "")
    assert "days of the grid's past are known, and a plan takes 2 at least" in err
    assert len(err.splitlines()) == 1
    config.write_text(
        '[[carbon.feeds]]\ntype = "constant"\ng_per_kwh = 300.0\nsource = "a data sheet"\n'
    )
    code, out, err = command("plan", "--config", config, "--days", 3, "--tokens", 6.9e9)
    assert (code, out) == (1, "")
    assert "there is nothing to plan but the gear" in err


# ----------------------------------------------------------------------------------------- simulate


def test_a_simulation_tells_savings_and_the_distance_to_the_bound(simulated):
    pytest.importorskip("scipy")
    code, out, err = simulated("--slack", 3)
    assert (code, err) == (0, "")
    assert out.startswith(
        "X, recorded in X_2022.csv (replayed); 6.88 billion tokens in 3 d, slack 3"
    )
    assert "Controllers know the past alone. All emissions are modelled, with a PUE of 1.2." in out
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
    assert re.match(
        r"stochastic emits \d+\.\d % less than static FP8 and \d+\.\d % less than static BF16; "
        r"that is \d\.\d % above what nobody can reach below \(modelled\)\.$",
        last(out),
    )


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
    assert "The bound is missing: the bound takes SciPy" in out
    assert "LP bound" not in out


def test_forecasts_may_be_told(simulated):
    plain = json.loads(simulated("--json", "--controller", "carbonscaler")[1])
    told = json.loads(
        simulated("--json", "--controller", "carbonscaler", "--forecast", "archived")[1]
    )
    assert (plain["forecast"], told["forecast"]) == ("none", "archived")
    assert plain["controllers"] != told["controllers"]


def test_holes_are_told_and_long_ones_refused(command, tmp_path):
    values = hours()
    numbers = [n for n in range(len(values)) if n not in (250, 251)]
    path = write(tmp_path, two([values[n] for n in numbers], numbers=numbers))
    args = ("--start", START, "--days", 3, "--controller", "race")
    _, out, _ = command("simulate", "--traces", path, *args)
    assert "2 values are missing in the recording: holes of up to 6 h go on as the hour" in out
    numbers = [n for n in range(len(values)) if not 250 <= n < 299]
    path = write(tmp_path, two([values[n] for n in numbers], numbers=numbers))
    found = the_line(command("simulate", "--traces", path, *args))
    assert found.startswith("carbon.control.trace = ")


def test_a_static_training_that_is_too_late_is_told(simulated):
    _, out, _ = simulated("--slack", 1, "--controller", "race")
    assert "static BF16 is done after the deadline, which it cannot keep." in out


def test_a_recording_of_the_config_is_played(command, tmp_path, trace):
    config = tmp_path / "run.toml"
    config.write_text(f'[[carbon.feeds]]\ntype = "replay"\npath = "{trace}"\n')
    code, out, _ = command("simulate", "-c", config, "--days", 3, "--controller", "race")
    assert code == 0
    assert out.startswith("X, recorded in X_2022.csv")


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (["--controller", "nobody"], r"carbon\.control\.controller = 'nobody': allowed is one of "),
        (["--tokens", 9e14], r"carbon\.control\.tokens = 9.*the earliest feasible deadline$"),
        (["--tokens", 1e18], r"carbon\.control\.tokens = 1e\+18"),
        (["--days", 21], r"carbon\.control\.deadline = '21 days on': allowed is at most 20 days"),
        (["--days", 12], r"--start = '2022-01-11 00:00': allowed is a time from "),
        (["--slack", 0.9], r"Invalid value for '--slack'"),
        (["--slack", 2, "--tokens", 1e9], r"--slack = 2\.0: allowed is nothing beside --tokens"),
        (["--deadline", "2022-01-13"], r"--days = 3\.0: allowed is nothing beside --deadline"),
        (["--controller", "spot"], r"carbon\.control\.spot_prices = \(not given\)"),
        (["--forecast", "sure"], r"Invalid value for '--forecast'"),
        (["-s", "carbon.control.epoch_s=700.0"], r"carbon\.control\.epoch_s = 700\.0"),
        (["--traces", "none.csv"], r"--traces = 'none\.csv'"),
        (["--csv", "/"], r"--csv = '/'"),
    ],
)
def test_a_mistake_in_a_simulation_is_one_line_and_writes_nothing(simulated, tmp_path, args, line):
    before = set(tmp_path.rglob("*"))
    files = ["--plot", tmp_path / "sim.png"]
    files += [] if "--csv" in args else ["--csv", tmp_path / "rows.csv"]
    found = the_line(simulated(*files, *args))
    assert re.match(line, found), found
    assert set(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        ("2022-01-11T00:00Z,2\n2022-01-11T01:00Z,-3\n", r".*prices\.csv:3: price = '-3'"),
        ("2022-02-11T00:00Z,2\n2022-02-11T01:00Z,3\n", r".*allowed is prices of the time from "),
    ],
)
def test_prices_that_cannot_be_used_name_their_key(simulated, tmp_path, rows, line):
    path = tmp_path / "prices.csv"
    path.write_text(f"time,price\n{rows}")
    setting = f"carbon.control.spot_prices={path}"
    found = the_line(simulated("--controller", "spot", "-s", setting))
    assert found.startswith(f"carbon.control.spot_prices = '{path}': ")
    assert re.match(line, found)


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
        line = the_line(outcome)
        assert line.endswith('directly a grid may emit nothing: say scope = "direct"')


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


def test_a_profile_is_told_and_written_as_a_table(command, run, tmp_path):
    rows = [*steps("BF16", 1, 700.0, 1000, 1), *steps("BF16", 2, 1390.0, 1900, 11)]
    rows += [*steps("FP8", 1, 710.0, 1200, 21), *steps("FP8", 2, 1400.0, 2300, 31)]
    rows += [execution(41, gear=None, width=None), execution(42, "FP8", 2, power_w=None)]
    folder, out_file = run(rows), tmp_path / "table.toml"
    code, out, err = command("profile", folder, "--out", out_file)
    assert (code, err) == (0, "")
    assert "of run r-1 in " in out
    assert re.search(r"^FP8 +2 +1,400 ± 0 +230 ± 0 +6\.09 +2 +measured$", out, re.M)
    assert "Left out: 4 that came first after a begin or a change; 1 that told no gear" in out
    assert "1 that told no energy" in out
    assert last(out) == f"table: {out_file}"
    found = read_table(out_file)
    assert found.power_w.tolist() == [[700.0, 1390.0], [710.0, 1400.0]]
    assert (found.widths, str(found.provenance)) == ((1, 2), "measured")
    data = json.loads(command("profile", folder, "--json")[1])
    assert [one["n"] for one in data["readings"]] == [2, 2, 2, 2]


def test_a_profile_feeds_a_plan(command, run, tmp_path, trace):
    rows = [*steps("BF16", 1, 700.0, 100_000, 1), *steps("BF16", 2, 1390.0, 190_000, 11)]
    out_file = tmp_path / "table.toml"
    command("profile", run(rows), "--out", out_file)
    args = ("--trace", trace, "--days", 3, "--tokens", 1.5e9, "--table", out_file)
    code, out, _ = command("plan", *args)
    assert code == 0
    assert "1 to 2 workers in BF16 (measured): run r-1 in " in out


def test_a_profile_that_falls_with_the_width_writes_nothing(command, run, tmp_path):
    rows = [*steps("BF16", 1, 700.0, 1000, 1), *steps("BF16", 2, 600.0, 1900, 11)]
    found = the_line(command("profile", run(rows), "--out", tmp_path / "table.toml"))
    assert found.startswith("carbon.control.table.power_w.BF16 = 600.0")
    assert not (tmp_path / "table.toml").exists()


def test_what_nobody_tells_of_a_run_may_be_said(command, run, tmp_path):
    rows = [execution(n, gear=None, width=None) for n in range(3)]
    folder = run(rows)
    found = the_line(command("profile", folder))
    assert found.endswith("can be used: 3 that told no gear and no width")
    code, out, _ = command("profile", folder, "--gear", "BF16", "--width", 1)
    assert code == 0
    assert re.search(r"^BF16 +1 +700 ± 0 ", out, re.M)
    assert "told no gear" not in out


def test_a_folder_without_a_run_is_one_line(command, tmp_path):
    assert str(tmp_path) in the_line(command("profile", tmp_path))
    assert "--gear" in the_line(command("profile", tmp_path, "--gear", "INT4"))


@pytest.mark.parametrize("name", ["plan", "simulate", "profile"])
def test_help_tells_the_options(command, name):
    code, out, _ = command(name, "--help")
    assert code == 0
    assert "--json" in out

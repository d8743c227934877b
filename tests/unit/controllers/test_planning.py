"""Tables of a training, the grid ahead, comparisons along a recording, and plans."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from ecorl.carbon.forecasts.forecast import Forecast
from ecorl.carbon.series import Series
from ecorl.carbon.traces.reading import read_trace
from ecorl.config import parse_config
from ecorl.control import Gear
from ecorl.controllers.planning import comparison
from ecorl.controllers.planning.baselines import raced, saving, static_training
from ecorl.controllers.planning.comparison import RecordedGrid, compared, start_times
from ecorl.controllers.planning.courses import grid_ahead
from ecorl.controllers.planning.history import (
    GridPast,
    bridged,
    past_of_trace,
)
from ecorl.controllers.planning.measured import training_profile
from ecorl.controllers.planning.modelled import (
    least_width,
    modelled_table,
    offered_gears,
    offered_widths,
)
from ecorl.controllers.planning.plan import (
    carbon_plan,
    daily_hours,
    epoch_of,
    n_plays,
    saved_of_high,
    saved_of_low,
)
from ecorl.controllers.planning.problems import budget_at, slack_of, training_problem
from ecorl.controllers.planning.tables import read_table, write_table
from ecorl.controllers.problem.table import TrainingAction
from ecorl.controllers.problem.training import Kept, TrainingProblem
from ecorl.devices.llama import model_shape
from ecorl.devices.profile import load_profile
from ecorl.errors import ConfigError, DataError, MissingToolError, RunError
from ecorl.grid import Gas
from ecorl.kinds import Provenance, Stage
from ecorl.ledger import ExecutionRow, FaultRow, MetricRow
from ecorl.records import Action, EnergyMethod, StageEnergy, StageResult
from tests.fakes.recordings import two, write
from tests.fakes.training_problems import DAY_S, table

HOUR_S = 3600.0
BEGIN_S = 19_000 * DAY_S
DEFAULTS = parse_config("", "the defaults")
H100, LLAMA = load_profile("h100_sxm"), model_shape("8b")


def day(days, low=100.0, high=500.0, begin_s=BEGIN_S):
    """A grid that is clean from 8 to 16 o'clock and dirty otherwise."""
    hours = np.arange(round(24 * days)) % 24
    return Series(begin_s, HOUR_S, np.where((hours >= 8) & (hours < 16), low, high))


def past_of(series):
    return GridPast("made up", Provenance.MODELLED, Gas.CO2E, series)


def problem(days=3.0, start_s=BEGIN_S + 10 * DAY_S, slack=3.0, **terms):
    of = terms.pop("of", None) or table()
    most = days * DAY_S * float(of.tokens_per_s.max())
    terms = {"epoch_s": HOUR_S, **terms}
    return TrainingProblem(of, most / slack, start_s, start_s + days * DAY_S, **terms)


# ------------------------------------------------------------------------------------------ tables

TEXT = """
provenance = "measured"
source = "by hand"
widths = [1, 2]
[power_w]
BF16 = [700, 1390.0]
FP8 = [710.0, 1400.0]
[tokens_per_s]
BF16 = [10.0, 19.0]
FP8 = [12.0, 23.0]
"""


def test_a_table_comes_back_as_it_was_written(tmp_path):
    path = tmp_path / "table.toml"
    of = replace(table(), power_spread_w=np.full((2, 4), 3.0), source='a "run"\nof mine')
    write_table(of, path, dict.fromkeys(of.actions(), 5))
    found = read_table(path)
    assert (found.gears, found.widths, found.provenance) == (of.gears, of.widths, of.provenance)
    assert np.array_equal(found.power_w, of.power_w)
    assert np.array_equal(found.tokens_per_s, of.tokens_per_s)
    assert np.array_equal(found.power_spread_w, of.power_spread_w)
    assert found.tokens_spread_per_s is None
    assert found.source == 'a "run" of mine'


def test_a_spread_that_is_unknown_stays_unknown(tmp_path):
    path = tmp_path / "table.toml"
    spread = np.full((2, 4), np.nan)
    write_table(replace(table(), tokens_spread_per_s=spread), path)
    assert np.isnan(read_table(path).tokens_spread_per_s).all()


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ('provenance = "measured"', 'provenance = "guessed"', "provenance"),
        ('source = "by hand"', 'source = " "', "source"),
        ("widths = [1, 2]", "widths = [1, 2.0]", "widths"),
        ("widths = [1, 2]", "widths = [2, 1]", "widths"),
        ("widths = [1, 2]", "widths = [1, 2, 3]", "power_w.BF16"),
        ("[700, 1390.0]", "[700, 650.0]", "power_w.BF16"),
        ("[700, 1390.0]", "[700, nan]", "power_w.BF16"),
        ("[700, 1390.0]", "[700, true]", "power_w.BF16"),
        ("[700, 1390.0]", "[0, 1390.0]", "power_w.BF16"),
        ("[12.0, 23.0]", "[12.0]", "tokens_per_s.FP8"),
        ("[12.0, 23.0]", "[23.0, 12.0]", "tokens_per_s.FP8"),
        ("FP8 = [12.0, 23.0]", "", "tokens_per_s.FP8"),
        ("FP8 = [710.0, 1400.0]", "INT4 = [710.0, 1400.0]", "power_w.INT4"),
        ("FP8 = [710.0, 1400.0]", "", "tokens_per_s.FP8"),
        ("[tokens_per_s]", "[tokens]", "tokens"),
        ("[power_w]", "power_w = 3\n[x]", "x"),
    ],
)
def test_a_mistake_in_a_table_names_file_and_key(tmp_path, old, new, key):
    path = tmp_path / "table.toml"
    assert old in TEXT
    path.write_text(TEXT.replace(old, new))
    with pytest.raises(ConfigError) as caught:
        read_table(path)
    assert str(caught.value).startswith(f"{path}: {key} = ")
    assert "\n" not in str(caught.value)


def test_a_table_that_is_none_names_the_key_of_the_config(tmp_path):
    with pytest.raises(ConfigError, match=r"carbon\.control\.table = "):
        read_table(tmp_path / "nowhere.toml")
    path = tmp_path / "table.toml"
    path.write_text("widths = [1,")
    with pytest.raises(ConfigError, match=r"carbon\.control\.table = 'table\.toml'.*TOML"):
        read_table(path)


def test_a_modelled_table_says_so_and_gains_by_fp8():
    of = modelled_table(H100, (Gear.BF16, Gear.FP8), (2, 4, 8), model=LLAMA)
    assert of.provenance is Provenance.MODELLED
    assert "assumed" in of.source
    assert of.tokens_per_s[1] / of.tokens_per_s[0] == pytest.approx(1.25)
    assert of.tokens_per_s[0, 2] / of.tokens_per_s[0, 0] == pytest.approx(4**0.97)
    assert of.power_w[0] == pytest.approx(of.power_w[1])
    # 40 % of the peak, and six operations a parameter and token.
    ops_per_s = 0.4 * H100.value("peak_bf16_flops")
    assert of.tokens_per_s[0, 0] / 2**0.97 == pytest.approx(
        ops_per_s / 6 / LLAMA.n_params_active, rel=0.1
    )
    assert of.power_w[0, 0] == pytest.approx(2 * H100.value("active_w"), rel=0.01)
    slower = modelled_table(H100, (Gear.FP8,), (8,), model=LLAMA, fp8_gain=1.1, exponent=0.9)
    assert slower.tokens_per_s[0, 0] < of.tokens_per_s[1, 2]


def test_modelled_widths_hold_the_training():
    assert least_width(H100, LLAMA) == 2
    assert offered_widths(H100, 8, LLAMA) == (2, 3, 4, 5, 6, 7, 8)
    assert offered_widths(H100, 512, LLAMA) == tuple(range(64, 513, 64))
    assert offered_widths(H100, 3, model_shape("1b")) == (1, 2, 3)
    with pytest.raises(ConfigError, match=r"--workers = 1: .*\b2:"):
        offered_widths(H100, 1, LLAMA)
    assert offered_gears(load_profile("a100_sxm")) == (Gear.BF16,)


@pytest.mark.parametrize(
    ("terms", "key"),
    [
        ({"fp8_gain": math.nan}, "--fp8-gain"),
        ({"fp8_gain": 0.0}, "--fp8-gain"),
        ({"exponent": 1.1}, "--scaling"),
        ({"exponent": 0.0}, "--scaling"),
        ({"profile": load_profile("u55c")}, "--gpu"),
        ({"profile": load_profile("a100_sxm")}, "gears"),
    ],
)
def test_what_cannot_be_modelled_is_refused(terms, key):
    profile = terms.pop("profile", H100)
    with pytest.raises(ConfigError) as caught:
        modelled_table(profile, (Gear.BF16, Gear.FP8), (8,), model=LLAMA, **terms)
    assert caught.value.key == key


# ---------------------------------------------------------------------------------------- measured


def execution(number, gear="BF16", width=1, power_w=700.0, time_s=10.0, n_tokens=1000, **more):
    """One execution of the training stage, of ten seconds."""
    start_s = 100.0 * number
    energy = None
    if power_w is not None:
        energy = StageEnergy(
            ("gpu0",), start_s, start_s + time_s, power_w * time_s, power_w, power_w * time_s, None,
            50, 1.0, EnergyMethod.COUNTER, Provenance.MEASURED,
        )  # fmt: skip
    fields = {
        "iteration": number, "stage": Stage.ACTOR_TRAIN, "action": Action.GPU,
        "device_ids": ("gpu0",), "device": "h100_sxm", "t_start_s": start_s,
        "t_end_s": start_s + time_s, "time_s": time_s, "time_provenance": Provenance.MEASURED,
        "host_time_s": time_s, "wait_s": 0.0, "n_sequences": 8, "n_tokens": n_tokens,
        "n_output_tokens": n_tokens, "energy": energy, "gear": gear, "width": width,
    }  # fmt: skip
    return ExecutionRow(more.pop("attempt", 1), more.pop("superseded", False),
                        StageResult(**(fields | more)))  # fmt: skip


def test_readings_are_means_with_their_spread(snapshot):
    rows = [execution(1, power_w=690.0), execution(2, power_w=710.0, n_tokens=1200)]
    rows += [execution(3, "FP8", 2, power_w=1400.0, n_tokens=2600)]
    found = training_profile(rows, "run a")
    first, second = found.readings
    assert (first.action, first.n) == (TrainingAction(1, Gear.BF16), 2)
    assert first.power_w == pytest.approx(700.0)
    assert first.tokens_per_s == pytest.approx(110.0)
    assert first.power_spread_w == pytest.approx(200**0.5)
    assert first.tokens_spread_per_s == pytest.approx(200**0.5)
    assert first.j_per_token == pytest.approx(14_000 / 2200)
    assert (second.n, second.power_spread_w, second.tokens_spread_per_s) == (1, None, None)
    snapshot(found.source)
    assert found.left_out == {}


def test_a_table_has_the_widths_that_each_gear_was_run_with():
    rows = [execution(n, gear, width, power_w=700.0 * width, n_tokens=1000 * width)
            for n, (gear, width) in enumerate(
                [("BF16", 1), ("BF16", 2), ("BF16", 4), ("FP8", 2), ("FP8", 4)])]  # fmt: skip
    found = training_profile(rows, "run a")
    of = found.table()
    assert (of.gears, of.widths) == ((Gear.BF16, Gear.FP8), (2, 4))
    assert of.power_w.tolist() == [[1400.0, 2800.0], [1400.0, 2800.0]]
    assert of.provenance is Provenance.MEASURED
    assert np.isnan(of.power_spread_w).all()
    assert found.counts[TrainingAction(1, Gear.BF16)] == 1
    with pytest.raises(RunError, match="run a"):
        training_profile([rows[0], rows[3]], "run a").table()


def test_a_profile_that_falls_with_the_width_is_refused():
    rows = [execution(1, width=1), execution(2, width=2, power_w=600.0, n_tokens=2000)]
    with pytest.raises(ConfigError, match=r"carbon\.control\.table\.power_w\.BF16"):
        training_profile(rows, "run a").table()


def test_missing_energy_is_missing_and_never_nothing(snapshot):
    rows = [
        execution(1), execution(2, power_w=None), execution(3, power_w=0.0),
        execution(4, n_tokens=0), execution(5, time_s=10.0, fault="engine_failure"),
        execution(6, superseded=True), execution(7, stage=Stage.GENERATION),
        execution(8, gear="INT4"),
    ]  # fmt: skip
    found = training_profile(rows, "run a")
    (reading,) = found.readings
    assert (reading.n, reading.power_w) == (1, pytest.approx(700.0))
    assert list(found.left_out.values()) == [2, 1, 1, 1]
    snapshot("\n".join(found.left_out))


def test_executions_without_gear_or_width_count_only_by_what_is_said_of_them(snapshot):
    rows = [execution(1, gear=None, width=None), execution(2, gear=None), execution(3)]
    found = training_profile(rows, "run a")
    assert [reading.n for reading in found.readings] == [1]
    half = training_profile(rows, "run a", own=TrainingAction(0, Gear.FP8))
    assert {r.action.gear: r.n for r in half.readings} == {Gear.BF16: 1, Gear.FP8: 1}
    snapshot(f"{found.left_out}\n{half.left_out}")
    whole = training_profile(rows, "run a", own=TrainingAction(1, Gear.BF16))
    assert [reading.n for reading in whole.readings] == [3]


def test_what_follows_a_change_may_be_left_out(snapshot):
    rows = [execution(n, gear) for n, gear in enumerate(["BF16"] * 3 + ["FP8"] * 3 + ["BF16"] * 2)]
    rows += [execution(9, attempt=2), execution(10, attempt=2)]
    found = training_profile(rows, "run a", skip=1)
    assert {r.action.gear: r.n for r in found.readings} == {Gear.BF16: 4, Gear.FP8: 2}
    snapshot(str(found.left_out))


def fault(iteration, kind="GearOverflow", attempt=1):
    return FaultRow(
        iteration, kind, "actor_train", "", attempt=attempt, superseded=False, t_s=100.0 * iteration
    )


def test_a_simulated_gear_is_never_priced(snapshot):
    rows = [execution(n) for n in range(3)]
    rows += [execution(n, "FP8 simulated", power_w=100.0, n_tokens=9000) for n in range(3, 6)]
    found = training_profile(rows, "run a")
    assert {r.action.gear: r.n for r in found.readings} == {Gear.BF16: 3}
    snapshot(str(found.left_out))
    assert found.table().gears == (Gear.BF16,)
    # What is said of executions that tell no gear does not make one of a simulated one.
    assert training_profile(rows[3:], "run a", own=TrainingAction(1, Gear.FP8)).readings == ()


def test_the_first_execution_after_a_simulated_gear_came_after_a_change(snapshot):
    rows = [execution(n, gear) for n, gear in
            enumerate(["BF16", "BF16", "FP8 simulated", "BF16", "BF16"])]  # fmt: skip
    found = training_profile(rows, "run a", skip=1)
    assert [r.n for r in found.readings] == [2]
    snapshot(str(found.left_out))


def test_steps_that_overflowed_tell_nothing_of_a_gear(snapshot):
    rows = [execution(n, gear) for n, gear in enumerate(["FP8", "FP8", "BF16", "FP8", "BF16"])]
    # Of step 1 the first micro-batch is recorded in the gear that it overflowed in.
    rows.insert(2, execution(1.5, "BF16", iteration=1, power_w=5000.0))
    faults = [fault(1), fault(3, "GearBarred"), fault(4, attempt=2)]
    found = training_profile(rows, "run a", faults=faults)
    assert {r.action.gear: (r.n, r.power_w) for r in found.readings} == {
        Gear.BF16: (2, pytest.approx(700.0)), Gear.FP8: (2, pytest.approx(700.0)),
    }  # fmt: skip
    snapshot(str(found.left_out))


def test_measurements_of_the_gears_are_no_training(snapshot):
    def measurement(at):
        return execution(at, None, None, n_tokens=0, power_w=5000.0)

    rows = [execution(1, "FP8"), execution(2), measurement(2.5), execution(3), execution(4)]
    for own in (TrainingAction(0, None), TrainingAction(1, Gear.FP8)):
        found = training_profile(rows, "run a", own=own, skip=1)
        # It stands between two steps of one gear, and is no change between them.
        assert {r.action.gear: r.n for r in found.readings} == {Gear.BF16: 2}
        snapshot(str(found.left_out), f"in {own.gear}")


def test_forward_passes_for_old_log_probs_are_no_training(snapshot):
    def forward(at):
        return execution(at, None, n_tokens=9000, n_output_tokens=0, power_w=100.0)

    own = TrainingAction(1, Gear.FP8)
    rows = [execution(1, "FP8"), execution(2), forward(2.5), execution(3), execution(4)]
    found = training_profile(rows, "run a", own=own, skip=1)
    # It stands between two steps of one gear, and is no change between them.
    assert {r.action.gear: (r.n, r.power_w) for r in found.readings} == {Gear.BF16: (2, 700.0)}
    snapshot(str(found.left_out))
    # So it is in a run without gears, of which the user tells in which it trained.
    rows = [execution(1, None), forward(1.5), execution(2, None)]
    found = training_profile(rows, "run a", own=own)
    assert [(r.n, r.power_w) for r in found.readings] == [(2, 700.0)]
    snapshot(str(found.left_out), "without gears")


def test_steps_in_which_the_gears_were_measured_tell_nothing_of_a_gear(snapshot):
    def metric(iteration, superseded=False, value=2.0):
        return MetricRow(1, superseded, iteration, "gear_measurement_s", value)

    apart = execution(1, None, None, n_tokens=0)
    rows = [apart, *(execution(n, power_w=900.0 if n == 2 else 700.0) for n in (1, 2, 3, 4))]
    metrics = [metric(1), metric(2), metric(3, superseded=True), metric(4, value=None)]
    found = training_profile(rows, "run a", metrics=metrics)
    assert [(r.n, r.power_w) for r in found.readings] == [(3, 700.0)]
    snapshot(str(found.left_out))


def test_power_is_that_of_the_workers_on_all_machines():
    rows = [execution(n, width=2, power_w=power_w, n_tokens=500, node=node,
                      device_ids=(f"{node}/gpu0",))
            for n in range(3) for node, power_w in (("a", 700.0), ("b", 600.0))]  # fmt: skip
    found = training_profile(rows, "run a")
    (reading,) = found.readings
    assert (reading.n, reading.action.width) == (3, 2)
    assert reading.power_w == pytest.approx(1300.0)
    assert reading.tokens_per_s == pytest.approx(100.0)


def test_an_execution_without_the_part_of_a_machine_is_left_out(snapshot):
    rows = [execution(n, width=2, node=node) for n in range(3) for node in ("a", "b")]
    found = training_profile(rows[:-1], "run a")
    assert [r.n for r in found.readings] == [2]
    snapshot(str(found.left_out))
    assert training_profile(rows, "run a", lost={1}).readings == ()
    unread = [*rows[:-1], execution(2, width=2, node="b", power_w=None)]
    snapshot(str(training_profile(unread, "run a").left_out), "without its energy")


def test_readings_have_the_weakest_provenance():
    rows = [execution(1), execution(2, time_provenance=Provenance.MODELLED)]
    assert training_profile(rows, "run a").readings[0].provenance is Provenance.MODELLED


# ------------------------------------------------------------------------------- the grid up to now


def test_a_recording_is_read_in_hours_until_now_alone(tmp_path):
    values = [300.0 + n % 24 for n in range(24 * 6)]
    trace = read_trace(write(tmp_path, two(values)))
    now_s = trace.series.start_s + 72 * HOUR_S
    past = past_of_trace(trace, now_s + 1800.0)
    assert past.hours.end_s == now_s
    assert past.hours.values.tolist() == values[:72]
    assert (past.provenance, past.known_days) == (Provenance.REPLAYED, 3.0)
    assert past.begin_s(now_s) == now_s
    assert past.begin_s(now_s + 1.0) == now_s + HOUR_S
    assert past.begin_s(now_s - 5 * HOUR_S) == now_s
    other = replace(trace, series=replace(trace.series, values=trace.series.values + 0.0))
    other.series.values[72:] = 9.0
    assert past_of_trace(other, now_s).hours.values.tolist() == past.hours.values.tolist()
    with pytest.raises(DataError, match=r"\b1 days .* 2\b"):
        past_of_trace(trace, trace.series.start_s + DAY_S)


def test_shorter_intervals_make_up_hours_and_others_are_refused(tmp_path):
    trace = read_trace(write(tmp_path, two([100.0] * 200)))
    halves = np.array([100.0, 200.0] * 100 + [math.nan, 50.0])
    half = replace(trace, series=Series(BEGIN_S, 1800.0, halves))
    past = past_of_trace(half, half.series.end_s)
    assert past.hours.step_s == HOUR_S
    assert past.hours.values.tolist() == [150.0] * 100 + [50.0]
    for step_s in (2700.0, 7200.0):
        odd = replace(trace, series=replace(trace.series, step_s=step_s))
        with pytest.raises(DataError, match=f"{step_s:g} s"):
            past_of_trace(odd, odd.series.end_s)


def test_holes_are_bridged_by_what_was_known_before_them():
    values = np.arange(100.0, 220.0)
    values[[0, 5, 6]] = np.nan
    values[40:50] = np.nan
    values[60:110] = np.nan
    found, n = bridged(Series(BEGIN_S, HOUR_S, values))
    assert n == 12
    assert found.values[4:8].tolist() == [104.0, 104.0, 104.0, 107.0]
    assert found.values[39:51].tolist() == [139.0, *np.arange(116.0, 126.0), 150.0]
    assert np.isnan(found.values[[0, *range(60, 110)]]).all()
    early = np.arange(100.0, 130.0)
    early[10:20] = np.nan
    assert bridged(Series(BEGIN_S, HOUR_S, early))[1] == 0
    whole = Series(BEGIN_S, HOUR_S, np.ones(4))
    assert bridged(whole) == (whole, 0)


# ------------------------------------------------------------------------------------------ courses


def test_the_expected_course_goes_on_with_the_days():
    series = day(20)
    ahead = grid_ahead(past_of(series), series.end_s, 48)
    assert ahead.middle == pytest.approx(day(2).values)
    course = ahead.course()
    assert (course.start_s, course.end_s) == (series.start_s, series.end_s + 2 * DAY_S)
    late = grid_ahead(past_of(series), series.end_s + 3 * HOUR_S, 24)
    joined = late.course(np.ones(24))
    assert np.isnan(joined.values[480:483]).all()
    assert joined.at(series.end_s + 3 * HOUR_S) == 1.0
    assert joined.end_s == series.end_s + 27 * HOUR_S


def test_courses_are_the_same_for_the_same_seed_and_spread_as_the_past_did():
    rng = np.random.default_rng(0)
    series = replace(day(40, 200.0, 300.0), values=day(40, 200.0, 300.0).values
                     + rng.normal(0.0, 20.0, 960))  # fmt: skip
    ahead = grid_ahead(past_of(series), series.end_s, 240)
    drawn = ahead.drawn(64)
    assert drawn.shape == (64, 240)
    assert np.array_equal(drawn, ahead.drawn(64))
    assert not np.array_equal(drawn, ahead.drawn(64, seed=1))
    assert (drawn > 0.0).all()
    spread = drawn.std(axis=0)
    assert spread[0] < 0.5 * spread[-1]
    assert 10.0 < spread[-1] < 60.0
    assert drawn.mean() == pytest.approx(ahead.middle.mean(), rel=0.05)


def test_courses_that_are_taken_lie_apart():
    series = replace(day(30), values=day(30).values + np.random.default_rng(1).normal(0, 30, 720))
    ahead = grid_ahead(past_of(series), series.end_s, 100)
    found = ahead.apart(6, 20, 72)
    gains = found[:, :20].mean(axis=1) / np.sort(found[:, :72], axis=1)[:, :20].mean(axis=1)
    assert (np.diff(gains) > 0.0).all()
    every = ahead.drawn(256)
    all_gains = every[:, :20].mean(axis=1) / np.sort(every[:, :72], axis=1)[:, :20].mean(axis=1)
    assert np.median(gains) == pytest.approx(np.median(all_gains), rel=0.05)


# ----------------------------------------------------------------------------------------- problems


def test_a_budget_leaves_the_slack_that_was_asked_for():
    span_s = (BEGIN_S, BEGIN_S + 10 * DAY_S)
    for share in (0.0, 0.5, 1.0):
        config = parse_config(f"[carbon.control]\nlow_share = {share}\n", "a test")
        for slack in (1.0, 1.67):
            tokens = budget_at(config, table(), span_s, 300.0, slack)
            made = training_problem(config, table(), span_s, tokens, 300.0)
            assert slack_of(made) == pytest.approx(slack, rel=2e-3)
            assert made.pue == config.accounting.pue


def test_the_pue_of_the_time_counts(tmp_path):
    path = tmp_path / "pue.csv"
    path.write_text("time,pue\n2022-01-01T00:00Z,1.1\n2022-06-01T00:00Z,1.5\n")
    config = parse_config(f"[accounting]\npue_csv = '{path}'\n", "a test")
    new_year_s, day_s = 1_640_995_200.0, DAY_S
    for start_s, pue in ((new_year_s, 1.1), (new_year_s + 200 * day_s, 1.5)):
        made = training_problem(config, table(), (start_s, start_s + day_s), 1e6, 300.0)
        assert made.pue == pue
    with pytest.raises(ConfigError, match=r"accounting\.pue_csv = .*pue\.csv"):
        training_problem(config, table(), (new_year_s - 1.0, new_year_s + day_s), 1e6, 300.0)


@pytest.mark.parametrize("tokens", [1e10, 1e18])
def test_a_budget_that_cannot_be_met_is_one_line(tokens):
    with pytest.raises(ConfigError, match=r"^carbon\.control\.tokens = ") as caught:
        training_problem(DEFAULTS, table(), (BEGIN_S, BEGIN_S + DAY_S), tokens, 300.0)
    assert "\n" not in str(caught.value)


# ---------------------------------------------------------------------------------------- baselines


def test_static_trainings_do_the_same_until_they_are_done():
    p, series = problem(), day(20, 300.0, 300.0)
    low = static_training(p, series, Gear.FP8)
    high = static_training(p, series, Gear.BF16)
    assert low.done_s - p.start_s == pytest.approx(DAY_S, abs=1.0)
    assert high.done_s - p.start_s == pytest.approx(1.25 * DAY_S, abs=1.0)
    assert low.carbon_g == pytest.approx(8000.0 * 24 / 1000 * 300.0)
    assert saving(low.carbon_g, high.carbon_g) == pytest.approx(0.2)
    assert raced(p, series).carbon_g == pytest.approx(low.carbon_g)
    assert static_training(p, series, Gear.FP32) is None
    assert saving(1.0, None) is None


def test_a_static_training_that_cannot_keep_the_deadline_ends_later():
    p, series = problem(slack=1.0), day(20)
    high = static_training(p, series, Gear.BF16)
    assert high.deficit == 0.0
    assert high.done_s - p.deadline_s == pytest.approx(0.75 * DAY_S, abs=1.0)
    short = replace(series, values=series.values[: 13 * 24 + 10])
    assert static_training(p, short, Gear.BF16) is None
    assert static_training(p, short, Gear.FP8).deficit == 0.0


def test_static_fp8_keeps_to_the_cap():
    p = problem(low_share=0.25)
    found = static_training(p, day(20), Gear.FP8)
    assert found.tokens_by_gear[Gear.FP8] == pytest.approx(0.25 * p.tokens)
    assert found.deficit == 0.0


# --------------------------------------------------------------------------------------- comparison


def test_nobody_emits_less_than_the_bound_and_the_default_controller_comes_near():
    pytest.importorskip("scipy")
    told = []
    p = problem(slack=2.0)
    found = compared(RecordedGrid(day(20)), [p], ["suspend", "stochastic"], tell=told.append)
    assert sum(told) == 3
    assert found.no_bound is None
    assert found.shown == "stochastic"
    assert [one.name for one in found.static] == ["static BF16", "static FP8"]
    scores = {one.name: found.score(one) for one in (*found.static, *found.controllers)}
    for score in scores.values():
        assert score.regret >= -1e-6
        assert score.deficit == 0.0
    best = scores["stochastic"]
    assert best.regret < 0.03
    assert best.captured > 0.9
    assert best.saving_low > 0.2
    assert 1.0 - best.saving_high == pytest.approx(
        (1.0 - best.saving_low) * (1.0 - scores["static FP8"].saving_high)
    )
    assert scores["static FP8"].captured == pytest.approx(0.0, abs=1e-9)
    assert best.n_pauses >= 2
    assert best.low_share == pytest.approx(1.0)
    assert len(found.epochs) == 72
    assert {epoch.action.width for epoch in found.epochs} >= {0, 8}


def test_figures_are_means_over_the_starts():
    series = day(20)
    problems = [problem(start_s=BEGIN_S + days * DAY_S) for days in (5, 10.5)]
    both = compared(RecordedGrid(series), problems, ["race"])
    alone = [compared(RecordedGrid(series), [one], ["race"]) for one in problems]
    scores = [one.score(one.controllers[0]) for one in alone]
    found = both.score(both.controllers[0])
    assert found.carbon_g == pytest.approx(sum(one.carbon_g for one in scores) / 2)
    assert found.done_days == pytest.approx(sum(one.done_days for one in scores) / 2)
    if both.bound_g is not None:
        assert both.bound_g == pytest.approx(sum(one.bound_g for one in alone) / 2)


def test_without_scipy_the_bound_is_missing_with_its_reason(monkeypatch):
    def missing(problem, truth):
        raise MissingToolError("the bound takes SciPy")

    monkeypatch.setattr(comparison, "lp_bound", missing)
    found = compared(RecordedGrid(day(20)), [problem()], ["race"])
    score = found.score(found.controllers[0])
    assert (found.no_bound, found.bound_g) == ("the bound takes SciPy", None)
    assert (score.regret, score.captured) == (None, None)
    assert score.saving_low == pytest.approx(0.0)


def test_a_table_without_fp8_has_no_saving_on_it():
    p = problem(of=table(BF16=1e4))
    found = compared(RecordedGrid(day(20)), [p], ["race"])
    score = found.score(found.controllers[0])
    assert score.saving_low is None
    assert score.saving_high == pytest.approx(0.0)
    assert [one.name for one in found.static] == ["static BF16"]


def test_starts_lie_within_the_recording():
    series = day(100)
    assert start_times(series, 30 * DAY_S, None, None) == [BEGIN_S + 60 * DAY_S]
    assert start_times(series, 90 * DAY_S, None, None) == [BEGIN_S + 10 * DAY_S]
    assert start_times(series, 100 * DAY_S, None, 5.0) == [BEGIN_S]
    assert start_times(series, 30 * DAY_S, BEGIN_S + 1800.0, None) == [BEGIN_S]
    every = start_times(series, 30 * DAY_S, BEGIN_S + 20 * DAY_S, 20.0)
    assert every == [BEGIN_S + days * DAY_S for days in (20, 40, 60)]
    with pytest.raises(ConfigError, match=r"carbon\.control\.deadline = '101 days on'.* 100 days"):
        start_times(series, 101 * DAY_S, None, None)
    with pytest.raises(ConfigError, match=r"^--start = "):
        start_times(series, 30 * DAY_S, BEGIN_S + 71 * DAY_S, None)


# -------------------------------------------------------------------------------------------- plans


@pytest.fixture(scope="module")
def planned():
    """A plan of three days on a grid with clean days, of a third of what could be trained."""
    series = day(10)
    told = []
    p, past = problem(start_s=series.end_s), past_of(series)
    plan = carbon_plan(past, p, told.append)
    assert sum(told) == n_plays(past, p)
    return plan


def test_a_plan_trains_all_tokens_in_clean_hours(planned):
    p = planned.problem
    assert sum(span.tokens for span in planned.spans) == pytest.approx(p.tokens)
    assert planned.played.deficit == 0.0
    assert planned.spans[-1].end_s == pytest.approx(planned.played.done_s)
    for span in planned.spans:
        assert p.start_s <= span.start_s < span.end_s <= p.deadline_s
        assert span.action.gear is Gear.FP8
    clean = sum(span.tokens for span in planned.spans if span.g_per_kwh == pytest.approx(100.0))
    assert clean > 0.99 * p.tokens
    for before, after in zip(planned.spans, planned.spans[1:], strict=False):
        assert before.end_s < after.start_s or before.action != after.action


def test_a_plan_tells_hours_of_the_day(planned):
    begin_s, n_hours, part = daily_hours(planned)
    assert (begin_s % DAY_S) / HOUR_S >= 8
    assert n_hours <= 8
    assert part >= 2 / 3


def test_a_plan_tells_what_it_saves_and_how_sure(planned):
    # A training at once runs a third of the day in clean hours, and the plan runs there alone.
    at_once = (8 * 100.0 + 16 * 500.0) / 24
    assert saved_of_low(planned.expected) == pytest.approx(1.0 - 100.0 / at_once, abs=0.01)
    assert saved_of_high(planned.expected) > saved_of_low(planned.expected)
    low, high = planned.interval(saved_of_low)
    assert low <= saved_of_low(planned.expected) <= high
    assert len(planned.outcomes) >= 6


def test_other_deadlines_save_more_the_later_they_are(planned):
    slacks = [one.slack for one in planned.deadlines]
    assert slacks == pytest.approx([1.0, 1.25, 1.67, 3.0])
    assert [one.is_own for one in planned.deadlines] == [False, False, False, True]
    assert planned.deadlines[0].deadline_s == planned.problem.earliest_deadline_s()
    saved = [saved_of_low(one.outcome) for one in planned.deadlines]
    assert saved[0] == pytest.approx(0.0, abs=1e-9)
    assert saved == sorted(saved)


def test_a_plan_tells_what_tokens_are_worth(planned):
    # All hours are clean in which tokens are trained: 0.08 J a token at 100 g/kWh.
    p = planned.problem
    assert planned.worth.g_per_token == pytest.approx(
        p.grams(8000.0, 100.0, 1.0) / p.rate(TrainingAction(8, Gear.FP8)), rel=0.05
    )
    assert planned.worth.g_per_h == pytest.approx(0.0, abs=1.0)
    assert planned.worth.later_s == DAY_S


def test_two_plans_of_the_same_hour_agree(planned):
    again = carbon_plan(planned.past, planned.problem)
    assert again.spans == planned.spans
    assert again.outcomes == planned.outcomes


def test_with_little_slack_time_is_worth_something():
    series = day(10)
    plan = carbon_plan(past_of(series), problem(start_s=series.end_s, slack=1.5))
    assert plan.worth.g_per_h > 100.0
    assert plan.worth.g_per_token > 0.0


def test_machines_that_are_kept_make_time_cost_something():
    series = day(10)
    kept = problem(start_s=series.end_s, base_w=4000.0)
    plan = carbon_plan(past_of(series), kept)
    assert plan.worth.g_per_h == pytest.approx(-4000.0 / 1000 * (8 * 100 + 16 * 500) / 24, rel=0.1)
    done = carbon_plan(past_of(series), replace(kept, kept=Kept.DONE))
    assert done.worth.g_per_h >= -1.0
    assert done.played.done_s < kept.deadline_s


def test_a_grid_that_never_changes_leaves_nothing_to_save():
    series = day(10, 300.0, 300.0)
    plan = carbon_plan(past_of(series), problem(start_s=series.end_s))
    assert saved_of_low(plan.expected) == pytest.approx(0.0, abs=1e-9)
    assert daily_hours(plan) is None or plan.played.deficit == 0.0


def test_a_provider_s_forecast_goes_before_the_past():
    series = day(10, 300.0, 300.0)
    series.values[:] += np.random.default_rng(2).normal(0.0, 10.0, 240)
    start_s = series.end_s
    middle = np.full(72, 400.0)
    middle[40:50] = 50.0
    # Its intervals say that it is never off.
    forecast = Forecast("told", start_s, start_s, HOUR_S, middle, middle, middle)
    past = replace(past_of(series), forecast=forecast)
    plan = carbon_plan(past, problem(start_s=start_s, slack=8.0))
    assert saved_of_low(plan.expected) > 0.7
    assert min(span.start_s for span in plan.spans) == start_s + 40 * HOUR_S
    # What it errs by is not told: the courses differ from it from the first day on.
    low, high = plan.interval(lambda outcome: outcome.low_g)
    assert high > low


def test_a_plan_of_a_recording_that_is_played_faster_goes_by_its_hours():
    real = day(10)
    fast = replace(real, step_s=1.0)
    past = replace(past_of(fast), hour_s=1.0)
    of = table()
    tokens = 72.0 * float(of.tokens_per_s.max()) / 3.0
    p = TrainingProblem(of, tokens, fast.end_s, fast.end_s + 72.0, epoch_s=1.0)
    plan = carbon_plan(past, p)
    assert saved_of_low(plan.expected) > 0.5
    assert plan.worth.later_s == 24.0


def test_epochs_are_hours_and_shorter_where_there_is_little_time():
    past = past_of(day(10))
    assert epoch_of(past, 3 * DAY_S, 300.0) == HOUR_S
    assert epoch_of(past, DAY_S, 300.0) == 300.0
    assert epoch_of(past, DAY_S, 900.0) == 900.0
    assert epoch_of(past, DAY_S, 7200.0) == 300.0
    assert epoch_of(past, DAY_S, 1000.0) == 300.0

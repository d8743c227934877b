"""The decisions of a run on one axis, and what they saved against what."""

from __future__ import annotations

import html
import io
import itertools
import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from ecorl.control import Command, Gear, Why
from ecorl.ledger import DeviceRecord
from ecorl.records import Action, BarrierWait, EventKind, Placement, Provenance, Stage
from ecorl.report.decisions.model import DecisionKind
from ecorl.report.decisions.run_course import MOST, Decided, _bands, _Placed, stretches
from ecorl.report.decisions.savings import saving_words
from ecorl.report.render.course_tables import course_lines, course_section, lanes
from ecorl.report.render.page import render_html, render_json
from ecorl.report.render.text import print_report

BF16, FP8 = "BF16", "FP8 simulated"
CARD = {"device": "fpga0:u55c", "provenance": Provenance.MODELLED, "time_s": 0.5}


def place(run, t_s, iteration, action, reason, stage=Stage.REWARD):
    run.clock(t_s)
    run.ledger.placement(Placement(iteration, stage, action, action, "learned", reason))


def train(run, t_s, iteration, gear, width=1, energy_j=100.0, time_s=1.0, **more):
    fields = {"iteration": iteration, "gear": gear, "width": width} | more
    run.ran(Stage.ACTOR_TRAIN, (t_s, t_s + time_s), energy_j, **fields)


def shifting(run, n=12, **more):
    """Steps every 2 s: the reward in turn on both sides, three gears in a row, the rest another."""
    run.config(gears={"allowed": ["BF16", "FP8"], "simulate_fp8": True})
    run.chose(1000.0, Command.RUN, Why.TIMING, gear=Gear.BF16)
    for i in range(1, n + 1):
        t_s = 1000.0 + 2.0 * i
        if i == 4:
            run.chose(t_s - 0.5, Command.RUN, Why.PRICED, gear=Gear.FP8)
        action = Action.GPU if i % 2 else Action.CONCURRENT
        place(run, t_s, i, action, f"try {'host' if i % 2 else 'card'} {i}")
        train(run, t_s + 0.5, i, BF16 if i < 4 else FP8, **more)
    return run


def ended(run, t_s=1060.0):
    run.clock(t_s)
    run.ledger.event(EventKind.FINISH, "")
    return run.report()


def terminal(report, width=100, encoding="utf-8"):
    out = io.TextIOWrapper(io.BytesIO(), encoding)
    print_report(report, Console(file=out, width=width))
    out.flush()
    return out.buffer.getvalue().decode(encoding)


# ---------------------------------------------------------------- stretches


values = st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 9)), max_size=60)


@given(values)
def test_every_decision_is_in_one_stretch_and_all_are_in_order(counted):
    decided = [
        Decided(i, i + 1.0, value, f"why {value}", n) for i, (value, n) in enumerate(counted)
    ]
    found = stretches(DecisionKind.GEAR, None, decided)
    counts = Counter()
    for one in found:
        counts.update(dict(one.after))
        assert one.n == sum(n for _, n in one.after)
        assert one.reason is not None
    expected = Counter()
    for value, n in counted:
        expected[value] += n
    assert counts == expected
    for before, after in itertools.pairwise(found):
        assert before.end_s <= after.start_s
        assert after.before == tuple(value for value, _ in before.after)
    assert len(found) <= max(MOST, 1)


def test_values_that_hold_are_told_apart_and_those_that_take_turns_together():
    word = "abababababab" + "a" * 9 + "b" * 5
    decided = [Decided(i, i + 1.0, value, value) for i, value in enumerate(word)]
    first, second, third = stretches(DecisionKind.PLACEMENT, "reward", decided)
    assert (dict(first.after), first.n) == ({"a": 6, "b": 6}, 12)
    assert (first.before, first.reason) == ((), "a; b")
    assert (second.after, second.before) == ((("a", 9),), ("a", "b"))
    assert (third.start_s, third.end_s, third.after) == (21, 26.0, (("b", 5),))


def test_few_changes_stay_as_they_are():
    decided = [Decided(i, i + 1.0, value, None) for i, value in enumerate("aabab")]
    assert [one.after for one in stretches(DecisionKind.GEAR, None, decided)] == [
        (("a", 2),), (("b", 1),), (("a", 1),), (("b", 1),),
    ]  # fmt: skip


# ---------------------------------------------------------------- the course of a run


def test_a_run_with_one_kind_of_decisions_has_no_course(run):
    run.standard()
    place(run, 1005.0, 1, Action.CONCURRENT, "the card is cheaper")
    report = run.report()
    assert report.course is None
    assert "Decisions over the run" not in terminal(report)
    assert json.loads(render_json(report))["course"] is None


def test_placements_that_never_leave_are_no_kind_of_their_own(run):
    run.config()
    for i in range(1, 5):
        place(run, 1000.0 + i, i, Action.GPU, "as the config says")
        train(run, 1000.5 + i, i, BF16 if i < 3 else FP8)
    assert ended(run).course is None


def test_all_kinds_stand_on_one_axis_with_their_reasons(run):
    run.heard(1000.0, 300.0, interval_s=3600.0)
    shifting(run)
    run.chose(1026.0, Command.PAUSE, Why.PRICED)
    run.heard(1028.0, 50.0, interval_s=3600.0)
    run.chose(1030.0, Command.RUN, Why.PRICED, gear=Gear.FP8, width=2)
    train(run, 1031.0, 13, FP8, width=2)
    course = ended(run).course
    assert course.kinds == tuple(DecisionKind)
    found = {kind: [s for s in course.stretches if s.kind is kind] for kind in DecisionKind}
    (placed,) = found[DecisionKind.PLACEMENT]
    assert (placed.role, dict(placed.after)) == ("reward", {"GPU": 6, "card beside GPU": 6})
    assert placed.reason == "try host 11; try card 12"
    first, second = found[DecisionKind.GEAR]
    assert (first.after, first.before, first.reason) == (((BF16, 3),), (), "timing: because timing")
    assert (second.after, second.before) == (((FP8, 10),), (BF16,))
    assert second.reason == "priced: because priced"
    assert second.start_s == pytest.approx(8.5)
    one, two = found[DecisionKind.WIDTH]
    assert (one.after, one.reason, two.before) == ((("1", 12),), None, ("1",))
    assert two.reason == "priced: because priced"
    (pause,) = found[DecisionKind.PAUSE]
    assert (pause.start_s, pause.end_s) == pytest.approx((26.0, 30.0))
    assert (pause.before, pause.after) == (("running",), (("paused", 1),))
    assert [(round(t_s), g) for t_s, g in course.intensities] == [(0, 300.0), (28, 50.0)]
    assert course.intensity_provenance is Provenance.PUBLISHED
    assert course.end_s == pytest.approx(60.0)


def test_a_placement_ends_where_a_pause_begins(run):
    shifting(run)
    run.chose(1025.0, Command.PAUSE, Why.DIRTY)
    run.chose(1040.0, Command.RUN, Why.CLEAN)
    course = ended(run).course
    assert max(band.end_s for band in course.placements) == pytest.approx(25.0)
    assert {band.action for band in course.placements} == {Action.GPU, Action.CONCURRENT}


def test_attempts_follow_each_other_and_what_was_superseded_is_left_out(run):
    shifting(run, n=6)
    run.resume(1100.0, from_step=4)
    for i in (5, 6):
        place(run, 1100.0 + i, i, Action.CONCURRENT, "again")
        train(run, 1100.5 + i, i, BF16)
    course = ended(run, 1120.0).course
    assert course.attempts == (pytest.approx((0.0, 13.5)), pytest.approx((100.0, 120.0)))
    placed = [s for s in course.stretches if s.kind is DecisionKind.PLACEMENT]
    assert sum(s.n for s in placed) == 6
    assert placed[-1].end_s == pytest.approx(120.0)
    assert [s.after for s in course.stretches if s.kind is DecisionKind.GEAR] == [
        ((BF16, 3),), ((FP8, 1),), ((BF16, 2),),
    ]  # fmt: skip


def test_the_energy_so_far_is_that_of_the_readings_a_curve_for_each_provenance(run):
    run.ledger.device(DeviceRecord("gpu0", "h100", Provenance.MEASURED, "nvml", 30.0))
    run.power("gpu0", range(1000, 1060), 100.0)
    shifting(run)
    run.chose(1027.0, Command.PAUSE, Why.DIRTY)
    run.chose(1030.0, Command.RUN, Why.CLEAN)
    report = ended(run)
    (curve,) = report.course.energy
    assert curve.provenance is Provenance.MEASURED
    joules = [joules for _, joules in curve.points]
    assert joules == sorted(joules)
    assert joules[-1] == pytest.approx(6000.0, rel=0.02)
    assert joules[-1] == pytest.approx(report.spending.columns[0].energy_j, rel=0.02)


def test_readings_that_stop_half_way_make_the_energy_so_far_a_bound(run, snapshot):
    run.ledger.device(DeviceRecord("gpu0", "h100", Provenance.MEASURED, "nvml", 30.0))
    run.power("gpu0", range(1000, 1030), 100.0)
    shifting(run)
    run.chose(1027.0, Command.PAUSE, Why.DIRTY)
    run.chose(1030.0, Command.RUN, Why.CLEAN)
    course = ended(run).course
    assert course.energy[0].at_least
    snapshot("\n".join(lanes(course, 80, "GPU", has_blocks=True)))


@pytest.mark.parametrize("every", [10, 50])
def test_bands_of_many_decisions_have_the_shares_of_the_decisions(every):
    """One in so many calls goes to the card: no band of what is seen may be the card's."""
    placed = [
        _Placed(i, i + 1.0, Stage.REWARD, Action.GPU if i % every else Action.CONCURRENT, "")
        for i in range(10_000)
    ]
    bands = _bands("reward", placed)
    assert len(bands) <= 2 * 400
    assert (bands[0].start_s, bands[-1].end_s) == (0, 10_000)
    for before, after in itertools.pairwise(bands):
        assert before.end_s == after.start_s
    time_s = Counter()
    for band in bands:
        time_s[band.action] += band.end_s - band.start_s
    assert time_s[Action.CONCURRENT] <= 1.5 * 10_000 / every
    # Where more than a twentieth went to the card the two take turns.
    assert (time_s[None] > 5_000) == (every == 10)


def test_a_gear_that_came_of_another_choice_says_what_was_chosen(run):
    shifting(run)
    run.chose(1025.5, Command.RUN, Why.PRICED, gear=Gear.FP8)
    train(run, 1026.0, 13, BF16)  # the trainer went back by itself
    course = ended(run).course
    gears = [s for s in course.stretches if s.kind is DecisionKind.GEAR]
    assert gears[-1].after == ((BF16, 1),)
    assert gears[-1].reason == "chosen was FP8, priced: because priced"


# ---------------------------------------------------------------- how it is shown


@pytest.fixture
def shown(run):
    run.heard(1000.0, 300.0, interval_s=3600.0)
    run.ledger.device(DeviceRecord("gpu0", "h100", Provenance.MEASURED, "nvml", 30.0))
    run.power("gpu0", range(1000, 1060), 100.0)
    shifting(run, n=20)
    run.chose(1045.0, Command.PAUSE, Why.PRICED)
    run.chose(1055.0, Command.RUN, Why.PRICED, gear=Gear.FP8)
    return ended(run)


def test_the_lanes_tell_what_held_when(shown):
    lines = lanes(shown.course, 80, "GPU", has_blocks=True)
    named = {line[2:10].strip(): line[10:].rstrip() for line in lines[:4]}
    assert named.keys() == {"reward", "gear", "grid", "energy"}
    assert {"m", "-"} <= set(named["reward"].strip()) <= {"g", "c", "m", "-"}
    assert named["gear"].strip().startswith("bb")
    assert set(named["gear"]) == {" ", "b", "8", "-"}
    assert named["grid"][0] == "█"
    assert (named["energy"].strip()[0], named["energy"].strip()[-1]) == ("▁", "█")
    assert all(len(line) <= 80 for line in lines)


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_the_terminal_has_lanes_and_a_line_for_each_stretch(shown, encoding, snapshot):
    text = terminal(shown, encoding=encoding)
    assert max(map(len, text.splitlines())) <= 100
    snapshot(text[: text.index("\nStages\n")])


def test_a_reason_is_cut_to_its_line_and_whole_in_the_table(run):
    shifting(run)
    run.chose(1030.0, Command.PAUSE, Why.DIRTY)
    run.chose(1040.0, Command.RUN, Why.CLEAN)
    place(run, 1041.0, 13, Action.GPU, "a reason " * 30)
    course = ended(run).course
    lines = course_lines(course, 90, "GPU", has_blocks=False)
    assert max(map(len, lines)) <= 90
    assert any(line.endswith("...") for line in lines)
    (table,) = course_section(course).tables
    assert any(("a reason " * 30) in cell for row in table.rows for cell in row)


def test_the_page_has_picture_table_and_the_three_comparisons(shown):
    page = html.unescape(render_html(shown)).replace("\u00a0", " ")
    assert 'id="course"' in page
    assert all(saving_words(one) in page for one in shown.savings)
    assert page.count('class="plot"') >= 2
    picture = page[page.index("Over the time of the run") :]
    for word in ("wall clock since the run began, s", "gCO2e/kWh", "energy so far, J", "paused"):
        assert word in picture
    data = json.loads(render_json(shown))
    assert {one["what"] for one in data["savings"]} == {"placement", "gears and workers", "timing"}


# ---------------------------------------------------------------- what was saved


def saving(report, what):
    return next(s for s in report.savings if s.what == what)


def test_a_run_that_decided_nothing_has_nothing_to_compare(run):
    run.config()
    run.ran(Stage.GENERATION, (1000, 1010), 1000.0)
    report = ended(run)
    assert report.savings == ()
    assert "What was saved" not in terminal(report)


def test_placement_is_held_against_never_offloading(run, snapshot):
    run.standard()
    report = run.report()
    placed, *others = report.savings
    assert (placed.what, placed.saved) == ("placement", report.balance.net_j)
    assert placed.provenance is report.balance.provenance
    assert [one.applies for one in others] == [False, False]
    snapshot("\n".join(map(saving_words, report.savings)))


def test_the_placement_line_counts_the_pauses_of_the_card(run, snapshot):
    run.ledger.device(DeviceRecord("fpga0", "u55c", Provenance.MODELLED, "cycle model", 1.0))
    run.ran(Stage.REWARD, (1000, 1010), 40.0, **(CARD | {"time_s": 9.0}))
    run.ran(Stage.REWARD, (1010, 1020), 100.0)
    run.chose(1020.0, Command.PAUSE, Why.DIRTY)
    run.chose(1050.0, Command.RUN, Why.CLEAN)
    saved = saving(run.report(), "placement")
    assert saved.saved == pytest.approx(19.0)
    snapshot(saving_words(saved))


def test_placement_of_a_stage_that_cannot_be_compared_is_not_left_out_in_silence(run, snapshot):
    run.standard()
    run.ran(Stage.REFERENCE, (1018, 1019), 30.0, **CARD)
    saved = saving(run.report(), "placement")
    assert saved.saved is None
    snapshot(saving_words(saved))


def test_placement_without_energy_on_both_sides_says_why(run, snapshot):
    run.ran(Stage.REWARD, (1010, 1012), None, **CARD)
    run.ran(Stage.REWARD, (1012, 1013), 80.0)
    run.clock(1012.0)
    run.ledger.barrier(BarrierWait(1, Stage.REWARD, 1.5, 10, 0, 0))
    saved = saving(ended(run), "placement")
    assert saved.saved is None
    snapshot(saving_words(saved))


def trained_both(run, fp8_j, n_own=7, first_j=100.0, own_j=100.0):
    """Steps of 200 tokens in BF16, then three in FP8 that is simulated."""
    run.config(gears={"allowed": ["BF16", "FP8"], "simulate_fp8": True})
    for i in range(1, n_own + 1):
        train(run, 1000.0 + 2 * i, i, BF16, energy_j=first_j if i == 1 else own_j)
    for i in range(n_own + 1, n_own + 4):
        train(run, 1000.0 + 2 * i, i, FP8, energy_j=fp8_j)


@pytest.mark.parametrize("fp8_j", [60.0, 150.0])
def test_gears_are_held_against_the_first_gear_and_width(run, fp8_j, snapshot):
    trained_both(run, fp8_j)
    report = ended(run)
    fixed = report.training_stage.fixed
    # The first step of an attempt is no price of the others.
    assert (fixed.gear, fixed.width, fixed.n_steps) == (BF16, 1, 6)
    assert fixed.j_per_token == pytest.approx(0.5)
    assert fixed.saved_j == pytest.approx(3 * (100.0 - fp8_j))
    # What they would have drawn was never measured, and FP8 was not there.
    saved = saving(report, "gears and workers")
    assert (saved.saved, saved.provenance) == (fixed.saved_j, Provenance.MODELLED)
    snapshot(saving_words(saved))


def test_a_first_step_that_took_long_makes_no_saving(run):
    trained_both(run, 100.0, first_j=400.0)
    fixed = ended(run).training_stage.fixed
    assert fixed.j_per_token == pytest.approx(0.5)
    assert fixed.saved_j == pytest.approx(-300.0)


def test_a_few_steps_are_no_price_of_all_others(run, snapshot):
    trained_both(run, 60.0, n_own=2)
    report = ended(run)
    saved = saving(report, "gears and workers")
    assert (saved.saved, report.training_stage.fixed.n_steps) == (None, 1)
    snapshot(saving_words(saved))


def test_what_measuring_the_gears_drew_counts_against_them(run):
    trained_both(run, 60.0)
    run.ledger.metric(10, "gear_measurement_s", 0.4)
    train(run, 1030.0, 10, None, energy_j=30.0, tokens=0, time_s=0.4)
    fixed = ended(run).training_stage.fixed
    assert fixed.measuring_j == pytest.approx(30.0)
    assert fixed.saved_j == pytest.approx(90.0)
    assert not fixed.at_most


def test_measurements_without_an_energy_make_a_bound(run):
    trained_both(run, 60.0)
    run.ledger.metric(9, "gear_measurement_s", 0.4)
    run.ledger.metric(10, "gear_measurement_s", 0.4)
    train(run, 1030.0, 9, None, energy_j=30.0, tokens=0, time_s=0.4)
    train(run, 1031.0, 10, None, energy_j=None, tokens=0, time_s=0.4)
    report = ended(run)
    assert report.training_stage.fixed.at_most
    saved = saving(report, "gears and workers")
    assert (saved.bound.strip(), saved.saved) == ("at most", pytest.approx(90.0))


def test_changes_of_the_workers_make_a_bound_and_are_named(run, snapshot):
    for i in range(1, 8):
        train(run, 1000.0 + 2 * i, i, None, width=1, energy_j=100.0)
    for i in range(8, 11):
        train(run, 1020.0 + 2 * i, i, None, width=2, energy_j=150.0)
    report = ended(run)
    assert report.training_stage.fixed.n_changes == 1
    saved = saving(report, "gears and workers")
    assert (saved.bound.strip(), saved.saved) == ("at least", pytest.approx(-150.0))
    snapshot(saving_words(saved))


def test_without_an_energy_of_the_first_gear_nothing_is_said_of_gears(run):
    run.config(gears={"allowed": ["BF16", "FP8"], "simulate_fp8": True})
    for i in range(1, 7):
        train(run, 1000.0 + 2 * i, i, BF16 if i < 4 else FP8, energy_j=None if i < 4 else 60.0)
    report = ended(run)
    assert report.training_stage.fixed.n_steps == 0
    assert saving(report, "gears and workers").saved is None


@pytest.mark.parametrize(("dirty", "clean"), [(100.0, 10.0), (10.0, 100.0)])
def test_timing_is_held_against_the_same_joules_at_the_mean_intensity(run, dirty, clean, snapshot):
    run.config(accounting={"pue": 1.0})
    run.ledger.device(DeviceRecord("gpu0", "h100", Provenance.MEASURED, "nvml", 30.0))
    run.power("gpu0", range(1000, 1020), 10.0)
    run.power("gpu0", range(1020, 1060), 100.0)
    run.heard(1000.0, dirty, interval_s=20.0)
    run.heard(1020.0, clean, interval_s=3600.0)
    run.chose(1000.5, Command.PAUSE, Why.DIRTY)
    run.chose(1020.0, Command.RUN, Why.CLEAN)
    train(run, 1021.0, 1, None, width=None)
    report = ended(run)
    outcome = report.pauses.outcomes[0]
    mean = (20.0 * dirty + 40.0 * clean) / 60.0
    assert outcome.mean_g_per_kwh == pytest.approx(mean, rel=0.02)
    expected = (outcome.trained_g / clean) * mean - outcome.trained_g - outcome.paused_g
    assert outcome.net_at_mean_g == pytest.approx(expected, rel=0.05)
    saved = saving(report, "timing")
    assert saved.saved == outcome.net_at_mean_g
    assert (saved.saved > 0) == (dirty > clean)
    snapshot(saving_words(saved))


def test_timing_without_an_intensity_says_why(run, snapshot):
    run.chose(1000.5, Command.PAUSE, Why.DIRTY)
    run.chose(1020.0, Command.RUN, Why.CLEAN)
    train(run, 1021.0, 1, None, width=None)
    run.heard(1022.0, None)
    saved = saving(ended(run), "timing")
    assert (saved.saved, saved.applies) == (None, True)
    snapshot(saving_words(saved))

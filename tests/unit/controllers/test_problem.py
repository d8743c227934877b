"""The training stage's problem: tables, hulls, the budget's feasibility and the shield."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ecorl.control import Command, Gear, Why
from ecorl.controllers.horizon.frontier import frontier
from ecorl.controllers.problem.table import PAUSE, GearTable, TrainingAction
from ecorl.controllers.problem.training import HOUR_S, Progress
from ecorl.controllers.step import action_of, can_finish_after, choice, control_step
from ecorl.errors import ConfigError
from ecorl.kinds import Provenance
from tests.fakes.training_problems import NOW_S, problem, seen, table


def made(power_w, tokens_per_s, gears=(Gear.BF16,), widths=(1, 2)):
    return GearTable(
        gears, widths, np.array(power_w, float), np.array(tokens_per_s, float),
        Provenance.MEASURED, "made up", key="carbon.control.table",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("change", "key", "told"),
    [
        ({"power_w": [[500.0, 400.0]]}, "power_w.BF16", "500 at 1 workers, 400 at 2"),
        ({"tokens_per_s": [[9.0, 8.0]]}, "tokens_per_s.BF16", "9 at 1 workers"),
        ({"tokens_per_s": [[0.0, 8.0]]}, "tokens_per_s.BF16", "figures above 0"),
        ({"power_w": [[np.nan, 8.0]]}, "power_w.BF16", "figures above 0"),
        ({"power_w": [[1.0, 2.0, 3.0]]}, "power_w", "1 gears and 2 widths"),
        ({"widths": (2, 1)}, "widths", "rising numbers"),
        ({"widths": (0, 1)}, "widths", "from 1 on"),
        ({"gears": (Gear.BF16, Gear.BF16)}, "gears", "each gear once"),
    ],
)
def test_a_table_that_cannot_be_is_refused_in_one_line(change, key, told):
    rows = {"power_w": [[100.0, 200.0]], "tokens_per_s": [[10.0, 19.0]], **change}
    with pytest.raises(ConfigError) as caught:
        made(**rows)
    assert caught.value.key == f"carbon.control.table.{key}"
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_draw_counts_base_idle_and_those_that_train():
    p = problem(table(), base_w=100.0, idle_w=50.0)
    assert p.draw_w(PAUSE) == 100.0 + 8 * 50.0
    assert p.draw_w(TrainingAction(2, Gear.FP8)) == 100.0 + 6 * 50.0 + 2000.0


def test_a_budget_that_cannot_be_met_names_the_earliest_deadline():
    p = problem(hours=48.0)
    most = p.most_tokens(48 * HOUR_S)
    replace(p, tokens=0.999999 * most)
    with pytest.raises(ConfigError) as caught:
        replace(p, tokens=1.5 * most)
    assert caught.value.key == "carbon.control.tokens"
    assert "2024-01-11 00:00 UTC" in str(caught.value)


@given(st.floats(0.01, 0.99), st.floats(0.0, 0.9), st.sampled_from([0.0, 40.0, 300.0]))
def test_what_is_told_to_be_feasible_is_feasible(share, low_share, change_s):
    p = problem(share=0.01, low_share=low_share, epoch_s=300.0, gear_change_s=change_s)
    most = p.most_tokens(p.deadline_s - p.start_s)
    assert replace(p, tokens=share * most).earliest_deadline_s() <= p.deadline_s
    ends_s = replace(p, tokens=most * (1 - 1e-9)).earliest_deadline_s()
    assert ends_s <= p.deadline_s
    # And it is not far from the most there is: changes and one broken epoch.
    assert p.deadline_s - ends_s <= 2 * change_s + 2 * p.epoch_s


def test_no_gear_is_left_where_all_are_low_and_none_may_be():
    low = table(FP8=1e4)
    with pytest.raises(ConfigError, match=r"carbon\.control\.low_share"):
        problem(low, low_share=0.0)


def test_time_that_is_needed_counts_the_cap_and_the_changes():
    costs = {"width_change_s": 60.0, "gear_change_s": 30.0, "epoch_s": 600.0}
    p = problem(table(BF16=100.0, FP8=200.0), low_share=0.5, **costs)
    wide, low = TrainingAction(8, Gear.BF16), TrainingAction(8, Gear.FP8)
    assert p.fastest(Progress(1.0, 1.0)) == low
    assert p.fastest(Progress(1.0, 0.0)) == wide
    assert p.needed_s(Progress(0.0, 0.0)) == 0.0
    assert p.needed_s(Progress(1600.0, 0.0, wide)) == pytest.approx(2.0)
    assert p.needed_s(Progress(1600.0, 0.0, low)) == pytest.approx(32.0)
    assert p.needed_s(Progress(1600.0, 1600.0)) == pytest.approx(61.0)
    # Half of it low: one epoch that the gear's change ends, then the rest.
    assert p.needed_s(Progress(3200.0, 1600.0, low)) == pytest.approx(600.0 + 30.0 + 2.0)


def test_the_hull_holds_what_is_best_at_some_price_and_nothing_else():
    p = problem(table(BF16=1e4, FP8=1.25e4, FP32=5e3), base_w=500.0)
    hull = frontier(p, p.table.actions())
    assert hull.actions[0] == PAUSE
    assert {a.gear for a in hull.actions[1:]} == {Gear.FP8}
    assert np.all(np.diff(hull.j_per_token) >= 0)
    for price in np.geomspace(0.01, 1.0, 50):
        gains = {
            a: price * p.rate(a) - (p.draw_w(a) - p.draw_w(PAUSE))
            for a in (PAUSE, *p.table.actions())
        }
        found = hull.actions[hull.place(price)]
        assert gains[found] == pytest.approx(max(gains.values()), abs=1e-9)


def test_training_that_draws_what_idling_does_is_always_worth_it():
    p = problem(table(), idle_w=1000.0)
    hull = frontier(p, p.table.actions())
    assert np.all(hull.j_per_token > 0)
    assert hull.actions[hull.place(1e-6)].width == 8


@pytest.mark.parametrize(
    ("terms", "key", "told"),
    [
        ({"idle_w": 1001.0}, "idle_w", "1000 W in the table"),
        ({"idle_w": -1.0}, "idle_w", "from 0"),
        ({"width_change_s": 3601.0}, "width_change_s", "carbon.control.epoch_s = 3600"),
        ({"gear_change_s": 3601.0}, "gear_change_s", "carbon.control.epoch_s = 3600"),
        ({"width_change_s": -1.0}, "width_change_s", "from 0"),
    ],
)
def test_costs_that_cannot_be_are_refused_in_one_line(terms, key, told):
    with pytest.raises(ConfigError) as caught:
        problem(table(), epoch_s=HOUR_S, **terms)
    assert caught.value.key == f"carbon.control.{key}"
    assert told in str(caught.value)


def test_a_time_that_no_calendar_reaches_is_told_as_such(snapshot):
    with pytest.raises(ConfigError) as caught:
        replace(problem(), tokens=1e20)
    snapshot(str(caught.value))


class Wants:
    """Always wants one action."""

    name = "wants"

    def __init__(self, p, action):
        self._p, self._action = p, action

    def decide(self, now_s, seen):
        return choice(self.name, now_s, self._p, seen, self._action, Why.PRICED, "it wants it")


def step(p, wanted, now_s, **progress):
    shown = seen(p, 100.0, progress=Progress(**progress))
    return control_step(Wants(p, wanted), p, now_s, shown)


def test_the_shield_steps_in_at_the_last_epoch_that_allows_it():
    p = problem(table(BF16=1.0), hours=10.0, share=0.5)
    full = TrainingAction(8, Gear.BF16)
    left = 0.999 * 8.0 * 2 * HOUR_S  # two hours at full speed
    late_s = p.deadline_s - 3 * HOUR_S
    early = step(p, PAUSE, late_s, tokens_left=left, low_tokens_left=0.0, action=full)
    assert (early.command, early.why) == (Command.PAUSE, Why.PRICED)
    last = step(p, PAUSE, late_s + HOUR_S, tokens_left=left, low_tokens_left=0.0, action=full)
    assert (action_of(last), last.why) == (full, Why.SHIELDED)
    assert re.search("full speed", last.reason)


def test_a_met_budget_ends_it():
    p = problem()
    found = step(p, PAUSE, NOW_S, tokens_left=0.0, low_tokens_left=0.0)
    assert (found.why, found.command, found.width) == (Why.DONE, Command.RUN, 0)


def test_the_cap_takes_the_gear_and_leaves_the_width():
    p = problem(table(), low_share=0.5)
    found = step(p, TrainingAction(2, Gear.FP8), NOW_S, tokens_left=5.0, low_tokens_left=0.0)
    assert (action_of(found), found.why) == (TrainingAction(2, Gear.BF16), Why.CAPPED)


def test_a_change_that_lasts_the_whole_epoch_trains_nothing_in_it():
    p = problem(table(BF16=1.0), hours=10.0, share=0.5, width_change_s=HOUR_S)
    progress = Progress(0.999 * 8.0 * HOUR_S, 0.0)
    full = TrainingAction(8, Gear.BF16)
    assert can_finish_after(p, p.deadline_s - 2 * HOUR_S, progress, full)
    assert not can_finish_after(p, p.deadline_s - 1 * HOUR_S, progress, full)


def test_without_progress_there_is_no_budget_to_keep():
    p = problem()
    with pytest.raises(ValueError, match="progress"):
        control_step(Wants(p, PAUSE), p, NOW_S, seen(p, progress=None))

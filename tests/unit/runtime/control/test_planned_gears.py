"""A controller in a live run whose training stage can be shifted between gears and widths."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ecorl.carbon.series import Series
from ecorl.config import validate_config
from ecorl.control import Command, Gear, TrainingStage, Why
from ecorl.controllers.planning.tables import read_table
from ecorl.controllers.problem.table import PAUSE, TrainingAction
from ecorl.controllers.protocol import Seen
from ecorl.controllers.replay.knowledge import told
from ecorl.errors import ConfigError
from ecorl.runtime.control.live_plan import live_plan
from ecorl.runtime.control.planned import TIMED_STEPS, PlannedRun
from ecorl.runtime.control.step_record import Ran, StepRecord
from tests.unit.runtime.control.test_planned import BEGAN_S, HOUR_S, grid

STEP_S = 600.0
BOTH = (Gear.BF16, Gear.FP8)

TABLE = """
provenance = "modelled"
source = "a device of this test's own"
widths = [1, 2]
[power_w]
BF16 = [700.0, 1700.0]
FP8 = [700.0, 1700.0]
[tokens_per_s]
BF16 = [100.0, 190.0]
FP8 = [125.0, 237.5]
"""


class Device:
    """A trainer on a device of known speed, which tells its stage and obeys the choices."""

    def __init__(self, tmp_path, *, table=TABLE, speed=None, stage=None, n_steps=100, **control):
        control = {"controller": "stochastic", "slack": 2.0, **control}
        if table is not None:
            path = tmp_path / "table.toml"
            path.write_text(table)
            control["table"] = str(path)
        gears = {"allowed": ["BF16", "FP8"], "simulate_fp8": True}
        self.config = validate_config(
            {"carbon": {"recheck_s": 300.0, "control": control}, "gears": gears}
        )
        self.planned = PlannedRun(self.config, BEGAN_S)
        self.speed = speed or {Gear.BF16: 1.0, Gear.FP8: 1.25}
        self.stage = stage or TrainingStage(gears=BOTH, width=1)
        self.now_s, self.left, self.n_steps = BEGAN_S, n_steps, n_steps
        self.steps, self.series = StepRecord(), grid()
        self.ran: list[tuple[Gear, int, float]] = []
        self.choices = []

    def tick(self):
        number = self.series.index(self.now_s)
        past = Series(self.series.start_s, HOUR_S, self.series.values[: number + 1])
        seen = Seen(told(self.series, number), past=past)
        choice = self.planned.decide(self.now_s, seen, self.steps, self.left, 86400.0, self.stage)
        self.choices.append(choice)
        return choice

    def go(self, n=None):
        goal = 0 if n is None else self.left - n
        while self.left > goal:
            choice = self.tick()
            if choice.command is Command.PAUSE:
                self.now_s = choice.look_again_s
                continue
            gear = choice.gear or self.stage.gear or BOTH[0]
            width = choice.width or self.stage.width or 1
            step_s = STEP_S / self.speed[gear] / (1.0 if width == 1 else 1.9)
            self.ran.append((gear, width, self.series.at(self.now_s)))
            self.now_s, self.left = self.now_s + step_s, self.left - 1
            self.stage = replace(self.stage, gear=gear, width=width)
            if self.stage.low_steps_left is not None:
                low = self.stage.low_steps_left - (gear is Gear.FP8)
                self.stage = replace(self.stage, low_steps_left=low)
            self.steps.note_time(Ran.of(self.stage), step_s)
        return self

    def share(self, gear):
        return sum(g is gear for g, _, _ in self.ran) / len(self.ran)


def test_fp8_is_chosen_throughout_where_it_pays_and_nothing_limits_it(tmp_path):
    run = Device(tmp_path).go()
    assert run.share(Gear.FP8) > 0.9
    timed = run.choices[: 2 * TIMED_STEPS]
    assert [c.gear for c in timed] == [Gear.BF16] * TIMED_STEPS + [Gear.FP8] * TIMED_STEPS
    assert {c.why for c in timed} == {Why.TIMING}


@pytest.mark.parametrize(("fp8_w", "is_for_clean_hours"), [(760.0, True), (640.0, False)])
def test_under_a_cap_the_gear_that_draws_more_is_for_the_cleaner_hours(
    tmp_path, fp8_w, is_for_clean_hours
):
    # At equal power it would not matter in which of the hours that are run in.
    table = TABLE.replace("FP8 = [700.0,", f"FP8 = [{fp8_w},")
    stage = TrainingStage(gears=BOTH, width=1, low_steps_left=40.0)
    run = Device(tmp_path, table=table, stage=stage, low_share=0.4).go()
    assert 0.2 < run.share(Gear.FP8) <= 0.4
    low = np.mean([c for gear, _, c in run.ran if gear is Gear.FP8])
    high = np.mean([c for gear, _, c in run.ran if gear is Gear.BF16])
    assert (low < high) == is_for_clean_hours


def test_wider_is_chosen_in_the_cleaner_hours(tmp_path):
    stage = TrainingStage(gears=BOTH, width=1, widths=(1, 2))
    run = Device(tmp_path, stage=stage, slack=1.5).go()
    widths = {width for _, width, _ in run.ran}
    assert widths == {1, 2}
    wide = np.mean([c for _, width, c in run.ran if width == 2])
    narrow = np.mean([c for _, width, c in run.ran if width == 1])
    assert wide < narrow
    assert run.now_s <= BEGAN_S + 1.5 * 1.05 * 100 * STEP_S + STEP_S


FRUGAL = TABLE.replace("1700.0", "900.0")
"""A device on which two workers are better at any price, but for the change to them."""


def test_where_a_change_of_width_does_not_pay_the_clean_hours_are_run_in_all_the_same(tmp_path):
    # At the price of a token on two workers one would not run at all.
    stage = TrainingStage(gears=BOTH, width=1, widths=(1, 2))
    dear = Device(tmp_path, table=FRUGAL, stage=stage, width_change_s=4 * HOUR_S, slack=4.0)
    dear.go(2 * TIMED_STEPS)
    free = Device(tmp_path, table=FRUGAL, stage=stage, slack=4.0).go(2 * TIMED_STEPS)
    for run, width in ((dear, 1), (free, 2)):
        found = []
        for pick in (np.argmax, np.argmin):
            run.now_s = next_hour(run, pick)
            found.append(run.tick())
        assert [choice.command for choice in found] == [Command.PAUSE, Command.RUN]
        assert found[1].width == width


def next_hour(run, pick):
    """The next hour of the grid that comes first or last by its intensity within a day."""
    begin = run.series.index(run.now_s) + 1
    number = begin + int(pick(run.series.values[begin : begin + 24]))
    return run.series.start_s + HOUR_S * number


def test_a_change_of_width_is_paid_for_behind_a_pause(tmp_path):
    stage = TrainingStage(gears=BOTH, width=1, widths=(1, 2))
    run = Device(tmp_path, stage=stage, width_change_s=700.0).go(2 * TIMED_STEPS + 1)
    problem = run.planned._problem
    wide, narrow = TrainingAction(2, Gear.BF16), TrainingAction(1, Gear.BF16)
    assert problem.change_s(PAUSE, narrow) == problem.change_s(narrow, PAUSE) == 0.0
    assert problem.change_s(PAUSE, wide) == problem.change_s(narrow, wide) == 700.0


def test_a_run_does_not_wait_with_its_last_step(tmp_path):
    run = Device(tmp_path, slack=8.0).go(20)
    run.now_s, run.left = next_hour(run, np.argmax), 2
    # Two steps are more than a decision is about.
    run.planned._is_running = True
    assert run.tick().command is Command.PAUSE
    run.left, run.planned._is_running = 1, True
    last = run.tick()
    assert (last.command, last.why) == (Command.RUN, Why.ENDING)
    assert (last.gear, last.width) == (run.stage.gear, None)
    # One that stands still goes on standing: there is nothing to end.
    run.planned._is_running = False
    assert run.tick().command is Command.PAUSE


def test_a_simulated_gear_is_never_chosen_without_a_table(tmp_path):
    stage = TrainingStage(gears=BOTH, width=1, simulated=(Gear.FP8,))
    run = Device(tmp_path, table=None, stage=stage, speed={Gear.BF16: 1.0, Gear.FP8: 0.5}).go()
    assert run.share(Gear.FP8) == 0.0


def test_a_gear_that_may_not_be_taken_any_more_is_not_timed(tmp_path):
    stage = TrainingStage(gears=BOTH, width=1, low_steps_left=0.5)
    run = Device(tmp_path, stage=stage, low_share=0.005).go(10)
    assert run.share(Gear.FP8) == 0.0
    assert run.choices[TIMED_STEPS].why is not Why.TIMING


def test_without_a_table_each_gear_is_timed_first(tmp_path):
    run = Device(tmp_path, table=None).go(2 * TIMED_STEPS)
    assert [gear for gear, _, _ in run.ran] == [Gear.BF16] * TIMED_STEPS + [Gear.FP8] * TIMED_STEPS
    run.go(10)
    assert {gear for gear, _, _ in run.ran[2 * TIMED_STEPS :]} == {Gear.FP8}


def test_a_gear_that_turns_out_to_be_slow_is_left(tmp_path):
    # The table says 1.25 times as fast; on this device it is half as fast.
    run = Device(tmp_path, speed={Gear.BF16: 1.0, Gear.FP8: 0.5}).go()
    assert run.share(Gear.FP8) < 0.2


@settings(deadline=None, max_examples=15)
@given(slow=st.floats(0.4, 1.3), slack=st.sampled_from([1.0, 1.2, 2.0]))
def test_a_rehearsal_keeps_the_deadline_however_slow_the_simulation_is(
    tmp_path_factory, slow, slack
):
    stage = TrainingStage(gears=BOTH, width=1, simulated=(Gear.FP8,), low_steps_left=50.0)
    limit_s = slack * 100 * STEP_S * (0.5 + 0.5 / slow) * 1.3
    run = Device(
        tmp_path_factory.mktemp("rehearsal"), stage=stage, low_share=0.5, slack=None,
        deadline_in_s=limit_s, speed={Gear.BF16: 1.0, Gear.FP8: slow},
    ).go()  # fmt: skip
    longest_s = STEP_S / min(slow, 1.0)
    assert run.now_s - BEGAN_S <= limit_s + longest_s


def test_a_retired_gear_is_planned_without(tmp_path):
    run = Device(tmp_path).go(20)
    run.stage = replace(run.stage, gears=(Gear.BF16,))
    run.go(20)
    assert {gear for gear, _, _ in run.ran[20:]} == {Gear.BF16}
    run.stage = replace(run.stage, gears=BOTH)
    run.go()
    assert Gear.FP8 in {gear for gear, _, _ in run.ran[40:]}


def test_a_resume_knows_the_times_of_before(tmp_path):
    first = Device(tmp_path).go(30)
    second = StepRecord()
    second.recall(first.steps.memory())
    assert second.memory() == first.steps.memory()
    assert live_plan(second, first.stage, None, 0.05).is_like(
        live_plan(first.steps, first.stage, None, 0.05)
    )


@pytest.mark.parametrize(
    "memory",
    [None, 3, [4], [{"gear": "FP9"}], [{"gear": "FP8", "step_s": -1.0, "n": 3, "width": 1}]],
)
def test_a_broken_memory_of_times_is_none(memory):
    steps = StepRecord()
    steps.recall(memory)
    assert steps.memory() == []


def test_when_nobody_decides_any_more_the_deadline_s_pace_is_taken_late_enough(tmp_path):
    run = Device(tmp_path).go(30)
    assert run.planned.pressed(run.now_s, run.steps, run.left, run.stage) == (None, None)
    late_s = run.now_s + 2.0 * 100 * STEP_S
    assert run.planned.pressed(late_s, run.steps, run.left, run.stage) == (Gear.FP8, None)
    wide = replace(run.stage, widths=(1, 2))
    assert run.planned.pressed(late_s, run.steps, run.left, wide) == (Gear.FP8, 2)


def test_a_width_that_turns_out_slower_is_not_planned_with(tmp_path):
    steps = StepRecord()
    stage = TrainingStage(gears=(Gear.BF16,), gear=Gear.BF16, width=1, widths=(1, 2))
    for width, step_s in ((1, 1.0), (2, 1.5)):
        steps.note_time(Ran(Gear.BF16, width), step_s)
    assert live_plan(steps, stage, None, 0.05).table.widths == (1,)


def test_a_table_that_lacks_a_gear_is_refused_in_one_line(tmp_path):
    bad = "\n".join(line for line in TABLE.splitlines() if not line.startswith("FP8"))
    with pytest.raises(ConfigError, match=r"carbon\.control\.table = .*FP8"):
        Device(tmp_path, table=bad)


def test_a_time_or_a_power_of_nothing_is_no_reading():
    steps = StepRecord()
    steps.note_time(Ran(), 0.0)
    steps.note_power(Ran(), 0.0)
    assert (steps.n, steps.step_s, steps.power_w(Ran())) == (0, None, None)


def test_nothing_is_planned_before_a_step_is_timed():
    with pytest.raises(ValueError, match="step"):
        live_plan(StepRecord(), TrainingStage(), None, 0.05)


def test_a_rehearsal_does_not_go_by_which_gear_stands_first(tmp_path):
    path = tmp_path / "table.toml"
    path.write_text(TABLE)
    shape = read_table(path)
    steps = StepRecord()
    for gear, step_s in ((Gear.BF16, 1.0), (Gear.FP8, 1.6)):
        steps.note_time(Ran(gear, 1), step_s)
    found = {}
    for gears in (BOTH, BOTH[::-1]):
        stage = TrainingStage(
            gears=gears, gear=Gear.BF16, simulated=(Gear.FP8,), low_steps_left=5.0,
            width=1, widths=(1, 2),
        )  # fmt: skip
        plan = live_plan(steps, stage, shape, 0.0, 10)
        found[gears] = [
            plan.step_tokens / table.rate(TrainingAction(width, gear))
            for table in (plan.table, plan.clock)
            for gear in BOTH
            for width in (1, 2)
        ]
    assert found[BOTH[::-1]] == pytest.approx(found[BOTH])

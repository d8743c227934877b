"""The control step of a live elastic training takes the decisions of the simulator."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from ecorl.carbon.series import Series
from ecorl.control import Command, Gear, GearChoice, Why
from ecorl.controllers.catalogue import build
from ecorl.controllers.problem.table import GearTable, TrainingAction
from ecorl.controllers.problem.training import Progress, TrainingProblem
from ecorl.controllers.protocol import Seen
from ecorl.controllers.replay.knowledge import Knowledge
from ecorl.controllers.replay.playing import play
from ecorl.kinds import Provenance
from ecorl.runtime.control.stepwise import StepwiseControl
from tests.unit.runtime.control.test_planned import BEGAN_S, HOUR_S, grid

pytest.importorskip("torch")

from ecorl.trainer.elastic.records import ElasticOptions
from ecorl.trainer.elastic.steering import Bearing, Steering

N_STEPS = 240
STEPS_AN_HOUR = {(Gear.BF16, 1): 4, (Gear.BF16, 2): 7, (Gear.FP8, 1): 5, (Gear.FP8, 2): 9}
"""Whole steps an epoch, so that both ways come to the same progress at its end."""


def problem_of(low_share):
    powers = {(Gear.BF16, 1): 500.0, (Gear.BF16, 2): 1100.0}
    powers |= {(Gear.FP8, 1): 560.0, (Gear.FP8, 2): 1250.0}

    def rows(values, per_s=1.0):
        return np.array([[values[g, w] / per_s for w in (1, 2)] for g in (Gear.BF16, Gear.FP8)])

    table = GearTable(
        (Gear.BF16, Gear.FP8), (1, 2), rows(powers), rows(STEPS_AN_HOUR, HOUR_S),
        Provenance.MODELLED, "a device of this test's own",
    )  # fmt: skip
    return TrainingProblem(
        table, N_STEPS, BEGAN_S, BEGAN_S + 6 * 86400.0, epoch_s=HOUR_S, low_share=low_share
    )


def live(control, knowledge, problem):
    """Plays the driver of an elastic training, whose steps take the time of the table."""
    faults = []
    steering = Steering(
        control, 1, ElasticOptions(max_width=2), lambda *fault: faults.append(fault)
    )
    now_s, done, widths, choices = problem.start_s, 0, [], []
    while done < N_STEPS:
        heading = steering.hear(Bearing(now_s, done, N_STEPS - done, None, 1))
        if not choices or choices[-1] is not control.latest:
            choices.append(control.latest)
        if heading.width == 0:
            now_s = control.latest.look_again_s
            continue
        widths.append((heading.gear, heading.width))
        done += 1
        now_s += HOUR_S / STEPS_AN_HOUR[heading.gear, heading.width]
        if abs(now_s - control.latest.look_again_s) < 1e-3:
            now_s = control.latest.look_again_s  # sums of parts of an hour
    assert faults == []
    return choices, widths


CASES = [
    *((name, 1.0) for name in ("stochastic", "receding", "dual", "carbonscaler", "soft-q")),
    # soft-q spends the whole cap: the simulator then cuts an epoch short, and steps are whole.
    *((name, 0.3) for name in ("stochastic", "receding", "dual", "carbonscaler")),
]


@pytest.mark.parametrize(("name", "low_share"), CASES)
def test_the_same_trace_brings_the_same_decisions_in_both(name, low_share):
    problem = problem_of(low_share)
    series = grid(3)
    simulated = []
    play(
        build(name, problem, seed=1), problem, Knowledge(series),
        watch=lambda _now_s, choice, _progress: simulated.append(choice),
    )  # fmt: skip
    knowledge = Knowledge(series)
    control = StepwiseControl(build(name, problem, seed=1), problem, knowledge.at, 1.0)
    choices, widths = live(control, knowledge, problem)
    assert choices == simulated
    assert len(widths) == N_STEPS
    assert {c.command for c in choices} == {Command.RUN, Command.PAUSE}
    if low_share < 1.0:
        assert sum(gear is Gear.FP8 for gear, _ in widths) <= 0.3 * N_STEPS + 9


def test_an_epoch_s_choice_holds_until_it_is_over():
    problem, knowledge = problem_of(1.0), Knowledge(grid(3))
    control = StepwiseControl(build("stochastic", problem), problem, knowledge.at, 1.0)
    first = control.decide(problem.start_s, 0, N_STEPS)
    assert control.decide(problem.start_s + 0.9 * HOUR_S, 3, N_STEPS - 3) is first
    assert control.decide(problem.start_s + HOUR_S, 4, N_STEPS - 4) is not first


class Low:
    """Always wants low precision, and remembers how often it was asked."""

    name, n = "low", 0

    def decide(self, now_s, seen):
        self.n += 1
        self.seen = seen
        told = "a test's"
        return GearChoice(
            now_s, Command.RUN, Why.PRICED, self.name, told, now_s + HOUR_S, width=1, gear=Gear.FP8
        )

    def memory(self):
        return {"n": self.n}

    def recall(self, memory):
        self.n = memory["n"]


def test_a_resume_knows_how_much_of_the_cap_is_used_and_what_was_waited():
    problem, knowledge = problem_of(0.3), Knowledge(grid(3))
    first = StepwiseControl(Low(), problem, knowledge.at, 1.0)
    first.decide(problem.start_s, 0, N_STEPS)
    first.decide(problem.start_s + 0.5 * HOUR_S, 58, N_STEPS - 58)
    memory = json.loads(json.dumps(first.memory() | {"waited_s": 7.0}))
    low = Low()
    second = StepwiseControl(low, problem, knowledge.at, 1.0)
    second.decide(problem.start_s, 0, N_STEPS)  # before it is known what was done
    second.recall(memory)
    # Steps that were committed after the memory are of what was chosen last.
    second.decide(problem.start_s + 0.6 * HOUR_S, 60, N_STEPS - 60)
    assert low.seen.progress.low_tokens_left == pytest.approx(0.3 * N_STEPS - 60)
    assert low.seen.progress.action == TrainingAction(1, Gear.FP8)
    assert (low.seen.waited_s, low.n) == (7.0, 2)


def test_a_training_that_begins_anew_has_used_nothing_of_its_cap():
    problem, low = problem_of(0.3), Low()
    control = StepwiseControl(low, problem, Knowledge(grid(3)).at, 1.0)
    control.decide(problem.start_s, 0, N_STEPS)
    control.decide(problem.start_s + 0.5 * HOUR_S, 60, N_STEPS - 60)
    control.recall({})
    control.decide(problem.start_s + HOUR_S, 0, N_STEPS)
    assert low.seen.progress.low_tokens_left == pytest.approx(0.3 * N_STEPS)


@pytest.mark.parametrize(
    "memory", [{"n_done": "x", "low_tokens": -1}, {"width": 2.5, "gear": "FP9", "waited_s": None}]
)
def test_what_cannot_be_read_of_a_memory_is_as_at_the_beginning(memory):
    problem, low = problem_of(0.3), Low()
    control = StepwiseControl(low, problem, Knowledge(grid(3)).at, 1.0)
    control.recall(memory)
    control.decide(problem.start_s, 0, N_STEPS)
    assert low.seen.progress.low_tokens_left == pytest.approx(0.3 * N_STEPS)


def test_the_grid_is_known_up_to_now_alone():
    series = grid(3)
    problem, seen = problem_of(1.0), []
    knowledge = Knowledge(series)

    def look(now_s):
        seen.append(knowledge.at(now_s))
        return seen[-1]

    control = StepwiseControl(build("stochastic", problem), problem, look, 1.0)
    control.decide(problem.start_s + 5 * HOUR_S, 0, N_STEPS)
    (view,) = seen
    assert isinstance(view.past, Series)
    assert view.past.end_s <= problem.start_s + 6 * HOUR_S


def test_an_ablation_keeps_to_its_actions_after_the_budget_has_forced_another():
    problem = replace(problem_of(1.0), width_change_s=1800.0)
    knowledge, gears = Knowledge(grid(3)), set()
    for hour in range(24):
        now_s = problem.start_s + hour * HOUR_S
        view = knowledge.at(now_s)
        # Forced before: wide, and in the gear that it is not to take.
        progress = Progress(0.5 * N_STEPS, 0.5 * N_STEPS, TrainingAction(2, Gear.FP8))
        seen = Seen(view.intensity, view.forecast, view.past, progress)
        gears.add(build("gear-fixed", problem).decide(now_s, seen).gear)
    assert Gear.FP8 not in gears
    assert Gear.BF16 in gears

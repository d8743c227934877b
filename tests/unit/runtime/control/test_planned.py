"""A controller in a live run: it pauses in dirty hours, and is over by the deadline."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ecorl.carbon.series import Series
from ecorl.config import validate_config
from ecorl.config.carbon import ControllerName
from ecorl.control import Command, TrainingStage, Why
from ecorl.controllers.catalogue import CONTROLLERS
from ecorl.controllers.protocol import Seen
from ecorl.controllers.replay.knowledge import told
from ecorl.errors import ConfigError
from ecorl.runtime.control.planned import TIMED_STEPS, PlannedRun
from ecorl.runtime.control.step_record import Ran, StepRecord

HOUR_S = 3600.0
BEGAN_S = 1_700_006_400.0  # a midnight
PAST_DAYS, AHEAD_DAYS = 10, 30
STEP_S = 600.0


def grid(seed=0):
    """Hours of a grid that is dirty by day, from ten days before the run on."""
    hours = np.arange((PAST_DAYS + AHEAD_DAYS) * 24)
    wave = 300.0 + 150.0 * np.sin(2 * np.pi * hours / 24)
    noise = np.random.default_rng(seed).normal(0.0, 15.0, len(hours))
    return Series(BEGAN_S - PAST_DAYS * 86400.0, HOUR_S, wave + noise)


def config(**control):
    found = {"controller": "stochastic", **control}
    return validate_config({"carbon": {"recheck_s": 300.0, "control": found}})


class Played:
    """A run of some steps, as a trainer makes them."""

    def __init__(self, settings, n_steps=100, step_s=STEP_S, series=None, memory=None):
        self.planned = PlannedRun(settings, BEGAN_S, memory)
        self.series = grid() if series is None else series
        self.now_s, self.left, self.step_s = BEGAN_S, n_steps, step_s
        self.power_w: float | None = 500.0
        self.stage = TrainingStage()
        self.steps = StepRecord()
        self.choices, self.ran_at = [], []

    def tick(self):
        number = self.series.index(self.now_s)
        past = Series(self.series.start_s, HOUR_S, self.series.values[: number + 1])
        seen = Seen(told(self.series, number), past=past)
        if self.power_w is not None:
            self.steps.note_power(Ran.of(self.stage), self.power_w)
        choice = self.planned.decide(self.now_s, seen, self.steps, self.left, 86400.0, self.stage)
        self.choices.append(choice)
        return choice

    def go(self, n=None):
        """Play until all steps are made, or some of them."""
        goal = 0 if n is None else self.left - n
        while self.left > goal:
            choice = self.tick()
            if choice.command is Command.PAUSE:
                assert choice.look_again_s > self.now_s
                self.now_s = choice.look_again_s
                continue
            step_s = self.step_s() if callable(self.step_s) else self.step_s
            self.ran_at.append(self.now_s)
            self.now_s += step_s
            self.steps.note_time(Ran.of(self.stage), step_s)
            self.left -= 1
        return self

    def mean_intensity(self):
        return np.mean([self.series.at(t_s) for t_s in self.ran_at])


def test_steps_are_timed_first_and_then_dirty_hours_are_waited_out():
    run = Played(config(slack=3.0)).go()
    assert [c.why for c in run.choices[:TIMED_STEPS]] == [Why.TIMING] * TIMED_STEPS
    assert Command.PAUSE in {c.command for c in run.choices}
    assert run.mean_intensity() < 0.85 * run.series.values[-AHEAD_DAYS * 24 :].mean()
    taken_s = run.now_s - BEGAN_S
    assert taken_s <= 3.0 * 1.05 * 100 * STEP_S
    last = run.choices[-1]
    assert last.controller == "stochastic"
    assert last.width is last.gear is last.price_g_per_token is None
    assert last.price_g_per_step > 0


def test_a_power_that_is_known_late_gives_a_price_from_then_on():
    runs = [Played(config(slack=3.0)) for _ in range(2)]
    early, late = runs
    late.power_w = None
    for run in runs:
        run.go(20)
    assert {c.price_g_per_step for c in late.choices} == {None}
    late.power_w = 500.0
    for run in runs:
        run.go(1)
    assert late.ran_at == early.ran_at
    assert late.choices[-1].price_g_per_step == pytest.approx(early.choices[-1].price_g_per_step)


def test_without_slack_nothing_is_waited_for():
    run = Played(config(slack=1.0)).go()
    assert {c.command for c in run.choices} == {Command.RUN}


@settings(deadline=None, max_examples=20)
@given(
    slack=st.sampled_from([1.1, 1.5, 4.0]),
    uneven=st.floats(0.0, 0.05),
    seed=st.integers(0, 50),
    name=st.sampled_from(["stochastic", "receding", "suspend", "dual", "carl", "race"]),
)
def test_the_deadline_is_kept_while_steps_last_as_long_as_reserved(slack, uneven, seed, name):
    rng = np.random.default_rng(seed)
    settings_ = config(controller=name, deadline_in_s=slack * 1.06 * 80 * STEP_S, reserve=0.06)
    longest_s = STEP_S * (1.0 + uneven)
    run = Played(
        settings_, 80, lambda: rng.uniform(2 * STEP_S - longest_s, longest_s), grid(seed)
    ).go()
    assert run.now_s - BEGAN_S <= settings_.carbon.control.deadline_in_s + longest_s


def test_a_deadline_that_cannot_be_kept_is_told_at_once(caplog, snapshot):
    with caplog.at_level(logging.WARNING):
        run = Played(config(deadline_in_s=20 * STEP_S)).go()
    assert {c.command for c in run.choices} == {Command.RUN}
    (line,) = caplog.messages
    snapshot(line)
    assert run.choices[-1].why is Why.SHIELDED


def test_a_deadline_of_the_calendar(caplog):
    end = datetime.fromtimestamp(BEGAN_S + 5 * 86400.0, UTC)
    run = Played(config(deadline=end)).go()
    assert run.now_s <= end.timestamp() + STEP_S
    assert Command.PAUSE in {c.command for c in run.choices}


@pytest.mark.parametrize("name", ["stochastic", "dual", "soft-q", "carl"])
def test_a_resume_goes_on_with_deadline_and_memory(name):
    settings_ = config(controller=name, slack=2.0)
    whole = Played(settings_).go()
    first = Played(settings_).go(40)
    memory = json.loads(json.dumps(first.planned.memory))
    second = Played(settings_, first.left, memory=memory)
    second.now_s, second.steps = first.now_s, first.steps
    second.planned._is_running = first.planned._is_running
    second.go()
    assert memory["deadline_s"] == whole.planned.memory["deadline_s"]
    assert second.now_s <= memory["deadline_s"] + STEP_S
    if name == "stochastic":
        assert [*first.ran_at, *second.ran_at] == whole.ran_at


def test_where_nothing_is_known_of_the_grid_training_runs():
    run = Played(config(slack=3.0))
    for _ in range(10):
        run.steps.note_time(Ran(), STEP_S)
        choice = run.planned.decide(run.now_s, Seen(None), run.steps, 50, 86400.0)
        assert (choice.command, choice.price_g_per_step) == (Command.RUN, None)
    assert choice.why is Why.UNKNOWN


def test_a_trainer_that_does_not_say_how_much_is_left_runs():
    run = Played(config(slack=3.0))
    run.left = None
    assert run.tick().why is Why.TIMING


def test_prices_that_cannot_be_read_name_their_key(tmp_path):
    path = tmp_path / "prices.csv"
    path.write_text("time,price\n2022-01-01T00:00Z,-1\n2022-01-01T01:00Z,2\n")
    with pytest.raises(ConfigError, match=r"carbon\.control\.spot_prices .*prices\.csv"):
        PlannedRun(config(controller="spot", slack=2.0, spot_prices=str(path)), BEGAN_S)


@pytest.mark.parametrize(
    ("control", "key"),
    [
        ({"controller": "stochastic"}, "carbon.control.controller"),
        ({"deadline_in_s": 5.0, "slack": 2.0}, "carbon.control.slack"),
        ({"controller": "spot", "slack": 2.0}, "carbon.control.spot_prices"),
        ({"controller": "best", "slack": 2.0}, "carbon.control.controller"),
        ({"slack": 0.5}, "carbon.control.slack"),
    ],
)
def test_mistakes_name_their_key(control, key):
    with pytest.raises(ConfigError) as caught:
        validate_config({"carbon": {"control": control}})
    assert caught.value.key == key


def test_a_controller_and_a_threshold_are_not_both_given():
    carbon = {"threshold_g_per_kwh": 300.0, "control": {"controller": "race", "slack": 2.0}}
    with pytest.raises(ConfigError, match=r"carbon\.control\.controller"):
        validate_config({"carbon": carbon})


def test_all_names_of_the_config_are_controllers():
    assert set(get_args(ControllerName)) <= set(CONTROLLERS)

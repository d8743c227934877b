"""What a governor learns of gears: which of them drew a power, and which took a time."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from ecorl.config import validate_config
from ecorl.control import Command, Gear, GearChoice, TrainingStage, Why
from ecorl.ledger import LEDGER_FILE, Ledger
from ecorl.runtime.control import governor as governing
from ecorl.runtime.control.governor import Governor
from ecorl.runtime.control.step_record import Ran

BOTH = (Gear.BF16, Gear.FP8)
WATTS = {Gear.BF16: 700.0, Gear.FP8: 300.0}


class Run:
    """A governor whose trainer logs each step at its end, as a machine's clock has it."""

    def __init__(self, folder, monkeypatch):
        self.config = validate_config(
            {
                "carbon": {"control": {"controller": "stochastic", "slack": 2.0}},
                "gears": {"allowed": ["BF16", "FP8"], "simulate_fp8": True},
            }
        )
        self.ledger = Ledger.create(folder / LEDGER_FILE, run_id="r", config_toml="", meta={})
        self.governor = Governor(self.config, self.ledger, lambda *fault: None)
        self.now_s, self.drawn_j = 1000.0, 0.0
        self.stage = TrainingStage(gears=BOTH)
        self.command = Command.RUN
        clock = SimpleNamespace(monotonic=lambda: self.now_s)
        monkeypatch.setattr(governing, "time", clock)
        monkeypatch.setattr(governing, "decide", self.decide)

    def decide(self, rule, now_s, seen):
        return GearChoice(now_s, self.command, Why.UNKNOWN, "test", "a test's", now_s)

    def tick(self):
        self.governor.tick(10, stage=self.stage)

    def passes(self, time_s, power_w):
        self.now_s += time_s
        self.drawn_j += power_w * time_s

    def log(self):
        self.governor.emitted(self.drawn_j)

    def step(self, gear, *, time_s=1.0, is_redone=False, logs=True):
        self.tick()
        self.passes(time_s, WATTS[gear])
        if logs:
            self.log()
        # What the trainer does between its log and the next decision.
        self.passes(0.001, 100.0)
        self.stage = TrainingStage(gears=BOTH, gear=gear, is_redone=is_redone)

    def power_w(self, gear):
        return self.governor._steps.power_w(Ran(gear))

    def time_s(self, gear):
        return self.governor._steps.time_s(Ran(gear))


@pytest.fixture
def run(tmp_path, monkeypatch):
    made = Run(tmp_path, monkeypatch)
    yield made
    made.governor.close()
    made.ledger.close()


@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_power_counts_to_the_gear_in_which_it_was_drawn(run, n):
    for _ in range(3):
        for gear in BOTH:
            for _ in range(n):
                run.step(gear)
    run.tick()
    assert run.power_w(Gear.BF16) == pytest.approx(700.0, rel=0.01)
    assert run.power_w(Gear.FP8) == pytest.approx(300.0, rel=0.01)


def test_what_was_drawn_over_two_gears_is_neither_s(run):
    run.step(Gear.BF16)
    run.step(Gear.BF16)
    for gear in (Gear.FP8, Gear.BF16, Gear.FP8, Gear.BF16):
        run.step(gear, logs=gear is Gear.BF16)
    run.tick()
    assert run.power_w(Gear.BF16) == pytest.approx(700.0, rel=0.01)
    assert run.power_w(Gear.FP8) is None


def test_a_log_of_many_steps_gives_the_power_of_their_gear(run):
    run.step(Gear.FP8)
    for number in range(100):
        run.step(Gear.BF16, logs=number == 99)
    run.tick()
    assert run.power_w(Gear.BF16) == pytest.approx(700.0, rel=0.01)


def test_what_was_drawn_in_a_pause_is_no_gear_s(run):
    run.step(Gear.BF16)
    run.step(Gear.BF16)
    run.command = Command.PAUSE
    run.tick()
    run.passes(5.0, 50.0)
    run.log()
    run.command = Command.RUN
    run.tick()
    run.step(Gear.BF16)
    run.tick()
    assert run.power_w(Gear.BF16) == pytest.approx(700.0, rel=0.01)


def test_where_readings_are_missing_nothing_is_made_up(run):
    run.step(Gear.BF16)
    run.tick()
    run.passes(1.0, 700.0)
    run.governor.emitted(None)
    run.step(Gear.BF16)
    run.tick()
    assert run.power_w(Gear.BF16) is None


def test_a_step_in_two_gears_is_a_step_s_time_and_neither_gear_s(run):
    run.step(Gear.BF16)
    for _ in range(2):
        run.step(Gear.BF16, time_s=3.0, is_redone=True)
    run.tick()
    assert run.time_s(Gear.BF16) == pytest.approx(1.0, rel=0.01)
    assert run.governor._steps.step_s == pytest.approx(3.0, rel=0.01)
    assert run.power_w(Gear.BF16) is None

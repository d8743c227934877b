"""The grid of the demo with everything: what happens on machines of any speed, and when it ends."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace

import pytest

from ecorl.carbon.building import build_chains
from ecorl.carbon.outlook import series_of
from ecorl.config import load_config
from ecorl.control import Command, Gear, TrainingStage, Why
from ecorl.controllers.planning.tables import read_table
from ecorl.controllers.protocol import Seen
from ecorl.records import Provenance
from ecorl.runtime.control.planned import PlannedRun
from ecorl.runtime.control.standing import POLL_S
from ecorl.runtime.control.step_record import Ran, StepRecord

BEGAN_S = 1.8e9
FP8 = 1.7
"""What a step in FP8 takes over one in BF16: it is simulated."""
STEADY = 3
"""Steps in a row that want another number of processes before it is begun."""


@dataclass
class Machine:
    """A machine that trains the demo.

    Attributes:
        step_s: time of a step in BF16 with one process, s.
        two: time of a step with two processes over that with one.
        load_s: until other processes stand by, s.
        change_s: without training, when they take over, s.
    """

    step_s: float
    two: float
    load_s: float
    change_s: float
    now_s: float = BEGAN_S + 2.5
    ran: list[tuple[Gear, int]] = field(default_factory=list)
    pauses: list[list[float]] = field(default_factory=list)
    whys: set[Why] = field(default_factory=set)

    def __post_init__(self):
        self.config = config = load_config("demo-all")
        self.chain = build_chains(config, BEGAN_S).average
        self.chain.recall(BEGAN_S)
        self.planned, self.steps = PlannedRun(config, BEGAN_S), StepRecord()
        self.left = config.trainer.steps
        self.stage = TrainingStage(
            gears=config.gears.allowed, simulated=(Gear.FP8,), width=1,
            low_steps_left=config.carbon.control.low_share * self.left,
            widths=config.trainer.widths,
        )  # fmt: skip
        self.wish, self.since_s, self.wished, self.n_wished = 1, BEGAN_S, 1, 0

    def go(self):
        """Train to the end."""
        feed = self.chain.feeds[0]
        while self.left:
            value = self.chain.ask(self.now_s).value
            assert value.provenance is Provenance.REPLAYED
            past = series_of(self.chain.past(feed.info.name), feed.info.interval_s)
            seen, day_s = Seen(value, past=past), feed.info.day_s
            choice = self.planned.decide(self.now_s, seen, self.steps, self.left, day_s, self.stage)
            self.whys.add(choice.why)
            if choice.command is Command.PAUSE:
                self.pause()
            else:
                self.step(choice)
        return self

    def pause(self):
        if not self.pauses or self.pauses[-1][1] != self.now_s:
            self.pauses.append([self.now_s, self.now_s])
        self.now_s += POLL_S
        self.pauses[-1][1] = self.now_s

    def step(self, choice):
        width = choice.width or self.stage.width
        self.n_wished = self.n_wished + 1 if width == self.wished else 1
        self.wished = width
        if self.n_wished >= STEADY and width != self.wish:
            self.wish, self.since_s = width, self.now_s
        is_ready = self.wish != self.stage.width and self.now_s - self.since_s > self.load_s
        gear = choice.gear or self.stage.gear or self.stage.gears[0]
        if gear.is_low and self.stage.low_steps_left < 1:
            gear = self.stage.gears[0]
        time_s = self.step_s * (FP8 if gear.is_low else 1.0)
        time_s *= self.two if self.stage.width == 2 else 1.0
        low = self.stage.low_steps_left - gear.is_low
        self.stage = replace(self.stage, gear=gear, low_steps_left=low)
        self.steps.note_time(Ran.of(self.stage), time_s)
        self.now_s, self.left = self.now_s + time_s, self.left - 1
        self.ran.append((gear, self.stage.width))
        if is_ready and self.left:
            self.change()

    def change(self):
        """Hand over to the processes that stand by: they know what the record tells."""
        self.now_s += self.change_s
        memory, times = self.planned.memory, self.steps.memory()
        self.planned = PlannedRun(self.config, BEGAN_S, memory, self.change_s)
        self.steps = StepRecord()
        self.steps.recall(times)
        self.stage = replace(self.stage, width=self.wish)
        self.wished, self.n_wished = self.wish, 0

    @property
    def end_s(self):
        return self.now_s - BEGAN_S

    @property
    def widths(self):
        return [width for width, _ in itertools.groupby(width for _, width in self.ran)]


def machines():
    """From three times as fast as two usual cores to half as fast; two processes may be slower."""
    for step_s in (0.08, 0.12, 0.16, 0.2, 0.25, 0.3, 0.4, 0.5):
        for two in (0.8, 1.0, 1.3):
            yield Machine(
                step_s, two, load_s=min(45 * step_s, 14.0), change_s=min(30 * step_s, 9.0)
            )


@pytest.mark.parametrize("machine", machines(), ids=lambda m: f"{m.step_s:g} s x {m.two:g}")
def test_on_any_machine_it_pauses_shifts_changes_its_width_and_is_over_in_time(machine):
    machine.go()
    assert machine.pauses[0][0] < BEGAN_S + 10.0
    assert machine.pauses[0][1] - machine.pauses[0][0] > 5.0
    assert {gear for gear, _ in machine.ran} == {Gear.BF16, Gear.FP8}
    assert machine.widths in ([1, 2], [1, 2, 1])
    assert Why.PRICED in machine.whys
    low = sum(gear is Gear.FP8 for gear, _ in machine.ran)
    assert low <= machine.config.carbon.control.low_share * len(machine.ran)
    # What a change takes on a machine is known after the first one: it may be late by as much.
    deadline_s = machine.config.carbon.control.deadline_in_s
    assert machine.end_s <= deadline_s + machine.change_s + machine.step_s


def test_a_machine_that_is_too_slow_runs_without_a_pause_and_is_over_a_little_later(
    caplog, snapshot
):
    machine = Machine(1.0, 1.3, load_s=14.0, change_s=9.0).go()
    snapshot("\n".join(caplog.messages))
    assert machine.end_s < 170.0


def test_nothing_is_waited_for_once_the_clean_hours_have_come():
    machine = Machine(0.25, 1.3, load_s=12.0, change_s=7.0).go()
    longest_s = max(end_s - start_s for start_s, end_s in machine.pauses[1:])
    assert longest_s < 10.0  # one hour of its grid is dirty


def test_the_machine_that_is_planned_for_is_labelled_as_made_up():
    table = read_table(load_config("demo-all").carbon.control.table)
    assert table.provenance is Provenance.MODELLED
    assert "made up" in table.source

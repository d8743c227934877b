"""The demo's grid and device: gears and widths are shifted, and training is over in time."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from ecorl.carbon.building import build_chains
from ecorl.carbon.outlook import series_of
from ecorl.config import load_config
from ecorl.control import Command, Gear, TrainingStage
from ecorl.controllers.planning.tables import read_table
from ecorl.controllers.protocol import Seen
from ecorl.records import Provenance
from ecorl.runtime.control.planned import PlannedRun
from ecorl.runtime.control.step_record import Ran, StepRecord

BEGAN_S = 1.8e9
TIMES = {(Gear.BF16, 1): 1.0, (Gear.BF16, 2): 0.7, (Gear.FP8, 1): 1.6, (Gear.FP8, 2): 1.15}
"""Time of a step, as a multiple of that in BF16 with one process; FP8 is simulated."""
CHANGE = 8
"""What a change of the width takes, in steps."""


def played(step_s):
    """Play the demo on a machine of some speed; a width is there some time after it is wanted."""
    config = load_config("demo-carbon")
    chain, planned = build_chains(config, BEGAN_S).average, PlannedRun(config, BEGAN_S)
    chain.recall(BEGAN_S)
    feed, steps = chain.feeds[0], StepRecord()
    n_steps = config.trainer.steps
    low = config.carbon.control.low_share * n_steps
    gears, widths = config.gears.allowed, config.trainer.widths
    stage = TrainingStage(
        gears=gears, simulated=(Gear.FP8,), low_steps_left=low, width=1, widths=widths
    )
    now_s, left, wanted, since_s, ran = BEGAN_S + 0.5, n_steps, 1, BEGAN_S, []
    while left:
        value = chain.ask(now_s).value
        assert value.provenance is Provenance.REPLAYED
        assert "made up" in value.factors
        past = series_of(chain.past(feed.info.name), feed.info.interval_s)
        choice = planned.decide(now_s, Seen(value, past=past), steps, left, feed.info.day_s, stage)
        if choice.command is Command.PAUSE:
            now_s = choice.look_again_s
            continue
        if choice.width and choice.width != wanted:
            wanted, since_s = choice.width, now_s
        if wanted != stage.width and now_s - since_s > 55 * step_s:
            stage, now_s = replace(stage, width=wanted), now_s + CHANGE * step_s
        gear = choice.gear or stage.gear or gears[0]
        if gear.is_low and stage.low_steps_left < 1:
            gear = gears[0]
        time_s = step_s * TIMES[gear, stage.width]
        stage = replace(stage, gear=gear, low_steps_left=stage.low_steps_left - gear.is_low)
        steps.note_time(Ran.of(stage), time_s)
        now_s, left = now_s + time_s, left - 1
        ran.append((gear, stage.width))
    deadline_s = planned.memory["deadline_s"]
    return ran, now_s, deadline_s


@pytest.mark.parametrize("step_s", [0.12, 0.14, 0.16, 0.18, 0.2])
def test_it_shifts_gears_and_widths_and_is_over_in_time(step_s):
    ran, end_s, deadline_s = played(step_s)
    shifts = sum(a[0] is not b[0] for a, b in pairwise(ran))
    assert shifts >= 10
    assert sum(gear is Gear.FP8 for gear, _ in ran) <= 0.4 * len(ran)
    widths = [ran[0][1], *(b for (_, a), (_, b) in pairwise(ran) if a != b)]
    assert widths == [1, 2, 1]
    assert end_s <= deadline_s + step_s


@pytest.mark.parametrize("step_s", [0.05, 0.08, 0.1])
def test_faster_machines_keep_the_deadline_too(step_s):
    ran, end_s, deadline_s = played(step_s)
    assert {gear for gear, _ in ran} == {Gear.BF16, Gear.FP8}
    # What a change takes on a machine is known only after the first one.
    assert end_s <= deadline_s + (CHANGE + 2) * step_s


@pytest.mark.parametrize("step_s", [0.3, 1.0])
def test_machines_that_are_too_slow_for_the_deadline_run_without_a_pause_and_say_so(
    step_s, caplog, snapshot
):
    ran, _, _ = played(step_s)
    assert len(ran) == load_config("demo-carbon").trainer.steps
    snapshot("\n".join(caplog.messages))


def test_the_device_is_labelled_as_made_up():
    table = read_table(load_config("demo-carbon").carbon.control.table)
    assert table.provenance is Provenance.MODELLED
    assert "made up" in table.source

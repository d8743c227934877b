"""The step after a switch, and memory by gradient accumulation."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("torchao")

from benchmarks.studies.trainer import accumulation, switching
from benchmarks.studies.trainer.accumulation import (
    GLOBAL_ROWS,
    AccumulatedTraining,
    accumulated_trainings,
    accumulation_figure,
    saved_share,
)
from benchmarks.studies.trainer.geared_steps import GearedSteps
from benchmarks.studies.trainer.switching import SwitchTimes, switch_figure, switch_times
from ecorl.control import Gear


def test_each_second_block_of_steps_is_in_the_other_gear(monkeypatch):
    taken = []
    plain = GearedSteps.gradients

    def gradients(self, rows, gear):
        taken.append(gear)
        return plain(self, rows, gear)

    monkeypatch.setattr(GearedSteps, "gradients", gradients)
    (found,) = switch_times(60.0, n_switches=3, pairs=((Gear.BF16, Gear.FP32),))
    between = switching.STEPS_BETWEEN
    blocks = [Gear.BF16] * between + [Gear.FP32] * between + [Gear.BF16] * between
    assert taken[4:] == blocks
    assert taken[3] is Gear.FP32
    assert len(found.extra_s) == len(found.cpu_s) == 3
    assert min(found.step_s) > 0.0


def test_without_time_each_pair_still_switches_both_ways():
    found = switch_times(0.0)
    assert [one.gears for one in found] == list(switching.PAIRS)
    assert [len(one.extra_s) for one in found] == [2, 2]


def test_the_worst_pair_is_held_against_the_target_when_it_switched_enough():
    def times(gears, extra_s, n):
        return SwitchTimes(gears, (extra_s,) * n, (extra_s,) * n, (0.01, 0.02))

    pairs = ((Gear.BF16, Gear.FP32), (Gear.BF16, Gear.FP8))
    figure = switch_figure([times(pairs[0], 2e-4, 50), times(pairs[1], 3e-3, 60)])
    assert figure.value == pytest.approx(3.0)
    assert figure.holds is False
    assert set(figure.spread) == {"BF16-FP32", "BF16-FP8"}
    assert switch_figure([times(pairs[0], 2e-4, 50), times(pairs[1], 3e-4, 49)]).holds is None


def test_accumulation_takes_less_memory_and_trains_the_same():
    found = accumulated_trainings((1, 4), n_steps=2)
    assert saved_share(found, 1) == 0.0
    assert 0.5 < saved_share(found, 4, of_all=True) < saved_share(found, 4) < 0.75
    assert found[1].loss_off_by(found[0]) < 1e-5
    assert found[0].losses[1] < found[0].losses[0]
    figure = accumulation_figure(found)
    assert figure.value == saved_share(found, 4)
    assert figure.target is None
    assert "4 50 %" in figure.note


def test_the_peak_is_what_tensors_held_at_once():
    def recorded(*sizes):
        with torch.profiler.profile(profile_memory=True) as events:
            for size in sizes:
                torch.empty(size, dtype=torch.uint8)  # freed at once
            held = [torch.empty(size, dtype=torch.uint8) for size in sizes]
            del held
        return accumulation._peak_bytes(events)

    assert recorded(1 << 20, 1 << 21) == (1 << 20) + (1 << 21)


def test_a_loss_that_differs_is_told():
    one, other = (AccumulatedTraining(n, 1, 8 // n, (2.0, 1.0 + n / 100)) for n in (1, 4))
    assert other.loss_off_by(one) == pytest.approx(1.04 / 1.01 - 1.0)
    assert saved_share([one, other], 4) == pytest.approx(0.75)
    assert GLOBAL_ROWS % max(accumulation.ACCUMULATIONS) == 0

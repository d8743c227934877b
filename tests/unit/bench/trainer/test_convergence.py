"""Trainings with switched gears: same seeds, same batches, and what is told of them."""

from __future__ import annotations

import math

import pytest

from ecorl.bench.trainer.accumulation import accumulated_trainings, saved_share
from ecorl.bench.trainer.convergence import Arm, ConvergenceStudy, Recipe, train
from ecorl.bench.trainer.gear_schedule import n_switches, scheduled_gears
from ecorl.bench.trainer.language_model import Batches, corpus, held_out_loss, small_llama
from ecorl.bench.trainer.switching import switch_times
from ecorl.control import Gear

RECIPE = Recipe(n_steps=30, measure_every=10)


@pytest.fixture(scope="module")
def trained():
    arms = (Arm.FIXED, Arm.SWITCHED, Arm.NO_GAMMA, Arm.LITERAL_NO_DECAY)
    return {arm: train(arm, 0, RECIPE) for arm in arms}


def test_held_out_text_is_never_trained_on():
    text = corpus()
    training, held_out = bytes(text.training.tolist()), bytes(text.held_out.tolist())
    assert len(training) > 5 * len(held_out) > 10_000
    lines = [line for line in held_out.split(b"\n\n") if len(line) > 120]
    assert lines
    assert not any(line in training for line in lines)


def test_an_untrained_model_knows_nothing_and_a_trained_one_more(trained):
    assert held_out_loss(small_llama(0)) == pytest.approx(math.log(256), rel=0.05)
    fixed = trained[Arm.FIXED]
    assert fixed.final_loss < 0.85 * fixed.start_loss


def test_a_training_is_the_same_again(trained):
    again = train(Arm.SWITCHED, 0, RECIPE)
    first = trained[Arm.SWITCHED]
    assert (again.final_loss, again.norms, again.gammas) == (
        first.final_loss, first.norms, first.gammas,
    )  # fmt: skip


def test_the_arms_of_a_seed_begin_alike_and_differ_by_their_gears(trained):
    assert len({one.start_loss for one in trained.values()}) == 1
    assert trained[Arm.FIXED].norms[0] == trained[Arm.SWITCHED].norms[0] or (
        trained[Arm.SWITCHED].gears[0] is Gear.FP8
    )
    assert trained[Arm.SWITCHED].gears == trained[Arm.NO_GAMMA].gears
    assert trained[Arm.FIXED].n_switches == 0
    assert trained[Arm.SWITCHED].low_share <= RECIPE.low_share
    assert trained[Arm.SWITCHED].measured_s > 0.0


def test_larger_steps_than_in_bf16_show_in_the_loss(trained):
    literal, fixed = trained[Arm.LITERAL_NO_DECAY], trained[Arm.FIXED]
    assert literal.final_loss is None or literal.final_loss != fixed.final_loss


def test_ratios_are_of_the_same_seed_alone(trained):
    study = ConvergenceStudy(RECIPE, tuple(trained.values()), 3)
    ratios = study.loss_ratios(Arm.SWITCHED)
    assert ratios == {0: trained[Arm.SWITCHED].final_loss / trained[Arm.FIXED].final_loss}
    assert study.loss_ratios(Arm.ROUNDING) == {}


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_schedule_switches_often_and_keeps_its_cap(seed):
    gears = scheduled_gears(150, 0.35, seed)
    assert n_switches(gears) >= 10
    assert 0.25 <= sum(gear.is_low for gear in gears) / len(gears) <= 0.37
    assert scheduled_gears(150, 0.35, seed) == gears


def test_batches_are_those_of_their_seed():
    one, same, other = Batches(3, 4), Batches(3, 4), Batches(4, 4)
    first = one.next()
    assert first.equal(same.next())
    assert not first.equal(other.next())
    assert not first.equal(one.next())


def test_accumulation_saves_memory_and_keeps_the_loss():
    one, four = accumulated_trainings((1, 4), n_steps=3)
    assert 0.2 < saved_share([one, four], 4) < 0.8
    assert saved_share([one, four], 4, of_all=True) < saved_share([one, four], 4)
    assert four.loss_off_by(one) < 1e-3


def test_each_pair_of_gears_is_switched_between():
    found = switch_times(0.2, n_switches=4)
    assert [one.gears for one in found] == [(Gear.BF16, Gear.FP32), (Gear.BF16, Gear.FP8)]
    assert all(2 <= len(one.extra_s) <= 4 for one in found)

"""Trainings with switched gears: schedules, arms, and the figures that are made of them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

pytest.importorskip("torchao")

from benchmarks.studies.trainer import convergence
from benchmarks.studies.trainer.convergence import (
    EACH_SEED,
    PAPER_GAMMA,
    Arm,
    ConvergenceStudy,
    TrainedModel,
    TrainingRecipe,
    study,
    train,
)
from benchmarks.studies.trainer.convergence_figures import convergence_figures
from benchmarks.studies.trainer.gear_schedule import made_up_grid, n_switches, scheduled_gears
from ecorl.control import Gear
from ecorl.records import Provenance

SHORT = TrainingRecipe(n_steps=12, n_rows=4, measure_every=6)


# ---------------------------------------------------------------- the controller's gears


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_default_controller_switches_often_and_keeps_the_cap(seed):
    recipe = TrainingRecipe()
    gears = scheduled_gears(recipe.n_steps, recipe.low_share, seed)
    low = sum(gear is Gear.FP8 for gear in gears)
    assert len(gears) == recipe.n_steps
    assert set(gears) == {Gear.BF16, Gear.FP8}
    assert n_switches(gears) >= convergence.MIN_SWITCHES
    # An epoch's last step may reach into the next one, which is in another gear.
    assert convergence.MIN_LOW_SHARE * len(gears) <= low <= recipe.low_share * len(gears) + 2


def test_the_gears_follow_the_seed_of_the_grid():
    assert scheduled_gears(60, 0.3, 1) == scheduled_gears(60, 0.3, 1)
    assert scheduled_gears(60, 0.3, 1) != scheduled_gears(60, 0.3, 2)
    grid = made_up_grid(0)
    assert grid.values.min() > 0
    assert len(grid.values) == 24 * 24


# ---------------------------------------------------------------- one training


def same(one, other):
    return (one.final_loss, one.norms, one.gears) == (other.final_loss, other.norms, other.gears)


def test_a_training_is_decided_by_its_seed():
    first = train(Arm.SWITCHED, 0, SHORT)
    assert same(first, train(Arm.SWITCHED, 0, SHORT))
    other = train(Arm.SWITCHED, 1, SHORT)
    assert first.final_loss != other.final_loss
    assert first.final_loss < first.start_loss
    assert len(first.norms) == len(first.gears) == SHORT.n_steps
    assert len(first.gammas) == 2
    assert all(1.0 <= gamma < 2.0 for gamma in first.gammas)
    assert 0.0 < first.measured_s < first.time_s


def test_arms_share_weights_and_batches_and_differ_by_their_gears():
    fixed, switched = train(Arm.FIXED, 0, SHORT), train(Arm.NO_GAMMA, 0, SHORT)
    assert set(fixed.gears) == {Gear.BF16}
    assert fixed.n_switches == fixed.low_share == 0
    begin = switched.gears.index(Gear.FP8)
    assert begin > 0
    assert fixed.norms[:begin] == switched.norms[:begin]
    assert fixed.norms[begin] != switched.norms[begin]
    assert fixed.final_loss != switched.final_loss
    assert switched.gammas == ()
    assert switched.measured_s == 0.0


def test_chance_moves_the_weights_a_little():
    fixed, moved = train(Arm.FIXED, 0, SHORT), train(Arm.CHANCE, 0, SHORT)
    assert moved.final_loss != fixed.final_loss
    assert moved.final_loss == pytest.approx(fixed.final_loss, rel=0.02)


def test_a_gamma_of_the_rounding_alone_slows_fp8_down():
    fast, slow = train(Arm.NO_GAMMA, 0, SHORT), train(Arm.ROUNDING, 0, SHORT)
    assert all(gamma > 2.0 for gamma in slow.gammas)
    assert slow.final_loss > fast.final_loss
    assert slow.measured_s > 0.0


def test_the_printed_rule_makes_weights_grow_until_the_training_ends():
    long = replace(SHORT, n_steps=60, n_rows=2)
    found = train(Arm.LITERAL, 0, long)
    assert found.final_loss is None
    assert len(found.gears) < long.n_steps
    assert found.gammas == (PAPER_GAMMA,)
    assert train(Arm.LITERAL_NO_DECAY, 0, SHORT).final_loss is not None


def test_the_learning_rate_rises_and_falls():
    recipe = TrainingRecipe(n_steps=100, learning_rate=1.0)
    rates = [recipe.rate(step) for step in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == pytest.approx(1.0, abs=0.05)
    assert rates.index(max(rates)) in range(8, 12)
    assert rates[-1] == pytest.approx(0.1, abs=0.01)


# ---------------------------------------------------------------- several


@pytest.mark.deep
def test_a_study_trains_all_arms_of_a_seed_in_processes_of_their_own():
    found = study(2, SHORT, 1e-3, (Arm.LITERAL,))
    # No time is left after the first seed.
    assert [(one.seed, one.arm) for one in found.trained] == [
        (0, arm) for arm in Arm if arm in EACH_SEED
    ]
    assert found.n_seeds_asked == 2
    assert same(found.of(Arm.FIXED)[0], train(Arm.FIXED, 0, SHORT))


def trained(arm, seed, final_loss, gears=None, gammas=(1.0,), norms=None):
    gears = gears or (Gear.BF16, Gear.FP8, Gear.FP8) * 12
    norms = norms or tuple(1.0 + 0.1 * (i % 3) for i in range(len(gears)))
    return TrainedModel(arm, seed, gears, 5.5, final_loss, norms, gammas, 0.1, 1.0, 1.2)


def studied(n_seeds=3, **losses):
    arms = {"fixed": Arm.FIXED, "switched": Arm.SWITCHED, "no_gamma": Arm.NO_GAMMA,
            "literal": Arm.LITERAL, "rounding": Arm.ROUNDING, "chance": Arm.CHANCE}  # fmt: skip
    models = [
        trained(arms[name], seed, loss)
        for name, by_seed in losses.items()
        for seed, loss in enumerate(by_seed)
    ]
    return ConvergenceStudy(TrainingRecipe(), models, n_seeds)


def by_id(found):
    return {figure.id: figure for figure in convergence_figures(found)}


def test_the_worst_seed_is_held_against_the_target():
    found = studied(fixed=[2.0, 2.0, 2.0], switched=[2.0, 2.03, 1.99], no_gamma=[2.0, 2.05, 2.0])
    made = by_id(found)
    figure = made["optim.gear_switch_loss_ratio"]
    assert figure.value == pytest.approx(1.015)
    assert figure.holds is False
    assert figure.provenance is Provenance.EMULATED
    assert figure.spread["n_switches"] == {0: 23, 1: 23, 2: 23}
    assert figure.spread["low_share"][0] == pytest.approx(2 / 3)
    assert figure.spread["measured_share"] == pytest.approx(0.1)
    other = made["optim.no_gamma_loss_ratio"]
    assert other.value == pytest.approx(2.05 / 2.03)
    assert other.target is None
    assert other.spread["perplexity_ratio"][1] == pytest.approx(math.exp(0.02))
    assert other.spread["norm_variance_ratio"] == {0: 1.0, 1: 1.0, 2: 1.0}
    assert by_id(studied(fixed=[2.0] * 3, switched=[2.0] * 3))[
        "optim.gear_switch_loss_ratio"
    ].holds is True  # fmt: skip


def test_a_target_is_judged_only_when_enough_was_trained():
    few = by_id(studied(fixed=[2.0, 2.0], switched=[2.0, 2.0]))["optim.gear_switch_loss_ratio"]
    assert (few.value, few.holds) == (1.0, None)
    assert "2 of 3" in few.note
    rarely = studied(fixed=[2.0] * 3, switched=[2.0] * 3)
    models = [
        replace(one, gears=(Gear.BF16,) * 30 + (Gear.FP8,) * 30) if one.seed == 1 else one
        for one in rarely.trained
    ]
    figure = by_id(replace(rarely, trained=models))["optim.gear_switch_loss_ratio"]
    assert figure.holds is None


def test_trainings_that_diverge_are_told(snapshot):
    found = studied(fixed=[2.0], switched=[2.0], no_gamma=[2.0], literal=[None], rounding=[2.2],
                    chance=[2.001])  # fmt: skip
    made = by_id(found)
    literal = made["optim.literal_loss_ratio"]
    assert literal.value is None
    snapshot(literal.note)
    assert made["optim.rounding_gamma_loss_ratio"].value == pytest.approx(1.1)
    assert made["optim.chance_loss_ratio"].provenance is Provenance.MEASURED
    lost = by_id(studied(fixed=[2.0], switched=[None]))["optim.gear_switch_loss_ratio"]
    assert lost.value is None
    snapshot(lost.note, "with gears")


def test_figures_beside_a_bf16_that_diverged_are_missing(snapshot):
    """A ratio over nothing is no figure, and no error either."""
    lost = studied(fixed=[None], switched=[2.0], no_gamma=[2.1], rounding=[2.2], chance=[2.0])
    made = by_id(lost)
    for id in ("optim.gear_switch_loss_ratio", "optim.no_gamma_loss_ratio",
               "optim.rounding_gamma_loss_ratio", "optim.chance_loss_ratio"):  # fmt: skip
        assert made[id].value is None
        assert "BF16" in made[id].note
    # Of the seeds whose BF16 ended the figures stand, even where they are none of no-gamma's.
    some = by_id(studied(fixed=[None, 2.0], switched=[2.0, 2.0], no_gamma=[2.2, None]))
    assert some["optim.gear_switch_loss_ratio"].value == 1.0
    assert "5.50 to 2.00" in some["optim.gear_switch_loss_ratio"].note
    assert some["optim.no_gamma_loss_ratio"].value == pytest.approx(1.1)
    snapshot("\n".join(figure.note for figure in (*made.values(), *some.values()) if figure.note))


def test_the_variance_of_the_norm_is_that_of_neighbours_in_fp8():
    gears = (Gear.FP8, Gear.FP8, Gear.BF16, Gear.FP8)
    one = trained(Arm.SWITCHED, 0, 2.0, gears, norms=(1.0, 3.0, 100.0, 5.0))
    assert one.norm_variance() == pytest.approx(2.0)
    assert trained(Arm.FIXED, 0, 2.0, (Gear.BF16,) * 4).norm_variance() is None

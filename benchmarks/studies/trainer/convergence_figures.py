"""The figures of trainings with switched gears, with gamma and without it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable

from benchmarks.harness import Figure, FigureTable
from benchmarks.studies.trainer.convergence import (
    MIN_LOW_SHARE,
    MIN_SWITCHES,
    PAPER_GAMMA,
    Arm,
    ConvergenceStudy,
    TrainedModel,
)
from ecorl.control import Gear, gear_label

FIGURES = FigureTable("trainer")

MIN_SEEDS = 3
"""Seeds of which the worst is held against a target."""

SWITCHED, NO_GAMMA = "optim.gear_switch_loss_ratio", "optim.no_gamma_loss_ratio"
BESIDE = {
    Arm.ROUNDING: "optim.rounding_gamma_loss_ratio",
    Arm.LITERAL_NO_DECAY: "optim.literal_no_decay_loss_ratio",
    Arm.LITERAL: "optim.literal_loss_ratio",
    Arm.CHANCE: "optim.chance_loss_ratio",
}
"""Figures of the arms that only some seeds have."""


def convergence_figures(found: ConvergenceStudy) -> list[Figure]:
    """Loss with switched gears, with gamma and without it.

    FP8 is simulated on a CPU, so that the losses are emulated. What is held against BF16 alone is
    missing where no training in BF16 alone ended.

    Args:
        found: the trainings.
    """
    fixed = found.of(Arm.FIXED).values()
    has_bf16 = not fixed or any(one.final_loss is not None for one in fixed)
    figures = [FIGURES.figure(SWITCHED, None), FIGURES.figure(NO_GAMMA, None)]
    if has_bf16:
        figures = [_switched(found), _no_gamma(found)]
    beside = (_beside(arm, found, has_bf16) for arm in BESIDE if found.of(arm))
    return [*figures, *beside]


def _switched(found: ConvergenceStudy) -> Figure:
    switched, ratios = found.of(Arm.SWITCHED), found.ratios(Arm.SWITCHED)
    if diverged := [seed for seed, one in switched.items() if not one.final_loss]:
        return FIGURES.figure(SWITCHED, None, why=f"training diverged with seed {diverged[0]}")
    if not ratios:
        return FIGURES.figure(SWITCHED, None, why="no training ended")
    trained = [one for seed, one in switched.items() if seed in ratios]
    is_enough = len(ratios) >= MIN_SEEDS and all(one.switches_enough for one in trained)
    measured_share = sum(one.measured_s for one in trained) / sum(one.time_s for one in trained)
    spread = {
        "by_seed": ratios,
        "final_loss": {seed: one.final_loss for seed, one in switched.items()},
        "n_switches": {one.seed: one.n_switches for one in trained},
        "low_share": {one.seed: one.low_share for one in trained},
        "gammas": {one.seed: one.gammas for one in trained},
        "measured_share": measured_share,
    }
    seeds = f"{len(ratios)} seeds"
    if len(ratios) < found.n_seeds_asked:
        seeds = f"{len(ratios)} of {found.n_seeds_asked} seeds, for want of time"
    # From what to what the loss falls in BF16, of the trainings that ended.
    fixed = [(o.start_loss, o.final_loss) for o in found.of(Arm.FIXED).values() if o.final_loss]
    start, end = (statistics.fmean(losses) for losses in zip(*fixed, strict=True))
    return FIGURES.figure(
        SWITCHED,
        max(ratios.values()),
        spread,
        judged=is_enough,
        seeds=seeds,
        fp8=gear_label(Gear.FP8, is_simulated=True),
        start=start,
        end=end,
        n_steps=found.recipe.n_steps,
        switches=_list(one.n_switches for one in trained),
        shares=_list(f"{100 * one.low_share:.0f} %" for one in trained),
        min_switches=MIN_SWITCHES,
        min_low_share=100 * MIN_LOW_SHARE,
        gamma=max(max(one.gammas, default=1.0) for one in trained),
        measured=100 * measured_share,
    )


def _no_gamma(found: ConvergenceStudy) -> Figure:
    arms = Arm.NO_GAMMA, Arm.SWITCHED
    over = found.ratios(*arms)
    if not over:
        return FIGURES.figure(NO_GAMMA, None, why="no training ended without gamma")
    variances, bf16 = _norm_variances(found, Arm.NO_GAMMA), found.ratios(Arm.NO_GAMMA)
    perplexities = found.ratios(*arms, quotient=lambda own, other: math.exp(own - other))
    spread = {"by_seed": over, "over_bf16": bf16, "norm_variance_ratio": variances,
              "perplexity_ratio": perplexities}  # fmt: skip
    return FIGURES.figure(
        NO_GAMMA,
        max(over.values()),
        spread,
        n=len(over),
        bf16=f"{max(bf16.values()):.4f}" if bf16 else "unknown, as BF16 alone diverged",
        noise=f"{statistics.median(variances.values()):.3f} (median)" if variances else "unknown",
    )


def _beside(arm: Arm, found: ConvergenceStudy, has_bf16: bool) -> Figure:
    trained, ratios = found.of(arm).values(), found.ratios(arm)
    lost = [one for one in trained if one.final_loss is None]
    gammas = [g for one in trained if one.final_loss is not None for g in one.gammas]
    told = "; held-out loss over that of BF16 alone"
    if lost:
        steps = _list(len(one.gears) for one in lost)
        told += f"; {len(lost)} of {len(trained)} trainings diverged, after {steps} steps"
    if ratios and gammas:
        told += f"; gamma {min(gammas):.3g} to {max(gammas):.3g}"
    spread = {"by_seed": ratios, "norm_variance_ratio": _norm_variances(found, arm)}
    return FIGURES.figure(
        BESIDE[arm],
        max(ratios.values(), default=None),
        spread if ratios else None,
        n=len(ratios),
        gamma=PAPER_GAMMA,
        bf16="" if has_bf16 else "BF16 alone diverged; ",
        beside=told,
    )


def _norm_variances(found: ConvergenceStudy, arm: Arm) -> dict[int, float]:
    """Variance of the gradient's length in FP8 over that of trainings with gamma, by seed."""
    return found.ratios(arm, Arm.SWITCHED, TrainedModel.norm_variance)


def _list(values: Iterable[object]) -> str:
    return ", ".join(map(str, values))

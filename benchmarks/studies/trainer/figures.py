"""The figures of the trainer's benchmark, made of what was measured."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict

from benchmarks.harness.figures import Figure, Target, missing
from benchmarks.studies.papers.carbon_claims import CLAIMS
from benchmarks.studies.trainer.accumulation import (
    GLOBAL_ROWS,
    AccumulatedTraining,
    saved_share,
)
from benchmarks.studies.trainer.convergence import (
    MIN_LOW_SHARE,
    MIN_SWITCHES,
    PAPER_GAMMA,
    Arm,
    ConvergenceStudy,
)
from benchmarks.studies.trainer.optimizers import OptimizerTimes
from benchmarks.studies.trainer.switching import N_ROWS, N_SWITCHES, SwitchTimes
from ecorl.bench.stats import spread_of
from ecorl.control import Gear, gear_label
from ecorl.records import Provenance

MEASURED, EMULATED = Provenance.MEASURED, Provenance.EMULATED

MIN_SEEDS = 3
"""Seeds of which the worst is held against a target."""

BF16_DIVERGED = "BF16 alone diverged"
"""Why a figure beside BF16 alone is missing."""

MAX_LOSS_RATIO = 1.01
MAX_STEP_RATIO = 1.05
MAX_SWITCH_MS = 1.0

FP8 = gear_label(Gear.FP8, is_simulated=True)


def optimizer_figures(is_equal: bool, times: OptimizerTimes) -> list[Figure]:
    """The optimizer beside torch's AdamW.

    Args:
        is_equal: whether it ends with the same bits on all paths.
        times: of their steps.
    """
    slowed = f"with a gamma above 1 the ratio is {times.slowed_ratio:.3f}"
    return [
        Figure(
            "optim.adamw_equal", is_equal, "1", MEASURED, None, Target(low=1.0),
            "weights and moments of PrecisionAdaptiveAdamW at gamma = 1 are those of torch's AdamW "
            "to the last bit, on the single-tensor, foreach and fused paths",
        ),
        Figure(
            "optim.foreach_vs_torch_adamw", times.ours_ratio, "1", MEASURED,
            {**times.ours_spread, "torch_ms": 1e3 * times.torch_s, "slowed": times.slowed_spread},
            Target(high=MAX_STEP_RATIO),
            f"time of a step over that of torch's, in turns, {times.n_weights:,} weights in "
            f"{times.n_tensors} tensors, foreach; {slowed}",
        ),
    ]  # fmt: skip


# ---------------------------------------------------------------- convergence


def convergence_figures(found: ConvergenceStudy) -> list[Figure]:
    """Loss with switched gears, with gamma and without it.

    FP8 is simulated on a CPU, so that the losses are emulated. What is held against BF16 alone is
    missing where no training in BF16 alone ended.

    Args:
        found: the trainings.
    """
    figures = [_switched(found), _no_gamma(found)]
    told = {
        Arm.ROUNDING: ("optim.rounding_gamma_loss_ratio", "gamma of the rounding alone"),
        Arm.LITERAL_NO_DECAY: (
            "optim.literal_no_decay_loss_ratio",
            f"Eq. 11 as printed with gamma = {PAPER_GAMMA:g}, without weight decay",
        ),
        Arm.LITERAL: (
            "optim.literal_loss_ratio",
            f"Eq. 11 as printed with gamma = {PAPER_GAMMA:g}, the weight decay of all arms",
        ),
        Arm.CHANCE: (
            "optim.chance_loss_ratio",
            "BF16 from weights that differ by a millionth: what chance alone does",
        ),
    }
    return figures + [
        _beside(id, arm, what, found) for arm, (id, what) in told.items() if found.of(arm)
    ]


def _switched(found: ConvergenceStudy) -> Figure:
    id = "optim.gear_switch_loss_ratio"
    target = Target(high=MAX_LOSS_RATIO)
    if _has_no_bf16(found):
        return missing(id, "1", BF16_DIVERGED, target)
    if diverged := [seed for seed, one in found.of(Arm.SWITCHED).items() if not one.final_loss]:
        return missing(id, "1", f"training diverged with seed {diverged[0]}", target)
    ratios = found.loss_ratios(Arm.SWITCHED)
    if not ratios:
        return missing(id, "1", "no training ended", target)
    trained = [one for seed, one in found.of(Arm.SWITCHED).items() if seed in ratios]
    is_enough = len(ratios) >= MIN_SEEDS and all(one.switches_enough for one in trained)
    spread = {
        "by_seed": ratios,
        "final_loss": {seed: one.final_loss for seed, one in found.of(Arm.SWITCHED).items()},
        "n_switches": {one.seed: one.n_switches for one in trained},
        "low_share": {one.seed: one.low_share for one in trained},
        "gammas": {one.seed: one.gammas for one in trained},
        "measured_share": sum(one.measured_s for one in trained) / sum(o.time_s for o in trained),
    }
    return Figure(
        id, max(ratios.values()), "1", EMULATED, spread, target if is_enough else None,
        f"worst of {_seeds(found, len(ratios))}: held-out loss with gears BF16 and {FP8} of the "
        f"default controller over that of BF16 alone; {_falls(found)}; switches "
        f"{_list(one.n_switches for one in trained)}, share of tokens in FP8 "
        f"{_list(f'{100 * one.low_share:.0f} %' for one in trained)} (a target wants {MIN_SWITCHES}"
        f" and {100 * MIN_LOW_SHARE:.0f} %); gamma at most "
        f"{max(max(one.gammas, default=1.0) for one in trained):.4f}, its measurements "
        f"{100 * float(spread['measured_share']):.0f} % of the training's CPU time",  # type: ignore[arg-type]
    )  # fmt: skip


def _no_gamma(found: ConvergenceStudy) -> Figure:
    id = "optim.no_gamma_loss_ratio"
    if _has_no_bf16(found):
        return missing(id, "1", BF16_DIVERGED)
    over = found.loss_ratios(Arm.NO_GAMMA, Arm.SWITCHED)
    if not over:
        return missing(id, "1", "no training ended without gamma")
    variances = found.norm_variance_ratios(Arm.NO_GAMMA)
    bf16 = found.loss_ratios(Arm.NO_GAMMA)
    beside = f"{max(bf16.values()):.4f}" if bf16 else f"unknown, as {BF16_DIVERGED}"
    noise = "unknown"
    if variances:
        noise = f"{statistics.median(variances.values()):.3f} (median)"
    return Figure(
        id, max(over.values()), "1", EMULATED,
        {"by_seed": over, "over_bf16": bf16, "norm_variance_ratio": variances,
         "perplexity_ratio": found.perplexity_ratios(Arm.NO_GAMMA, Arm.SWITCHED)},
        note=f"worst of {len(over)} seeds: held-out loss with the same gears without gamma over "
        f"that with it; over BF16 alone {beside}. Variance of the gradient's "
        f"length in FP8, without over with: {noise}",
    )  # fmt: skip


def _beside(id: str, arm: Arm, what: str, found: ConvergenceStudy) -> Figure:
    trained = found.of(arm)
    ended = {seed: one for seed, one in trained.items() if one.final_loss is not None}
    ratios, variances = found.loss_ratios(arm), found.norm_variance_ratios(arm)
    lost = [one for one in trained.values() if one.final_loss is None]
    told = f"{what}; held-out loss over that of BF16 alone"
    if lost:
        steps = _list(len(one.gears) for one in lost)
        told += f"; {len(lost)} of {len(trained)} trainings diverged, after {steps} steps"
    if not ratios:
        why = f"{BF16_DIVERGED}; {told}" if _has_no_bf16(found) else told
        return missing(id, "1", why)
    gammas = [gamma for one in ended.values() for gamma in one.gammas]
    if gammas:
        told += f"; gamma {min(gammas):.3g} to {max(gammas):.3g}"
    spread = {"by_seed": ratios, "norm_variance_ratio": variances}
    return Figure(
        id, max(ratios.values()), "1", EMULATED if arm is not Arm.CHANCE else MEASURED, spread,
        note=f"worst of {len(ratios)}: {told}",
    )  # fmt: skip


def _seeds(found: ConvergenceStudy, n: int) -> str:
    if n < found.n_seeds_asked:
        return f"{n} of {found.n_seeds_asked} seeds, for want of time"
    return f"{n} seeds"


def _has_no_bf16(found: ConvergenceStudy) -> bool:
    """Whether trainings in BF16 alone were begun, and none of them ended."""
    fixed = found.of(Arm.FIXED).values()
    return bool(fixed) and all(one.final_loss is None for one in fixed)


def _falls(found: ConvergenceStudy) -> str:
    """From what to what the loss falls in BF16, of the trainings that ended."""
    fixed = [(o.start_loss, o.final_loss) for o in found.of(Arm.FIXED).values() if o.final_loss]
    start = statistics.fmean(start for start, _ in fixed)
    end = statistics.fmean(end for _, end in fixed)
    return f"BF16's falls from {start:.2f} to {end:.2f} nats a byte in {found.recipe.n_steps} steps"


def _list(values: object) -> str:
    return ", ".join(str(value) for value in values)  # type: ignore[attr-defined]


# ---------------------------------------------------------------- switches and accumulation


def switch_figure(found: Sequence[SwitchTimes]) -> Figure:
    """The time that a switch of gears adds to a step, of the worst pair of gears.

    Args:
        found: of each pair.
    """
    worst = max(found, key=lambda one: one.median_s)
    is_enough = all(len(one.extra_s) >= N_SWITCHES for one in found)
    told = "; ".join(
        f"{_name(one)} {1e3 * one.median_s:.2f} ms of {len(one.extra_s)} switches, CPU time "
        f"{1e3 * statistics.median(one.cpu_s):.2f} ms, steps of {1e3 * one.step_s[0]:.1f} and "
        f"{1e3 * one.step_s[1]:.1f} ms"
        for one in found
    )
    by_pair = {_name(one): spread_of([1e3 * s for s in one.extra_s]) for one in found}
    return Figure(
        "trainer.gear_switch_ms", 1e3 * worst.median_s, "ms", MEASURED, by_pair,
        Target(high=MAX_SWITCH_MS) if is_enough else None,
        "median over switches of the first step after one less its gear's median step, on the CPU, "
        f"{N_ROWS} rows a step, the worst pair of gears, FP8 simulated: {told}",
    )  # fmt: skip


def _name(found: SwitchTimes) -> str:
    return "-".join(str(gear) for gear in found.gears)


def accumulation_figure(found: Sequence[AccumulatedTraining]) -> Figure:
    """The memory that accumulation over 4 backward passes saves.

    Args:
        found: a training each, with accumulations 1 and 4 among them.
    """
    first = next(one for one in found if one.accumulation == 1)
    saved = {one.accumulation: saved_share(found, one.accumulation) for one in found}
    of_all = {one.accumulation: saved_share(found, one.accumulation, of_all=True) for one in found}
    off = max(one.loss_off_by(first) for one in found)
    told = ", ".join(f"{n} {100 * share:.0f} %" for n, share in saved.items() if n > 1)
    whole = ", ".join(f"{n} {100 * share:.0f} %" for n, share in of_all.items() if n > 1)
    printed = {one.id: one.printed for one in CLAIMS if one.id.startswith("memory_")}
    claims = {n: printed.get(f"memory_{n}") for n in saved}
    claimed = ", ".join(f"{n} {100 * x:.0f} %" for n, x in claims.items() if isinstance(x, float))
    return Figure(
        "trainer.accumulation_memory_saved_4", saved[4], "1", MEASURED,
        {"saved": saved, "saved_of_all_tensors": of_all, "loss_off_by": off,
         "trainings": [asdict(one) for one in found]},
        note="share of the peak of activations, gradients and what operations need, by the events "
        f"of torch's CPU allocator, {GLOBAL_ROWS} rows a step; by accumulation: {told}; with "
        f"weights and moments counted: {whole}; printed by a blog post of a GPU's: {claimed}. "
        f"Losses differ by {off:.1g} at most",
    )  # fmt: skip

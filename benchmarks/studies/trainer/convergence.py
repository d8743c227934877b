"""What switching gears does to a training: the same small model with other gears and gammas.

The trainings of a seed have the same initial weights, batches and learning rates. Whatever differs
at the end comes from the gears, and from what the optimizer makes of them.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from multiprocessing import get_context
from operator import truediv

import torch
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from benchmarks.studies.trainer.gear_schedule import n_switches, scheduled_gears
from benchmarks.studies.trainer.geared_steps import GearedSteps
from benchmarks.studies.trainer.language_model import Batches, held_out_loss, small_llama
from ecorl.bench.rounds import TimeBox
from ecorl.config.trainer import GearsConfig
from ecorl.control import Gear
from ecorl.trainer.gears.gearbox import Gearbox
from ecorl.trainer.optimizer.adamw import DECELERATE, LITERAL, PrecisionAdaptiveAdamW

TUNING_SEED = 999
"""Seed of the trainings by which the learning rate was chosen; none of the study."""

PAPER_GAMMA = 4.0
"""What CarbonGearRL prints as FP8's gamma."""

MIN_SWITCHES, MIN_LOW_SHARE = 10, 0.25
"""What a training with switching must have of both to say anything of it."""

_MOVED = 1e-6
"""By which part of themselves the weights are moved to see what chance does."""

_BETAS, _WEIGHT_DECAY = (0.9, 0.95), 0.1
_WARM_UP, _LAST_RATE = 0.1, 0.1
"""Share of the steps in which the learning rate rises, and what it falls to, as is usual."""

_MAX_NORM = 1.0
"""Gradients longer than that are shortened to it, as trainers do by default: without it a single
bad batch decides how a short training ends, whatever the gears are."""

_N_PARTS = 4
"""Micro-batches between which the gradient's noise is taken."""

_DIVERGED = 3.0
"""A loss of so many times the one at the beginning ends a training."""


class Arm(StrEnum):
    """Ways of training."""

    FIXED = "fixed-bf16"  # BF16 all along
    CHANCE = "chance"  # the same, from weights that differ by a millionth: what chance alone does
    SWITCHED = "switched"  # BF16 and FP8, decelerated by the measured noise of the gradient
    NO_GAMMA = "no-gamma"  # the same gears, with the optimizer's steps as in BF16
    ROUNDING = "rounding-gamma"  # the same, decelerated by the noise of the rounding alone
    LITERAL = "literal"  # the same by Eq. 11 as printed, with the printed gamma
    LITERAL_NO_DECAY = "literal-no-decay"  # the same without weight decay, which grows weights


@dataclass(frozen=True, slots=True)
class TrainingRecipe:
    """How the small model is trained.

    Attributes:
        n_steps: optimizer steps.
        n_rows: rows of a step.
        learning_rate: highest; it rises in the first tenth and falls by a cosine to a tenth. Chosen
            for BF16 by trainings of `TUNING_SEED`: among 1, 2, 3, 4, 6, 8 and 16 thousandths 2 had
            the lowest held-out loss after 130 steps, and among the first five after 1000.
        low_share: largest share of the tokens in FP8.
        measure_every: steps from one measurement of the gradient's noise to the next.
    """

    n_steps: int = 100
    n_rows: int = 8
    learning_rate: float = 2e-3
    low_share: float = 0.3
    measure_every: int = 50

    def rate(self, step: int) -> float:
        """The learning rate of a step.

        Args:
            step: its number, from 0 on.
        """
        rise = min(1.0, (step + 1) / max(1.0, _WARM_UP * self.n_steps))
        fall = 0.5 * (1.0 + math.cos(math.pi * step / self.n_steps))
        return self.learning_rate * rise * (_LAST_RATE + (1.0 - _LAST_RATE) * fall)


@dataclass(frozen=True, slots=True)
class TrainedModel:
    """What came of one training.

    Attributes:
        arm: how it was trained.
        seed: of its weights, batches and grid.
        gears: of its steps.
        start_loss: held-out loss of the untrained model, nats a byte.
        final_loss: the same at the end; None where the training diverged.
        norms: length of the gradient of each step.
        gammas: of FP8, as they were measured or set.
        measured_s: CPU time of the measurements of noise, s.
        time_s: CPU time of all training, s.
        wall_s: what all of it took by the clock, evaluation included, s.
    """

    arm: Arm
    seed: int
    gears: tuple[Gear, ...]
    start_loss: float
    final_loss: float | None
    norms: tuple[float, ...]
    gammas: tuple[float, ...]
    measured_s: float
    time_s: float
    wall_s: float

    @property
    def n_switches(self) -> int:
        """How often the gear changed between two steps."""
        return n_switches(self.gears)

    @property
    def low_share(self) -> float:
        """Share of the tokens in low precision."""
        return sum(gear.is_low for gear in self.gears) / len(self.gears)

    @property
    def switches_enough(self) -> bool:
        """Whether it is a training with switching that a target may be held against."""
        return self.n_switches >= MIN_SWITCHES and self.low_share >= MIN_LOW_SHARE

    def norm_variance(self) -> float | None:
        """Variance of the gradient's length from one FP8 step to the next.

        Half the mean square of the difference of two FP8 steps in a row, which is the variance
        where neighbours are independent: the slow fall of the length over the training is not in
        it. None where no two FP8 steps follow each other.
        """
        low = [g.is_low for g in self.gears[: len(self.norms)]]
        pairs = zip(pairwise(self.norms), pairwise(low), strict=True)
        squares = [0.5 * (b - a) ** 2 for (a, b), both in pairs if all(both)]
        found = statistics.fmean(squares) if squares else None
        return found if found is not None and math.isfinite(found) else None


def train(arm: Arm, seed: int, recipe: TrainingRecipe) -> TrainedModel:
    """Train the small model once.

    Args:
        arm: how.
        seed: of weights, batches and grid.
        recipe: of all arms.
    """
    began_s = time.monotonic()
    torch.set_num_threads(1)
    wanted = (Gear.BF16,) * recipe.n_steps
    if arm not in (Arm.FIXED, Arm.CHANCE):
        wanted = scheduled_gears(recipe.n_steps, recipe.low_share, seed)
    training = _Training(arm, seed, recipe)
    start_loss = held_out_loss(training.steps.model)
    for step, gear in enumerate(wanted):
        if not training.step(step, gear):
            break
    is_whole = len(training.gears) == recipe.n_steps
    final_loss = held_out_loss(training.steps.model) if is_whole else math.nan
    return TrainedModel(
        arm=arm,
        seed=seed,
        gears=tuple(training.gears),
        start_loss=start_loss,
        final_loss=final_loss if math.isfinite(final_loss) else None,
        norms=tuple(training.norms),
        gammas=tuple(training.gammas),
        measured_s=training.steps.noise_s,
        time_s=training.steps.time_s + training.steps.noise_s,
        wall_s=time.monotonic() - began_s,
    )


class _Training:
    """One training under way."""

    def __init__(self, arm: Arm, seed: int, recipe: TrainingRecipe) -> None:
        self._arm, self._recipe = arm, recipe
        model = small_llama(seed)
        if arm is Arm.CHANCE:
            with torch.no_grad():
                for weight in model.parameters():
                    weight.mul_(1.0 + _MOVED)
        literal = arm in (Arm.LITERAL, Arm.LITERAL_NO_DECAY)
        self._optimizer = PrecisionAdaptiveAdamW(
            model.parameters(),
            lr=recipe.learning_rate,
            betas=_BETAS,
            weight_decay=0.0 if arm is Arm.LITERAL_NO_DECAY else _WEIGHT_DECAY,
            form=LITERAL if literal else DECELERATE,
            foreach=True,
        )
        self.steps = GearedSteps(model, self._optimizer, (Gear.BF16, Gear.FP8))
        config = GearsConfig(allowed=(Gear.BF16, Gear.FP8), simulate_fp8=True)
        self._gearbox = Gearbox(config, self.steps.support, recipe.low_share)
        self._batches = Batches(seed + 1, recipe.n_rows)
        self.gears: list[Gear] = []
        self.norms: list[float] = []
        self.gammas: list[float] = [PAPER_GAMMA] if literal else []
        self._worst = math.inf

    def step(self, number: int, wanted: Gear) -> bool:
        """Take a step; false where the training has diverged."""
        recipe, rows = self._recipe, self._batches.next()
        gear = self._gearbox.shift(wanted, recipe.n_steps - number)
        if number % recipe.measure_every == 0 and self._arm in (Arm.SWITCHED, Arm.ROUNDING):
            self._measure(rows)
        self._optimizer.decelerate(self._gamma(gear))
        for group in self._optimizer.param_groups:
            group["lr"] = recipe.rate(number)
        loss = self.steps.gradients(rows, gear)
        self.gears.append(gear)
        norm = get_total_norm([w.grad for w in self.steps.weights if w.grad is not None])
        self.norms.append(norm.item())
        self._worst = min(self._worst, _DIVERGED * loss if number == 0 else math.inf)
        if not (math.isfinite(self.norms[-1]) and loss <= self._worst):
            return False
        clip_grads_with_norm_(self.steps.weights, _MAX_NORM, norm)
        self.steps.update()
        self._gearbox.count(gear, rows.numel())
        return True

    def _gamma(self, gear: Gear) -> float:
        if not gear.is_low or self._arm is Arm.NO_GAMMA:
            return 1.0
        if self._arm is Arm.SWITCHED:
            return self._gearbox.gamma(gear)
        return max(1.0, self.gammas[-1]) if self.gammas else 1.0

    def _measure(self, rows: Tensor) -> None:
        """Measure FP8's gamma on the rows of the step."""
        parts = torch.split(rows, max(1, len(rows) // _N_PARTS))
        found = self.steps.noise(parts, Gear.BF16, Gear.FP8)
        if self._arm is Arm.SWITCHED:
            self._gearbox.note_noise(Gear.FP8, found.gear_variance, found.reference_variance)
            self.gammas.append(self._gearbox.gamma(Gear.FP8))
            return
        # How far both gears are from float32, and nothing else.
        bf16, fp8 = (
            self.steps.noise(parts, Gear.FP32, gear).quantisation_variance
            for gear in (Gear.BF16, Gear.FP8)
        )
        self.gammas.append(math.sqrt(fp8 / bf16) if fp8 and bf16 else 1.0)


# ---------------------------------------------------------------- all trainings


@dataclass(frozen=True, slots=True)
class ConvergenceStudy:
    """All trainings.

    Attributes:
        recipe: of all of them.
        trained: by seed, in its order, and arm.
        n_seeds_asked: how many seeds there were to be.
    """

    recipe: TrainingRecipe
    trained: Sequence[TrainedModel]
    n_seeds_asked: int

    def of(self, arm: Arm) -> dict[int, TrainedModel]:
        """Trainings of an arm by seed.

        Args:
            arm: which.
        """
        return {one.seed: one for one in self.trained if one.arm is arm}

    def ratios(
        self,
        arm: Arm,
        over: Arm = Arm.FIXED,
        of: Callable[[TrainedModel], float | None] = lambda one: one.final_loss,
        quotient: Callable[[float, float], float] = truediv,
    ) -> dict[int, float]:
        """What an arm ended with over what another one did, by seed.

        Args:
            arm: which.
            over: the other.
            of: the figure of a training; seeds without it, as those that diverged, are absent.
            quotient: of both figures.
        """
        others = {seed: of(one) for seed, one in self.of(over).items()}
        found = {}
        for seed, one in self.of(arm).items():
            own, other = of(one), others.get(seed)
            if own is not None and other:
                found[seed] = quotient(own, other)
        return found


EACH_SEED = (Arm.SWITCHED, Arm.NO_GAMMA, Arm.FIXED)
"""Arms of each seed, the longest first: so cores stand idle for the shortest time at the end."""

ABLATIONS = (Arm.CHANCE, Arm.ROUNDING, Arm.LITERAL_NO_DECAY, Arm.LITERAL)
"""All other arms."""

FIRST_SEED = (Arm.ROUNDING, Arm.LITERAL, Arm.CHANCE)
"""Those that a short study trains with its first seed, by what they tell."""

QUICK, LONG = (
    TrainingRecipe(n_steps=24, measure_every=12),
    TrainingRecipe(n_steps=1000, measure_every=100),
)


def study(
    n_seeds: int,
    recipe: TrainingRecipe,
    box_s: float | None = None,
    ablations: Sequence[Arm] = FIRST_SEED,
    *,
    ablate_all: bool = False,
) -> ConvergenceStudy:
    """Train all arms with some seeds, as many trainings at once as there are cores.

    Args:
        n_seeds: number of seeds.
        recipe: of all trainings.
        box_s: about how long all may take, s: no seed begins that would not end in it, but for the
            first. None: no limit.
        ablations: arms of the first seed beside `EACH_SEED`; they come last.
        ablate_all: train them with every seed.
    """
    box = TimeBox(box_s)
    seeds = [[(arm, seed) for arm in EACH_SEED] for seed in range(n_seeds)]
    last = [(arm, seed) for seed in range(n_seeds if ablate_all else 1) for arm in ablations]
    trained: list[TrainedModel] = []
    n_workers = min(len(os.sched_getaffinity(0)), len(EACH_SEED) * n_seeds)
    # Children that are forked cannot compute gradients where this process has computed some.
    with ProcessPoolExecutor(n_workers, get_context("spawn")) as pool:
        running: set[Future[TrainedModel]] = set()
        for number, tasks in enumerate([*seeds, *([task] for task in last)]):
            while len(running) >= n_workers:
                running = _collected(running, trained)
            if number and not box.has_room(_seconds(tasks, trained) / n_workers):
                continue
            running |= {pool.submit(train, arm, seed, recipe) for arm, seed in tasks}
        while running:
            running = _collected(running, trained)
    order = list(Arm)
    trained.sort(key=lambda one: (one.seed, order.index(one.arm)))
    return ConvergenceStudy(recipe, tuple(trained), n_seeds)


def _collected(
    running: set[Future[TrainedModel]], trained: list[TrainedModel]
) -> set[Future[TrainedModel]]:
    """Wait for one training, and return those that still run."""
    done, left = wait(running, return_when=FIRST_COMPLETED)
    trained += [one.result() for one in done]
    return left


def _seconds(tasks: Sequence[tuple[Arm, int]], trained: Sequence[TrainedModel]) -> float:
    """About how long trainings take one after the other, s, by those that have ended."""
    by_arm = {one.arm: one.wall_s for one in trained}
    longest = max(by_arm.values(), default=0.0)
    return sum(by_arm.get(arm, longest) for arm, _ in tasks)

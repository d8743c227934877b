"""The setting of several levers at which a step takes the least energy, at a limited slowdown.

Every combination of placement, number format, overlap and clocks is priced: all placements of
reward and reference on each second device, FP8 or BF16 in training, stages beside generation or
after it, and a clock each for generation, scoring and training out of a grid. Of those whose step
is at most so much longer than the step as it is, the one of least energy counts. Energy includes
second devices that stand by, so a device that does not pay is not chosen.

Overlap: decoding waits for memory and leaves arithmetic units free, which scoring and training keep
busy. By the graph of an algorithm (`ecorl.stages.graph`) rows can be scored as soon as they are
finished; one step off-policy, the scoring and training of one batch can run beside the generation
of the next, which trains on rows of an older policy.

The bytes and operations are as many as before. What is saved is time, and the power that GPUs draw
whatever they do. How much of a stage hides depends on how both get into each other's way: from
nothing up to all that memory, arithmetic and the board's power leave room for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import reduce
from itertools import combinations

import numpy as np

from ecorl.devices.clocks import ClockCurve, ClockCurves, clock_curves
from ecorl.operate.levers.clocks import (
    CLOCKS,
    TRAINED,
    End,
    clocked,
    geared,
    has_fp8,
    natural_clock,
)
from ecorl.operate.levers.placement import Accelerators, PlacedStep, placed_steps
from ecorl.operate.levers.step import PricedStep, StageDraw
from ecorl.records import INFERENCE_STAGES, Action, Stage
from ecorl.scheduler.tables import CONTENTION, Float64
from ecorl.stages.figures import Number

LAST_SHARE = 0.25
"""Share of a batch's rows that are finished too late to be scored beside generation. Assumed."""

_HIDDEN: dict[End, float] = {"low": 0.0, "usual": 1.0 - CONTENTION, "high": 1.0}
"""Share of a stage's time that hides beside generation."""


def overlapping(off_policy: bool) -> frozenset[Stage]:
    """Return the stages that can run beside generation.

    Args:
        off_policy: whether training may be one step behind.
    """
    later = {Stage.ACTOR_TRAIN, Stage.CRITIC_TRAIN} if off_policy else set()
    return frozenset({*INFERENCE_STAGES, *later})


def hidden_s(
    draws: Sequence[StageDraw],
    limit_w: float | None,
    end: End = "usual",
    *,
    off_policy: bool = False,
) -> Number:
    """Compute by how much a step is shorter where stages run beside generation, s.

    Args:
        draws: of its stages on the GPUs.
        limit_w: what all GPUs may draw together, W; None: there is no limit.
        end: of what is assumed of the stages' getting into each other's way.
        off_policy: whether training may be one step behind.
    """
    generation = next((draw for draw in draws if draw.stage is Stage.GENERATION), None)
    if generation is None:
        return 0.0
    scoring = [draw for draw in draws if draw.stage in INFERENCE_STAGES]
    found = _hidden_s(generation, scoring, 1.0 - LAST_SHARE, limit_w, end)
    if off_policy:
        # Where the board's power leaves no room for all, less may still hide.
        beside = [draw for draw in draws if draw.stage in overlapping(True)]
        for stages in (scoring, beside):
            found = np.maximum(found, _hidden_s(generation, stages, 1.0, limit_w, end))
    return found


def _hidden_s(
    generation: StageDraw,
    beside: Sequence[StageDraw],
    share: float,
    limit_w: float | None,
    end: End,
) -> Number:
    """Compute the time that a share of some stages hides beside generation, s."""
    side_s = share * sum(draw.time_s for draw in beside)
    together_s = generation.time_s + side_s
    # No resource can be used twice at a time, and the board's power is one of them.
    least = [
        generation.time_s,
        side_s,
        generation.memory_s + share * sum(draw.memory_s for draw in beside),
        generation.compute_s + share * sum(draw.compute_s for draw in beside),
    ]
    if limit_w is not None:
        moving_j = share * sum(draw.memory_j + draw.compute_j for draw in beside)
        moving_j = generation.memory_j + generation.compute_j + moving_j
        least.append(moving_j / np.maximum(limit_w - generation.busy_w, 1e-9))
    room_s = together_s - reduce(np.maximum, least)
    return np.maximum(0.0, np.minimum(_HIDDEN[end] * side_s, room_s))


MOST_SLOWDOWN = 0.02
"""A step may take this share longer than it does as it is."""


class Lever(StrEnum):
    """A way to take joules out of a step."""

    PLACEMENT = "placement"
    CLOCKS = "clocks"
    OVERLAP = "overlap"
    GEARS = "gears"


ALL_LEVERS = tuple(Lever)

_ROUNDING = 1e-12
"""Share below which two energies differ by rounding alone."""

_GROUPS: tuple[tuple[Stage, ...], ...] = ((Stage.GENERATION,), INFERENCE_STAGES, TRAINED)
"""Stages that share a clock, by the axes of the arrays."""


@dataclass(frozen=True, slots=True)
class LeverLimits:
    """What may be done to a step.

    Attributes:
        slowdown: share by which it may take longer, 0 or more.
        off_policy: whether scoring and training may run beside the next batch's generation.
        rollout: whether generation may be in FP8 as well.
    """

    slowdown: float = MOST_SLOWDOWN
    off_policy: bool = False
    rollout: bool = False


@dataclass(frozen=True, slots=True)
class LeverSetting:
    """Levers at the setting of least energy.

    Attributes:
        time_s, energy_j: of a step, s and J.
        saved_share: energy that is saved of that of the step as it is; never below 0, since
            leaving all as it is is one of the settings.
        slowdown: time over that of the step as it is, less 1.
        clocks: locks of generation, scoring and training over the greatest clock; 1: none is set.
        fp8: whether training is in FP8.
        overlapped_s: by how much the step is shorter since stages run beside generation, s.
        accelerator: name of the second device that is used; None where none is.
        actions: of the stages that leave the GPUs.
    """

    time_s: float
    energy_j: float
    saved_share: float
    slowdown: float
    clocks: tuple[float, float, float] = (1.0, 1.0, 1.0)
    fp8: bool = False
    overlapped_s: float = 0.0
    accelerator: str | None = None
    actions: Mapping[Stage, Action] = field(default_factory=dict)


def missing_levers(step: PricedStep, others: Sequence[Accelerators]) -> dict[Lever, str]:
    """Say of each lever that cannot be priced or pulled in a job why that is so.

    Args:
        step: as it is.
        others: second devices that there are or could be.
    """
    found = {}
    if not any(one.usable for one in others):
        told = "; ".join(dict.fromkeys(one.why_not for one in others if one.why_not))
        found[Lever.PLACEMENT] = told or "there is no second device"
    if clock_curves(step.gpu) is None:
        found[Lever.CLOCKS] = f"what {step.gpu.title} draws at a lower clock is not published"
    if not has_fp8(step.gpu):
        found[Lever.GEARS] = f"{step.gpu.title} has no FP8 units"
    return found


def least_energy(
    step: PricedStep,
    levers: Iterable[Lever],
    others: Sequence[Accelerators] = (),
    limits: LeverLimits | None = None,
    end: End = "usual",
) -> LeverSetting:
    """Find the setting of some levers at which a step takes the least energy.

    Args:
        step: as it is, on GPUs alone.
        levers: those that may be set; the others stay as they are.
        others: second devices, of which one kind at most is used.
        limits: what may be done; None: the usual ones.
        end: of what is published or assumed of the levers.
    """
    free, may = frozenset(levers), limits or LeverLimits()
    best = LeverSetting(step.time_s, step.energy_j, 0.0, 0.0)
    for candidate in _candidates(step, free, others, may, end):
        if candidate.energy_j < best.energy_j * (1.0 - _ROUNDING):
            best = candidate
    return best


def _candidates(
    step: PricedStep,
    free: frozenset[Lever],
    others: Sequence[Accelerators],
    may: LeverLimits,
    end: End,
) -> Iterator[LeverSetting]:
    """Yield the best setting of clocks for each combination of the rest."""
    gears = (False, True) if Lever.GEARS in free and has_fp8(step.gpu) else (False,)
    overlaps = (False, True) if Lever.OVERLAP in free else (False,)
    devices = others if Lever.PLACEMENT in free else ()
    curves = clock_curves(step.gpu) if Lever.CLOCKS in free else None
    for fp8 in gears:
        draws = [geared(d, end, rollout=may.rollout) if fp8 else d for d in step.draws]
        draws = _at_clocks(draws, curves, end, step)
        for accelerator, placed in _placements(draws, devices):
            for is_overlapped in overlaps:
                found = _best_clocks(step, placed, may, end, is_overlapped)
                if found is not None:
                    clocks, time_s, energy_j, hidden = found
                    yield LeverSetting(
                        time_s=time_s,
                        energy_j=energy_j,
                        saved_share=1.0 - energy_j / step.energy_j,
                        slowdown=time_s / step.time_s - 1.0,
                        clocks=clocks,
                        fp8=fp8,
                        overlapped_s=hidden,
                        accelerator=accelerator,
                        actions=placed.actions,
                    )


def _placements(
    draws: list[StageDraw], devices: Sequence[Accelerators]
) -> Iterator[tuple[str | None, PlacedStep]]:
    time_s, energy_j = sum(d.time_s for d in draws), sum(d.energy_j for d in draws)
    yield None, PlacedStep({}, tuple(draws), time_s, energy_j, 0.0)
    for one in devices:
        for placed in placed_steps(draws, one):
            yield one.profile.name, placed


def _best_clocks(
    step: PricedStep, placed: PlacedStep, may: LeverLimits, end: End, is_overlapped: bool
) -> tuple[tuple[float, float, float], float, float, float] | None:
    """The clocks of least energy, with time, energy and hidden time; None where all are too slow.

    Figures are floats where clocks are not free, or ``[n, n, n]`` over the clocks of the groups.
    """
    hidden: Float64 = np.zeros(1)
    if is_overlapped:
        generation = next((d for d in placed.on_gpus if d.stage is Stage.GENERATION), None)
        if generation is None:
            return None
        found = hidden_s(placed.on_gpus, step.limit_w, end, off_policy=may.off_policy)
        # Where the GPUs wait for a second device anyway, a shorter pass only makes them wait more.
        hidden = np.where(np.asarray(placed.bubble_s) > 0.0, 0.0, found)
        energies = np.asarray(placed.energy_j - generation.busy_w * hidden)
    else:
        energies = np.asarray(placed.energy_j)
    times = np.asarray(placed.time_s - hidden)
    times, energies, hidden = np.broadcast_arrays(times, energies, hidden)
    fits = times <= step.time_s * (1.0 + may.slowdown) * (1.0 + _ROUNDING)
    if not fits.any():
        return None
    place = np.unravel_index(int(np.argmin(np.where(fits, energies, np.inf))), energies.shape)
    chosen = [CLOCKS[i] for i in place] if len(place) == len(_GROUPS) else [1.0, 1.0, 1.0]
    clocks = (chosen[0], chosen[1], chosen[2])
    return clocks, float(times[place]), float(energies[place]), float(hidden[place])


def _at_clocks(
    draws: list[StageDraw], curves: ClockCurves | None, end: End, step: PricedStep
) -> list[StageDraw]:
    """Return the stages at all locks, one axis a group of stages."""
    if curves is None:
        return draws
    curve: ClockCurve = {"low": curves.low, "usual": curves.usual, "high": curves.high}[end]
    found = []
    for draw in draws:
        axis = next(i for i, group in enumerate(_GROUPS) if draw.stage in group)
        shape = [1, 1, 1]
        shape[axis] = len(CLOCKS)
        most_w = math.inf
        if curve.most_share is not None and step.limit_w is not None:
            most_w = curve.most_share * step.limit_w
        # Where nothing is known a lock is slower and no cheaper: never chosen.
        known = replace(curve, static_share=1.0) if draw.power_w > most_w else curve
        natural = natural_clock(draw, step, curve, end)
        found.append(clocked(draw, np.array(CLOCKS).reshape(shape), known, natural))
    return found


def subsets(levers: Sequence[Lever] = ALL_LEVERS) -> Iterator[tuple[Lever, ...]]:
    """Yield every combination of levers, from single ones up to all.

    Args:
        levers: of which.
    """
    for n in range(1, len(levers) + 1):
        yield from combinations(levers, n)


def adoption_order(settings: Mapping[frozenset[Lever], LeverSetting]) -> list[tuple[Lever, float]]:
    """Order levers so that each adds most to those before it.

    Args:
        settings: of every combination, from `subsets`.

    Returns:
        Levers with the share of the energy that each adds.
    """
    chosen: frozenset[Lever] = frozenset()
    left = {lever for levers in settings for lever in levers}
    order, saved = [], 0.0
    while left:
        best = max(sorted(left), key=lambda one: settings[chosen | {one}].saved_share)
        chosen |= {best}
        left.discard(best)
        order.append((best, settings[chosen].saved_share - saved))
        saved = settings[chosen].saved_share
    return order


def interactions(
    settings: Mapping[frozenset[Lever], LeverSetting],
) -> list[tuple[Lever, Lever, float]]:
    """Compute what two levers save together beyond what each saves alone.

    Args:
        settings: of every combination, from `subsets`.

    Returns:
        Pairs with that share of the energy, the largest in size first; below 0 the levers get into
        each other's way.
    """
    levers = sorted({lever for levers in settings for lever in levers})
    found = []
    for one, other in combinations(levers, 2):
        alone = settings[frozenset({one})].saved_share + settings[frozenset({other})].saved_share
        found.append((one, other, settings[frozenset({one, other})].saved_share - alone))
    return sorted(found, key=lambda row: -abs(row[2]))

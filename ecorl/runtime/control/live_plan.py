"""What a live run plans with: power and throughput of its training stage by gear and width.

A run's problem is one of steps. In the table a token is a second of a step in the first gear and
width (`LivePlan.step_tokens` of them make a step), so that throughputs are ratios. They come from

- the run's own steps, in each gear and width in which some were timed;
- the table of the config (``carbon.control.table``), in its proportions, for the others;
- nowhere: then all gears count as equally fast until they are timed.

A simulated gear is planned with only under a table of the config, which is then that of another
device: what it saves there it does not save here. So that the deadline is kept all the same, the
fastest gear of such a plan counts as no faster than the slowest steps that were timed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ecorl.control import Gear, TrainingStage
from ecorl.controllers.problem.table import GearTable, TrainingAction
from ecorl.kinds import Provenance
from ecorl.runtime.control.step_record import Ran, StepRecord

FloatArray = NDArray[np.float64]

STANDS_IN = Gear.BF16
"""Stands for the framework's own gear where a run has no others; it is told to nobody."""


@dataclass(frozen=True, eq=False)
class LivePlan:
    """The table of a live run.

    Attributes:
        table: power and throughput, of which only proportions count.
        step_tokens: what an optimizer step is in the table's tokens.
        present: what the last step ran in.
    """

    table: GearTable
    step_tokens: float
    present: TrainingAction

    def is_like(self, other: LivePlan) -> bool:
        """Whether another plan has the same actions and nearly the same figures.

        Args:
            other: made later.
        """
        a, b = self.table, other.table
        if (a.gears, a.widths) != (b.gears, b.widths):
            return False
        rates = np.allclose(_over_first(a.tokens_per_s), _over_first(b.tokens_per_s), rtol=0.1)
        powers = np.allclose(_over_first(a.power_w), _over_first(b.power_w), rtol=0.1)
        return bool(rates and powers)


def live_plan(
    steps: StepRecord, stage: TrainingStage, shape: GearTable | None, reserve: float
) -> LivePlan:
    """Put together what is known of a run's gears and widths.

    Args:
        steps: of the run; at least one is timed.
        stage: what can be chosen.
        shape: the table of the config; None without one.
        reserve: share of the time that is kept free beside the steps.

    Raises:
        ValueError: when no step is timed.
    """
    gears, widths = offered(stage, shape)
    seconds = _seconds(steps, stage, shape, gears, widths)
    reference_s = seconds[0, 0]
    rates = reference_s / seconds
    rehearsed = [gear for gear in gears if gear in stage.simulated]
    if rehearsed:
        slowest_s = max(t for t in map(steps.time_s, steps.ran()) if t is not None)
        rates, reference_s = rates / rates.max(), max(slowest_s, seconds.min())
    powers = _powers(steps, shape, gears, widths)
    keep = _rising(rates)
    table = GearTable(
        gears=gears,
        widths=tuple(width for width, is_kept in zip(widths, keep, strict=True) if is_kept),
        power_w=np.maximum.accumulate(powers[:, keep], axis=1),
        tokens_per_s=rates[:, keep] / (1.0 + reserve),
        provenance=Provenance.MEASURED if shape is None else shape.provenance,
        source="the run's own steps" if shape is None else f"{shape.source}; the run's own steps",
    )
    gear = stage.gear if stage.gear in gears else gears[0]
    width = stage.width if stage.width in table.widths else table.widths[0]
    return LivePlan(table, float(reference_s), TrainingAction(width, gear))


def offered(
    stage: TrainingStage, shape: GearTable | None
) -> tuple[tuple[Gear, ...], tuple[int, ...]]:
    """The gears and widths that are planned with.

    Args:
        stage: what can be chosen.
        shape: the table of the config; None without one.
    """
    gears = stage.gears or (STANDS_IN,)
    widths = stage.widths or (stage.width or 1,)
    if shape is None:
        # A simulated gear saves nothing, and would be timed for nothing.
        real = tuple(gear for gear in gears if gear not in stage.simulated)
        return real or gears[:1], widths
    known = tuple(gear for gear in gears if gear in shape.gears)
    wide = tuple(width for width in widths if width in shape.widths)
    return known or gears[:1], wide or widths[:1]


def untimed(
    steps: StepRecord, stage: TrainingStage, shape: GearTable | None, n: int
) -> Gear | None:
    """A gear of which too few steps were timed for a plan; None: all are known well enough.

    Each gear is timed, also where a table tells its speed: a plan that learnt only near the
    deadline that a gear is slower could not keep it.

    Args:
        steps: of the run.
        stage: what can be chosen.
        shape: the table of the config; None without one.
        n: how many steps are enough.
    """
    gears, _ = offered(stage, shape)
    left = stage.low_steps_left
    may_be_low = left is None or left >= 1.0
    asked = [gear for gear in gears if may_be_low or not gear.is_low] or gears[:1]
    return next((g for g in asked if steps.count(_ran(g, stage.width, stage)) < n), None)


def _seconds(
    steps: StepRecord,
    stage: TrainingStage,
    shape: GearTable | None,
    gears: tuple[Gear, ...],
    widths: tuple[int, ...],
) -> FloatArray:
    """``[G, W]``: time of a step, s, measured where it was and else by the table's proportions."""
    measured = np.full((len(gears), len(widths)), math.nan)
    for g, gear in enumerate(gears):
        for w, width in enumerate(widths):
            time_s = steps.time_s(_ran(gear, width, stage))
            # What a simulated gear takes here says nothing of the device that is planned for.
            if time_s is not None and gear not in stage.simulated:
                measured[g, w] = time_s
    relative = np.ones_like(measured)
    if shape is not None:
        rows = [[_rate(shape, gear, width) for width in widths] for gear in gears]
        relative = 1.0 / np.array(rows)
    scale = float(np.nanmedian(measured / relative)) if np.isfinite(measured).any() else math.nan
    if not math.isfinite(scale):
        newest_s = steps.step_s
        if newest_s is None:
            raise ValueError("no step is timed")
        scale = newest_s / float(relative[0, 0])
    if any(gear in stage.simulated for gear in gears):
        return scale * relative
    found: FloatArray = np.where(np.isfinite(measured), measured, scale * relative)
    return found


def _powers(
    steps: StepRecord,
    shape: GearTable | None,
    gears: tuple[Gear, ...],
    widths: tuple[int, ...],
) -> FloatArray:
    """``[G, W]``: power, W: the table's, or what was measured; 1 W each where nothing is known."""
    if shape is not None and set(gears) <= set(shape.gears) and set(widths) <= set(shape.widths):
        return np.array([[shape.power(TrainingAction(w, g)) for w in widths] for g in gears])
    found = np.array(
        [[steps.power_w(Ran(g, w)) or steps.power_w(Ran(g)) or math.nan for w in widths]
         for g in gears]
    )  # fmt: skip
    if not np.isfinite(found).any():
        known = [p for p in map(steps.power_w, steps.ran()) if p is not None]
        return np.full(found.shape, known[0] if known else 1.0)
    return np.where(np.isfinite(found), found, float(np.nanmean(found)))


def _rate(shape: GearTable, gear: Gear, width: int) -> float:
    """Throughput by the config's table; 1 for what it does not have and is then planned alone."""
    if gear not in shape.gears or width not in shape.widths:
        return 1.0
    return shape.rate(TrainingAction(width, gear))


def _rising(rates: FloatArray) -> NDArray[np.bool_]:
    """``[W] bool``: widths that are at least as fast as those before them, in each gear."""
    keep = np.ones(rates.shape[1], dtype=np.bool_)
    last = rates[:, 0]
    for w in range(1, rates.shape[1]):
        keep[w] = bool((rates[:, w] >= last).all())
        if keep[w]:
            last = rates[:, w]
    return keep


def _ran(gear: Gear, width: int | None, stage: TrainingStage) -> Ran:
    """The key under which steps of a gear and width are recorded for this stage."""
    return Ran(gear if stage.gears else None, width if stage.width is not None else None)


def _over_first(values: FloatArray) -> FloatArray:
    found: FloatArray = values / values[0, 0]
    return found

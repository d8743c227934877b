"""What a live run plans with: power and throughput of its training stage by gear and width.

A run's problem is one of steps. In the table a token is a second of a step in the first gear and
width (`LivePlan.step_tokens` of them make a step), so that throughputs are ratios. They come from

- the run's own steps, in each gear and width in which some were timed;
- the table of the config (``carbon.control.table``), in its proportions, for the others;
- nowhere: then all gears count as equally fast until they are timed.

A simulated gear is planned with only under a table of the config, which is then that of another
device: what it saves there it does not save here. The controller goes by the table's proportions
then, at the pace that the mix of gears has here; the deadline is kept by what the steps take here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ecorl.control import Gear, TrainingStage
from ecorl.controllers.problem.table import PAUSE, GearTable, TrainingAction
from ecorl.controllers.problem.training import TrainingProblem
from ecorl.kinds import Provenance
from ecorl.runtime.control.step_record import Ran, StepRecord

FloatArray = NDArray[np.float64]

STANDS_IN = Gear.BF16
"""Stands for the framework's own gear where a run has no others; it is told to nobody."""


@dataclass(frozen=True, eq=False)
class LivePlan:
    """The table of a live run.

    Attributes:
        table: power and throughput by which the controller decides; only proportions count.
        clock: the same with what steps take here, by which the deadline is kept.
        step_tokens: what an optimizer step is in the table's tokens.
        present: what the last step ran in.
        tried: widths at whose full speed the deadline is kept; empty: all.
    """

    table: GearTable
    clock: GearTable
    step_tokens: float
    present: TrainingAction
    tried: tuple[int, ...]

    def is_like(self, other: LivePlan) -> bool:
        """Whether another plan has the same actions and workers and nearly the same figures.

        Args:
            other: made later.
        """
        a, b = self.table, other.table
        if (a.gears, a.widths, self.tried) != (b.gears, b.widths, other.tried):
            return False
        if self.present.width != other.present.width:
            return False
        rates = [
            (a.tokens_per_s, b.tokens_per_s),
            (self.clock.tokens_per_s, other.clock.tokens_per_s),
        ]
        powers = _over_first(a.power_w), _over_first(b.power_w)
        return all(np.allclose(one, two, rtol=0.1) for one, two in (*rates, powers))


@dataclass(frozen=True)
class LiveProblem(TrainingProblem):
    """The problem of a run that is under way.

    Its workers stand still in a pause, and keep all that they hold: a change of the width starts
    other processes and takes its time, behind a pause too, and a pause begins and ends at once.
    Under the table of another device its deadline is kept at full speed of the widths that have
    been tried alone.

    Attributes:
        tried: widths in which steps were timed; empty: all count.
        held: number of workers that there are; None: nobody counts them.
    """

    tried: tuple[int, ...] = ()
    held: int | None = None

    def _is_tried(self, action: TrainingAction) -> bool:
        return not self.tried or action.width in self.tried

    @cached_property
    def _fastest(self) -> TrainingAction:
        return max(filter(self._is_tried, self.table.actions()), key=self.rate, default=PAUSE)

    @cached_property
    def _fastest_high(self) -> TrainingAction:
        actions = [a for a in self.table.actions() if self._is_tried(a) and not a.is_low]
        return max(actions, key=self.rate, default=PAUSE)

    def change_s(self, before: TrainingAction, after: TrainingAction) -> float:
        """Time without training when one action follows another, s. See `TrainingProblem`."""
        if after.is_pause:
            return 0.0
        if before.is_pause:
            return 0.0 if self.held in (None, after.width) else self.width_change_s
        return super().change_s(before, after)


def live_plan(
    steps: StepRecord,
    stage: TrainingStage,
    shape: GearTable | None,
    reserve: float,
    steps_left: int | None = None,
) -> LivePlan:
    """Put together what is known of a run's gears and widths.

    Args:
        steps: of the run; at least one is timed.
        stage: what can be chosen.
        shape: the table of the config; None without one.
        reserve: share of the time that is kept free beside the steps.
        steps_left: steps that training has before it; None: unknown.

    Raises:
        ValueError: when no step is timed.
    """
    gears, widths = offered(stage, shape)
    seconds = _seconds(steps, stage, shape, gears, widths)
    clock_s = _clock_s(steps, stage, gears, widths, seconds)
    reference_s = float(seconds[0, 0])
    is_rehearsal = any(gear in stage.simulated for gear in gears)
    if is_rehearsal:
        seconds = seconds * _slowness(stage, gears, seconds, clock_s, steps_left)
    keep = _rising(reference_s / seconds) & _rising(reference_s / clock_s)
    told = "the run's own steps"
    table = GearTable(
        gears=gears,
        widths=tuple(width for width, is_kept in zip(widths, keep, strict=True) if is_kept),
        power_w=np.maximum.accumulate(_powers(steps, shape, gears, widths)[:, keep], axis=1),
        tokens_per_s=(reference_s / seconds)[:, keep] / (1.0 + reserve),
        provenance=Provenance.MEASURED if shape is None else shape.provenance,
        source=told if shape is None else f"{shape.source}; {told}",
    )
    clock = replace(table, tokens_per_s=(reference_s / clock_s)[:, keep] / (1.0 + reserve))
    gear = stage.gear if stage.gear in gears else gears[0]
    width = stage.width if stage.width in table.widths else table.widths[0]
    tried: tuple[int, ...] = ()
    if is_rehearsal:
        # The table is another device's: what it says of widths nobody has tried here.
        timed = {ran.width or width for ran in steps.ran()}
        tried = tuple(one for one in table.widths if one in timed) or (width,)
    return LivePlan(table, clock, reference_s, TrainingAction(width, gear), tried)


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
    measured = _measured(steps, stage, gears, widths)
    for g, gear in enumerate(gears):
        if gear in stage.simulated:
            # What a simulated gear takes here says nothing of the device that is planned for.
            measured[g] = math.nan
    relative = np.ones_like(measured)
    if shape is not None:
        rows = [[_rate(shape, gear, width) for width in widths] for gear in gears]
        relative = 1.0 / np.array(rows)
    scale = float(np.nanmedian(measured / relative)) if np.isfinite(measured).any() else math.nan
    if not math.isfinite(scale):
        newest_s = steps.step_s
        if newest_s is None:
            raise ValueError("no step is timed")
        scale = newest_s / float(relative[_plain(stage, gears), 0])
    found: FloatArray = np.where(np.isfinite(measured), measured, scale * relative)
    plain = _plain(stage, gears)
    for g, gear in enumerate(gears):
        if gear in stage.simulated and g != plain:
            # Widths are real ones all the same: they scale as a gear does that is not simulated.
            found[g] = found[plain] * relative[g] / relative[plain]
    return found


def _clock_s(
    steps: StepRecord,
    stage: TrainingStage,
    gears: tuple[Gear, ...],
    widths: tuple[int, ...],
    seconds: FloatArray,
) -> FloatArray:
    """``[G, W]``: what a step takes here, s; of a simulated gear it is never less than was seen."""
    measured = _measured(steps, stage, gears, widths)
    found: FloatArray = np.where(np.isfinite(measured), measured, seconds)
    plain = _plain(stage, gears)
    for g, gear in enumerate(gears):
        if gear in stage.simulated:
            slower = np.nanmax(measured[g] / seconds[plain], initial=1.0)
            found[g] = np.where(np.isfinite(measured[g]), measured[g], slower * seconds[plain])
    return found


def _plain(stage: TrainingStage, gears: tuple[Gear, ...]) -> int:
    """Index of the first gear that is neither of low precision nor simulated; 0 without one."""
    found = (g for g, gear in enumerate(gears) if not gear.is_low and gear not in stage.simulated)
    return next(found, 0)


def _slowness(
    stage: TrainingStage,
    gears: tuple[Gear, ...],
    seconds: FloatArray,
    clock_s: FloatArray,
    steps_left: int | None,
) -> float:
    """How much longer than by the table a mean step takes here, with as many low ones as may be."""
    plain = _plain(stage, gears)
    low = next((g for g, gear in enumerate(gears) if gear in stage.simulated), plain)
    share = 1.0
    if stage.low_steps_left is not None and steps_left:
        share = min(1.0, stage.low_steps_left / steps_left)
    means = [share * one[low, 0] + (1.0 - share) * one[plain, 0] for one in (clock_s, seconds)]
    return float(max(1.0, means[0] / means[1]))


def _measured(
    steps: StepRecord, stage: TrainingStage, gears: tuple[Gear, ...], widths: tuple[int, ...]
) -> FloatArray:
    """``[G, W]``: median time of the steps that were timed, s; NaN where none was."""
    rows = [[steps.time_s(_ran(g, w, stage)) for w in widths] for g in gears]
    return np.array([[math.nan if t is None else t for t in row] for row in rows])


def _powers(
    steps: StepRecord, shape: GearTable | None, gears: tuple[Gear, ...], widths: tuple[int, ...]
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

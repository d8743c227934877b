"""Power and throughput of the training stage by gear and width, from a run's record."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ecorl.control import SIMULATED, Gear
from ecorl.controllers.planning.executions import (
    Iteration,
    WholeExecution,
    is_forward,
    is_measurement,
    measured_inside,
    redone_iterations,
    whole_executions,
)
from ecorl.controllers.problem.table import PAUSE, FloatArray, GearTable, TrainingAction
from ecorl.errors import RunError
from ecorl.kinds import Provenance, Stage, weakest
from ecorl.ledger import ExecutionRow, FaultRow, MetricRow
from ecorl.records import StageResult

TRAINED = Stage.ACTOR_TRAIN
"""The stage whose width and gear are governed."""


@dataclass(frozen=True, slots=True)
class GearReading:
    """What executions of the training stage in one gear and width drew and trained.

    Attributes:
        action: gear and width.
        n: number of executions.
        power_w: energy of all workers over time, W.
        tokens_per_s: tokens that passed through the model over time.
        power_spread_w: standard deviation of the executions' power, W; None with one alone.
        tokens_spread_per_s: the same of their throughput.
        provenance: the weakest of the executions' energies and times.
    """

    action: TrainingAction
    n: int
    power_w: float
    tokens_per_s: float
    power_spread_w: float | None
    tokens_spread_per_s: float | None
    provenance: Provenance

    @property
    def j_per_token(self) -> float:
        """Energy of a token, J."""
        return self.power_w / self.tokens_per_s


@dataclass(frozen=True, slots=True)
class TrainingProfile:
    """The readings of a run, and what of its record could not be used.

    Attributes:
        readings: by gear and width.
        source: the run, in one line.
        left_out: number of executions that were left out, by reason.
    """

    readings: tuple[GearReading, ...]
    source: str
    left_out: Mapping[str, int]

    @property
    def gears(self) -> tuple[Gear, ...]:
        """The gears that were read, in the order of `Gear`."""
        found = {reading.action.gear for reading in self.readings}
        return tuple(gear for gear in Gear if gear in found)

    @property
    def widths(self) -> tuple[int, ...]:
        """The widths in which each of the gears was read, rising."""
        places = {reading.action for reading in self.readings}
        widths = sorted({action.width for action in places})
        return tuple(
            w for w in widths if all(TrainingAction(w, gear) in places for gear in self.gears)
        )

    @property
    def counts(self) -> Mapping[TrainingAction, int]:
        """Number of executions by gear and width."""
        return {reading.action: reading.n for reading in self.readings}

    def table(self) -> GearTable:
        """The table of all gears, at the widths in which each of them was read.

        Raises:
            RunError: when there is no such width.
            ConfigError: when power or throughput falls where the width rises.
        """
        if not self.readings:
            raise RunError(f"{self.source}: no execution of {TRAINED} tells gear, width and energy")
        if not self.widths:
            told = ", ".join(self.gears)
            raise RunError(f"{self.source}: no width was run in each of its gears ({told})")
        found = {reading.action: reading for reading in self.readings}
        rows = [[found[TrainingAction(w, g)] for w in self.widths] for g in self.gears]
        used = [reading for row in rows for reading in row]
        return GearTable(
            gears=self.gears,
            widths=self.widths,
            power_w=np.array([[one.power_w for one in row] for row in rows]),
            tokens_per_s=np.array([[one.tokens_per_s for one in row] for row in rows]),
            provenance=weakest(*(one.provenance for one in used)),
            source=self.source,
            power_spread_w=_spreads([[one.power_spread_w for one in row] for row in rows]),
            tokens_spread_per_s=_spreads(
                [[one.tokens_spread_per_s for one in row] for row in rows]
            ),
        )


def training_profile(
    executions: Sequence[ExecutionRow],
    source: str,
    *,
    own: TrainingAction = PAUSE,
    skip: int = 0,
    faults: Sequence[FaultRow] = (),
    lost: Collection[int] = (),
    metrics: Sequence[MetricRow] = (),
) -> TrainingProfile:
    """Read power and throughput of each gear and width.

    Parts of one execution on several machines are put together first: power is that of all
    workers. A simulated gear is never read: it drew and took what the format drew and took in which
    it was computed, and its own rounding on top.

    Args:
        executions: of a run's record.
        source: the run, in one line.
        own: what executions are taken to have run with that tell no gear or no width, 0 and None
            for unknown; with those they are left out.
        skip: how many executions after each begin, and each change of width or gear, are left out:
            they are slower than those that follow.
        faults: of the run's record: steps that were computed anew tell nothing of their gear.
        lost: attempts of which the record of a machine is missing or not whole.
        metrics: of the run's record: they tell in which steps the gears were measured.
    """
    left_out: dict[str, int] = defaultdict(int)
    kept: dict[TrainingAction, list[StageResult]] = defaultdict(list)
    redone = redone_iterations(faults)
    own_rows = [e for e in executions if not e.superseded and e.result.stage is TRAINED]
    idle = _idle_in(own_rows)
    wholes = whole_executions(own_rows, lost)
    inside = measured_inside(metrics, (w for w in wholes if is_measurement(w.row.result)))
    before: tuple[int, TrainingAction] | None = None
    n_same = 0
    for whole in wholes:
        result, attempt = whole.row.result, whole.row.attempt
        why_idle = idle(result)
        if why_idle is not None:
            left_out[why_idle] += 1
            continue
        action = _action(result, own)
        unusable = action if isinstance(action, str) else _unusable(whole, redone, inside)
        if unusable is not None or isinstance(action, str):
            left_out[str(unusable)] += 1
            if result.gear is not None:
                before = None  # what follows is in another gear, or comes after a change
            continue
        n_same = n_same + 1 if before == (attempt, action) else 0
        before = (attempt, action)
        flaw = "came first after a begin or a change" if n_same < skip else _flaw(result)
        if flaw is None:
            kept[action].append(result)
        else:
            left_out[flaw] += 1
    n = sum(map(len, kept.values()))
    readings = tuple(_reading(action, kept[action]) for action in sorted(kept, key=_order))
    return TrainingProfile(readings, f"{source}: {n} executions of {TRAINED}", dict(left_out))


def _idle_in(rows: Sequence[ExecutionRow]) -> Callable[[StageResult], str | None]:
    """A function that tells why an execution of a run trained on nothing; None where it trained."""
    has_gears = any(row.result.gear is not None for row in rows)
    # Where nobody counts output tokens, their lack tells nothing.
    tells_forwards = has_gears or any(row.result.n_output_tokens for row in rows)

    def idle(result: StageResult) -> str | None:
        if has_gears and is_measurement(result):
            return "measured the gears, and trained on nothing"
        if tells_forwards and is_forward(result):
            return "passed forward for old log-probabilities alone"
        return None

    return idle


def _unusable(
    whole: WholeExecution, redone: Collection[Iteration], inside: Collection[Iteration]
) -> str | None:
    """Why an execution is not what its gear and width take alone, or None."""
    if whole.iteration in redone:
        return "was computed anew after an overflow"
    if whole.iteration in inside:
        return "measured the gears in its time"
    return "lacks the record of a machine" if whole.lacks_machine else None


def _action(result: StageResult, own: TrainingAction) -> TrainingAction | str:
    """Gear and width of an execution, or why it has none."""
    gear, width = result.gear, result.width
    if gear is not None and gear.endswith(SIMULATED):
        return "simulated its gear"
    if gear is None:
        gear = own.gear
    if width is None:
        width = own.width or None
    if gear is None or width is None:
        lacks = [name for name, value in (("gear", gear), ("width", width)) if value is None]
        return f"told no {' and no '.join(lacks)}"
    if gear not in list(Gear):
        return f"ran in a gear that nobody knows ({gear})"
    return TrainingAction(width, Gear(gear)) if width > 0 else "told a width of 0"


def _flaw(result: StageResult) -> str | None:
    """Why an execution with gear and width tells no power or no throughput, or None."""
    energy = result.energy
    if result.fault is not None:
        return "ended with a fault"
    if not result.time_s or result.n_tokens <= 0:
        return "told no time or no tokens"
    if energy is None or energy.energy_j is None or not energy.energy_j > 0:
        return "told no energy"
    if not energy.t_end_s > energy.t_start_s:
        return "told no time or no tokens"
    return None


def _reading(action: TrainingAction, results: Sequence[StageResult]) -> GearReading:
    times_s = [result.time_s or math.nan for result in results]
    energies = [result.energy for result in results if result.energy is not None]
    joules = [energy.energy_j or math.nan for energy in energies]
    windows_s = [energy.t_end_s - energy.t_start_s for energy in energies]
    powers_w = [j / t for j, t in zip(joules, windows_s, strict=True)]
    rates = [result.n_tokens / t for result, t in zip(results, times_s, strict=True)]
    provenances = [energy.provenance for energy in energies]
    provenances += [result.time_provenance for result in results]
    return GearReading(
        action=action,
        n=len(results),
        power_w=sum(joules) / sum(windows_s),
        tokens_per_s=sum(result.n_tokens for result in results) / sum(times_s),
        power_spread_w=statistics.stdev(powers_w) if len(results) > 1 else None,
        tokens_spread_per_s=statistics.stdev(rates) if len(results) > 1 else None,
        provenance=weakest(*provenances),
    )


def _order(action: TrainingAction) -> tuple[int, int]:
    assert action.gear is not None
    return list(Gear).index(action.gear), action.width


def _spreads(rows: Sequence[Sequence[float | None]]) -> FloatArray:
    return np.array([[math.nan if value is None else value for value in row] for row in rows])

"""The handles of what is under way in a run, and its sums: plain values that can be pickled.

A hook in another process holds neither a lock nor a thread of the runtime, only these.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ecorl.engines.packing import PackedTokens
from ecorl.engines.protocol import ScoreBatch
from ecorl.records import Action, Placement, Provenance, Role, StageWork

Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Iteration:
    """A handle to one iteration that is under way.

    Attributes:
        number: 1-based, as the trainer's step.
        batch: 0-based number of the rollout batch that is generated in it.
        serial: tells it from all others of the run, also from one of the same number.
    """

    number: int
    batch: int
    serial: int


@dataclass(frozen=True, slots=True)
class PlacedStage:
    """A stage of an iteration, and where it was placed.

    Attributes:
        serial: tells the execution from all others of the run.
        iteration: that it belongs to.
        work: what is to be done, as far as it is known.
        placement: the decision.
    """

    serial: int
    iteration: Iteration
    work: StageWork
    placement: Placement


def undecided(iteration: Iteration, work: StageWork) -> Placement:
    """The placement of what only the framework does: no policy was asked and nothing is recorded.

    Args:
        iteration: that it belongs to.
        work: what is to be done.
    """
    own = Action.GPU
    return Placement(iteration.number, work.stage, own, own, "", "", role_name=work.role_name)


@dataclass(frozen=True, slots=True)
class Span:
    """When an execution held devices of one machine, and which.

    Attributes:
        t_start_s: when it began, monotonic s of the machine.
        t_end_s: when it ended, monotonic s of the machine; infinite while it is under way.
        device_ids: the devices; None: those of the machine's GPU path.
    """

    t_start_s: float
    t_end_s: float
    device_ids: tuple[str, ...] | None = None


def held_s(spans: Sequence[Span]) -> float:
    """Time in which at least one of the spans lasted, s.

    Args:
        spans: of one execution; all have ended.
    """
    found_s, until_s = 0.0, -math.inf
    for span in sorted(spans, key=lambda s: s.t_start_s):
        found_s += max(0.0, span.t_end_s - max(span.t_start_s, until_s))
        until_s = max(until_s, span.t_end_s)
    return found_s


def without(
    spans: Sequence[tuple[float, float]], taken: Sequence[tuple[float, float]]
) -> list[tuple[float, float]]:
    """What is left of spans of time without others, s.

    Args:
        spans: in order, without overlaps.
        taken: likewise.
    """
    left = []
    for begin_s, end_s in spans:
        for taken_s, until_s in taken:
            if until_s <= begin_s or taken_s >= end_s:
                continue
            if taken_s > begin_s:
                left.append((begin_s, taken_s))
            begin_s = until_s
        if begin_s < end_s:
            left.append((begin_s, end_s))
    return left


@dataclass(slots=True)
class StageRun:
    """A handle to one stage execution that is under way.

    Attributes:
        stage: what is executed, and where.
        t_start_s: when its clock started, or started again, monotonic s of this machine; None
            while it stands.
        batch: the rows that were sent to an engine; None while none were.
        earlier: begin and end of the times before its clock was stopped, monotonic s.
    """

    stage: PlacedStage
    t_start_s: float | None
    batch: ScoreBatch | None = None
    earlier: list[tuple[float, float]] = field(default_factory=list)

    @property
    def work(self) -> StageWork:
        """What is to be done, as far as it is known."""
        return self.stage.work

    @property
    def placement(self) -> Placement:
        """Where it runs, and why."""
        return self.stage.placement

    def spans(self, device_ids: tuple[str, ...] | None = None) -> list[Span]:
        """When it has held its devices so far; a clock that runs is left out.

        Args:
            device_ids: the devices; None: all of the GPU path.
        """
        return [Span(start_s, end_s, device_ids) for start_s, end_s in self.earlier]

    def pause(self, now_s: float) -> None:
        """Stop its clock.

        Args:
            now_s: time, monotonic s.
        """
        if self.t_start_s is not None:
            self.earlier.append((self.t_start_s, now_s))
        self.t_start_s = None

    @property
    def sent(self) -> bool:
        """Whether its rows are with an engine, so that they have to be joined."""
        return self.batch is not None


@dataclass(frozen=True, slots=True)
class Landed:
    """The rows of a batch that arrived at the completion barrier.

    Attributes:
        values: by index of the row: a float32 scalar, or ``[n_completion] float32``.
        bad_rows: indices of the rows that the exact path has to compute, ascending.
        packing: what packing made of the rows, where the engine packed them and told of it.
    """

    values: Mapping[int, Float32]
    bad_rows: tuple[int, ...]
    packing: PackedTokens | None = None

    def filled(self, answers: Sequence[Float32]) -> list[Float32]:
        """All rows in order, with the exact path's answers in place of the bad ones.

        Args:
            answers: one a bad row, in their order.
        """
        rows = {**self.values, **dict(zip(self.bad_rows, answers, strict=True))}
        return [rows[i] for i in range(len(rows))]


@dataclass(frozen=True, slots=True)
class RoleTotals:
    """Sums over the settled executions of one role since the run began.

    Attributes:
        energy_j: J; executions without an energy are missing from it.
        n_output_tokens: completion tokens of the executions whose energy is known.
        n_executions: executions, with those whose energy is missing.
        n_missing: executions whose energy is missing.
        provenance: the weakest among the energies, or None without one.
    """

    energy_j: float
    n_output_tokens: int
    n_executions: int
    n_missing: int
    provenance: Provenance | None


@dataclass(frozen=True, slots=True)
class RunTotals:
    """Energy of a run so far, by its settled executions and by its devices' readings.

    Attributes:
        roles: sums by role.
        placed: where each role was placed last.
        drawn_j: J that the metered devices drew, whatever they did; None when some readings of
            theirs are missing.
        beside_j: J of that beside all executions, e.g. while nothing ran; None likewise.
        carbon_g: gCO2e of ``drawn_j``, as far as the intensity was known; None where it never was,
            or where ``drawn_j`` is missing.
        unknown_j: J of which ``carbon_g`` lacks the emissions.
        g_per_kwh: the grid's average intensity now, g/kWh; None: unknown.
        gpu_power_w: smoothed power of the GPU path's devices together, W, or None.
        provenance: the weakest among all figures, or None without any.
        up_to_step: the newest step of which, and of all steps before it, each execution that has
            begun is in the sums; None until one has ended.
        n_waiting: executions that have ended and still wait for their power readings.
    """

    roles: Mapping[Role, RoleTotals] = field(default_factory=dict)
    placed: Mapping[Role, Action] = field(default_factory=dict)
    drawn_j: float | None = None
    beside_j: float | None = None
    carbon_g: float | None = None
    unknown_j: float = 0.0
    g_per_kwh: float | None = None
    gpu_power_w: float | None = None
    provenance: Provenance | None = None
    up_to_step: int | None = None
    n_waiting: int = 0

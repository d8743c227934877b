"""Executions of the training stage as they count: over all machines, and without what is no step.

The record holds an execution once for each machine whose devices ran it, with that machine's
joules, its share of the rows and tokens, and the time of its part. Measurements of the gears are
executions of the training stage too, of no tokens; so are forward passes for old log-probabilities,
of no output tokens.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from ecorl.kinds import EnergyMethod, FaultKind, Role, weakest
from ecorl.ledger import ExecutionRow, FaultRow, MetricRow
from ecorl.records import StageEnergy, StageResult

MEASUREMENT_S = "gear_measurement_s"
"""Metric: what measuring the gears took in a step, s."""

Iteration = tuple[int, int]
"""An attempt, and the number of one of its iterations."""


@dataclass(frozen=True, slots=True)
class WholeExecution:
    """One execution, with the parts of all machines.

    Attributes:
        row: the parts put together: their tokens and joules as sums, the time of the longest.
        lacks_machine: whether the record has no part of a machine that took part elsewhere.
    """

    row: ExecutionRow
    lacks_machine: bool = False

    @property
    def iteration(self) -> Iteration:
        """The attempt and the iteration in which it ran."""
        return self.row.attempt, self.row.result.iteration


def whole_executions(
    executions: Iterable[ExecutionRow], lost: Collection[int] = ()
) -> list[WholeExecution]:
    """Put the parts of several machines together, in the order of time.

    The n-th execution of a stage in an iteration on one machine belongs to the n-th on another:
    all workers make the same steps.

    Args:
        executions: of one run.
        lost: attempts of which the record of a machine is missing or not whole.
    """
    parts: dict[tuple[int, int, Role, int, bool], list[ExecutionRow]] = defaultdict(list)
    seen: dict[tuple[int, int, Role, str | None, bool], int] = defaultdict(int)
    for row in sorted(executions, key=lambda e: (e.attempt, e.result.t_start_s)):
        r = row.result
        own = (row.attempt, r.iteration, r.role, r.node, row.superseded)
        parts[row.attempt, r.iteration, r.role, seen[own], row.superseded].append(row)
        seen[own] += 1
    machines: dict[tuple[int, Role, int | None], int] = defaultdict(int)
    for rows in parts.values():
        kind = _kind(rows[0])
        machines[kind] = max(machines[kind], len(rows))
    found = []
    for rows in parts.values():
        width = rows[0].result.width
        may_lack = width is not None and width > 1
        lacks = len(rows) < machines[_kind(rows[0])] or rows[0].attempt in lost
        found.append(WholeExecution(_together(rows), may_lack and lacks))
    return sorted(found, key=lambda e: (e.row.attempt, e.row.result.t_start_s))


def _kind(row: ExecutionRow) -> tuple[int, Role, int | None]:
    """What executions that ran on equally many machines have in common."""
    return row.attempt, row.result.role, row.result.width


def _together(rows: Sequence[ExecutionRow]) -> ExecutionRow:
    if len(rows) == 1:
        return rows[0]
    results = [row.result for row in rows]
    times_s = [r.time_s for r in results if r.time_s is not None]
    first = results[0]
    result = replace(
        first,
        device_ids=tuple(sorted({i for r in results for i in r.device_ids})),
        t_start_s=min(r.t_start_s for r in results),
        t_end_s=max(r.t_end_s for r in results),
        time_s=max(times_s) if len(times_s) == len(results) else None,
        time_provenance=weakest(*(r.time_provenance for r in results)),
        host_time_s=max(r.host_time_s for r in results),
        n_sequences=sum(r.n_sequences for r in results),
        n_tokens=sum(r.n_tokens for r in results),
        n_output_tokens=sum(r.n_output_tokens for r in results),
        energy=_sum([r.energy for r in results]),
        fault=next((r.fault for r in results if r.fault is not None), None),
        node=None,
    )
    return replace(rows[0], result=result)


def _sum(energies: Sequence[StageEnergy | None]) -> StageEnergy | None:
    """The energy of all machines; None where that of one of them is missing."""
    known = [e for e in energies if e is not None and e.energy_j is not None]
    if len(known) < len(energies):
        return None
    joules = sum(e.energy_j for e in known if e.energy_j is not None)
    start_s = min(e.t_start_s for e in known)
    # Clocks of machines are apart by a little: the window is no longer than that of one of them.
    window_s = max(e.t_end_s - e.t_start_s for e in known)
    return replace(
        known[0],
        device_ids=tuple(sorted({i for e in known for i in e.device_ids})),
        t_start_s=start_s,
        t_end_s=start_s + window_s,
        energy_j=joules,
        mean_power_w=joules / window_s if window_s > 0 else None,
        counter_energy_j=None,
        integral_energy_j=None,
        n_samples=min(e.n_samples for e in known),
        coverage=min(e.coverage for e in known),
        method=EnergyMethod.MIXED,
        provenance=weakest(*(e.provenance for e in known)),
    )


def is_measurement(result: StageResult) -> bool:
    """Whether an execution of a run with gears measured them, and trained on nothing.

    Args:
        result: of the training stage.
    """
    return result.gear is None and not result.n_tokens and not result.n_output_tokens


def is_forward(result: StageResult) -> bool:
    """Whether an execution of the training stage passed forward for old log-probabilities alone.

    It computes in no gear, and training has output tokens.

    Args:
        result: of a run whose executions that train tell a gear or output tokens.
    """
    return result.gear is None and result.n_tokens > 0 and not result.n_output_tokens


def measured_inside(
    metrics: Iterable[MetricRow], measured: Iterable[WholeExecution]
) -> frozenset[Iteration]:
    """Iterations that measured the gears within the time of their training.

    Processes of Ray measure where they train; elsewhere a measurement is an execution of its own.

    Args:
        metrics: of the run.
        measured: executions that measured.
    """
    apart = {whole.iteration for whole in measured}
    found = {
        (row.attempt, row.iteration)
        for row in metrics
        if row.name == MEASUREMENT_S and row.value and not row.superseded
    }
    return frozenset(found - apart)


def redone_iterations(faults: Iterable[FaultRow]) -> frozenset[Iteration]:
    """Iterations with a step that overflowed in a low gear and was computed anew.

    Args:
        faults: of the run.
    """
    return frozenset(
        (fault.attempt, fault.iteration)
        for fault in faults
        if fault.kind == FaultKind.GEAR_OVERFLOW and fault.iteration is not None
    )

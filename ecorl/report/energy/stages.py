"""The table of stages by device, and the comparison of the two paths."""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from ecorl.edi import edi_from_energy
from ecorl.ledger import ExecutionRow, PlacementRow
from ecorl.records import (
    EVALUATION,
    EVALUATION_ROLE,
    Action,
    Provenance,
    Role,
    Stage,
    StageResult,
    weakest,
)
from ecorl.report.energy.emissions import NO_EMISSIONS, Emissions
from ecorl.report.energy.model import Expectation, PathComparison, StageRow
from ecorl.report.model import DecisionGroup

GPU_ONLY_STAGES = (Stage.GENERATION, Stage.ACTOR_TRAIN, Stage.CRITIC_TRAIN)
"""Stages that never leave the GPU path: a device that ran one belongs to it."""

_PROVENANCES = list(Provenance)
_STAGES = list(Stage)


def present(values: Iterable[float | None]) -> list[float]:
    """Select the values that are neither None nor NaN."""
    return [v for v in values if v is not None and not math.isnan(v)]


def total(values: Iterable[float | None]) -> float | None:
    """Add up the values that are neither None nor NaN; None when there is no such value."""
    known = present(values)
    return math.fsum(known) if known else None


def energy_j(result: StageResult) -> float | None:
    """Energy of one execution, J; None when missing or not finite."""
    if result.energy is None or result.energy.energy_j is None:
        return None
    return result.energy.energy_j if math.isfinite(result.energy.energy_j) else None


def gpu_path_devices(executions: Iterable[ExecutionRow]) -> frozenset[str]:
    """Ids of the devices of the GPU path: those that generated, trained, or ran action a1."""
    return frozenset(
        device_id
        for e in executions
        if e.result.stage in GPU_ONLY_STAGES or e.result.action is Action.GPU
        for device_id in e.result.device_ids
    )


def modelled_devices(executions: Iterable[ExecutionRow]) -> frozenset[str]:
    """Ids of the devices beside the GPU path that answered in a time that is not a clock's.

    A call without a time tells nothing: an engine of this host that never answered is no card.
    """
    rows = list(executions)
    answered = {
        device_id
        for e in rows
        if present([e.result.time_s]) and e.result.time_provenance is not Provenance.MEASURED
        for device_id in e.result.device_ids
    }
    return frozenset(answered) - gpu_path_devices(rows)


EmissionsOf = Callable[[Sequence[ExecutionRow]], Emissions]
"""Finds what executions that have an energy emitted."""


def _no_emissions(_: Sequence[ExecutionRow]) -> Emissions:
    return NO_EMISSIONS


def stage_rows(
    executions: Sequence[ExecutionRow], emissions_of: EmissionsOf = _no_emissions
) -> tuple[StageRow, ...]:
    """Make a row per stage, device kind, path and pair of provenances, without superseded work.

    A stage with several models has rows for each of them.

    A profile may stand on both paths: the processor on which the framework runs also runs engines
    that nothing meters. The row beside the GPU path then names its devices too.

    A call without an energy figure joins the row of its stage and device when that row is the
    only one, and is counted there as a call without energy; it never adds 0 J.

    Args:
        executions: stage executions of the run.
        emissions_of: finds what some of them emitted.
    """
    on_gpu = gpu_path_devices(executions)
    shown = shown_roles(e.result for e in executions if not e.superseded)
    cells: dict[tuple[Role, str, bool, Provenance], list[ExecutionRow]] = defaultdict(list)
    for execution in executions:
        r = execution.result
        if not execution.superseded:
            is_on_gpu = not on_gpu.isdisjoint(r.device_ids)
            cells[shown[r.role], r.device, is_on_gpu, r.time_provenance].append(execution)
    rows = []
    # Provenances stay apart; but calls of a cell that only lack a figure make no row of their own.
    for (role, *_), own in cells.items():
        by_energy: dict[Provenance | None, list[ExecutionRow]] = defaultdict(list)
        for e in own:
            energy = e.result.energy if energy_j(e.result) is not None else None
            by_energy[energy.provenance if energy else None].append(e)
        if len(by_energy) == 2 and None in by_energy:
            (provenance,) = (p for p in by_energy if p is not None)
            by_energy = {provenance: own}
        for p, group in by_energy.items():
            row = _stage_row(role, [e.result for e in group], p, on_gpu)
            known = [e for e in group if energy_j(e.result) is not None]
            rows.append(replace(row, emissions=emissions_of(known) if known else NO_EMISSIONS))
    on_path = {r.device for r in rows if r.on_gpu_path}
    named = [
        replace(r, device=f"{r.device} ({', '.join(r.device_ids)})")
        if not r.on_gpu_path and r.device in on_path
        else r
        for r in rows
    ]
    return tuple(sorted(named, key=_row_order))


class _OfRole(Protocol):
    """A record of one of a stage's models."""

    @property
    def stage(self) -> Stage: ...
    @property
    def role(self) -> Role: ...


def shown_roles(records: Iterable[_OfRole]) -> dict[Role, Role]:
    """What to call each role: the stage's name where the stage has only one model.

    Args:
        records: executions, decisions or waits.
    """
    roles = {r.role: r.stage for r in records}
    # An evaluation is no model of a stage.
    own = {EVALUATION_ROLE: EVALUATION} if roles.pop(EVALUATION_ROLE, None) else {}
    n = Counter(roles.values())
    return own | {role: role if n[stage] > 1 else str(stage) for role, stage in roles.items()}


def _served_tokens(r: StageResult) -> float:
    """Output tokens of the rows that this call answered itself, by their share of the rows."""
    rows = r.n_sequences
    return r.n_output_tokens * max(0, rows - r.n_rows_fallback) / rows if rows else 0.0


def _row_order(row: StageRow) -> tuple[int, Role, bool, str]:
    place = len(_STAGES) if row.role == EVALUATION else _STAGES.index(row.stage)
    return place, row.role, not row.on_gpu_path, row.device


def _stage_row(
    role: Role,
    results: Sequence[StageResult],
    provenance: Provenance | None,
    on_gpu: frozenset[str],
) -> StageRow:
    first = results[0]
    with_energy = [r for r in results if energy_j(r) is not None]
    timed = [r for r in results if present([r.time_s])]
    both = [r for r in with_energy if present([r.time_s])]
    # The joules of a faulty call count in the totals, not as the price of a token.
    clean = [r for r in with_energy if r.fault is None]
    per_call = present(edi_from_energy(energy_j(r), r.n_output_tokens) for r in clean)
    with_tokens = [r for r in clean if r.n_output_tokens > 0]
    tokens = sum(r.n_output_tokens for r in with_tokens)
    power_time_s = total(r.time_s for r in both)
    energy_of_both = total(energy_j(r) for r in both)
    return StageRow(
        stage=first.stage,
        role=role,
        device=first.device,
        device_ids=tuple(sorted({device_id for r in results for device_id in r.device_ids})),
        time_provenance=first.time_provenance,
        energy_provenance=provenance,
        n_calls=len(results),
        n_sequences=sum(r.n_sequences for r in results),
        n_tokens=sum(r.n_tokens for r in results),
        n_output_tokens=sum(r.n_output_tokens for r in results),
        n_timed=len(timed),
        time_s=total(r.time_s for r in timed),
        host_time_s=total(r.host_time_s for r in results),
        n_with_energy=len(with_energy),
        energy_j=total(energy_j(r) for r in with_energy),
        mean_power_w=energy_of_both / power_time_s if energy_of_both and power_time_s else None,
        edi_j_per_token=edi_from_energy(total(energy_j(r) for r in with_tokens), tokens),
        edi_spread=statistics.stdev(per_call) if len(per_call) > 1 else None,
        n_edi=len(per_call),
        n_interpolated=sum(r.energy is not None and not r.energy.resolved for r in with_energy),
        n_rows_fallback=sum(r.n_rows_fallback for r in results),
        n_tokens_served=math.fsum(map(_served_tokens, results)),
        iterations=(min(r.iteration for r in results), max(r.iteration for r in results)),
        n_faults=sum(r.fault is not None for r in results),
        on_gpu_path=any(not on_gpu.isdisjoint(r.device_ids) for r in results),
    )


def comparisons(rows: Sequence[StageRow]) -> tuple[PathComparison, ...]:
    """Compare the GPU path with the card for each stage that ran, model by model."""
    ran = dict.fromkeys(r.role for r in sorted(rows, key=_row_order) if r.role != EVALUATION)
    return tuple(_compare([r for r in rows if r.role == role]) for role in ran)


def _compare(rows: Sequence[StageRow]) -> PathComparison:
    stage, role = rows[0].stage, rows[0].role
    # Where one path has rows of several provenances, the one with most calls speaks for it.
    gpu = max((r for r in rows if r.on_gpu_path), key=lambda r: r.n_edi, default=None)
    card = max((r for r in rows if not r.on_gpu_path), key=lambda r: r.n_edi, default=None)
    if gpu is None or card is None:
        only = rows[0].device if len({r.device for r in rows}) == 1 else "one kind of device"
        sentence = f"no comparison: only {only} ran this stage"
        return PathComparison(stage, role, gpu, card, None, None, None, sentence)
    a, b = gpu.edi_j_per_token, card.edi_j_per_token
    if a is None or b is None:
        lacking = gpu.device if a is None else card.device
        sentence = f"no comparison: {lacking} has no energy per token for this stage"
        return PathComparison(stage, role, gpu, card, None, None, None, sentence)
    provenance = weakest(
        *(p for p in (gpu.energy_provenance, card.energy_provenance) if p is not None)
    )
    would_j, card_j = a * card.n_tokens_served, card.energy_j
    return PathComparison(
        stage=stage,
        role=role,
        gpu=gpu,
        card=card,
        ratio=b / a if a > 0 else None,
        ratio_provenance=provenance,
        saved_j=None if card_j is None else would_j - card_j,
        sentence=_judge(gpu, card, a - b),
        gpu_would_j=would_j,
        card_j=card_j,
        card_at_least=card.n_with_energy < card.n_calls,
    )


def _judge(gpu: StageRow, card: StageRow, saved_j: float) -> str:
    basis = f"{gpu.energy_provenance} against {card.energy_provenance}"
    if gpu.energy_provenance is card.energy_provenance:
        basis = f"both {gpu.energy_provenance}"
    verb = "less" if saved_j > 0 else "more"
    if saved_j == 0:
        return f"{card.device} used the same energy per token as {gpu.device} ({basis})"
    return f"{card.device} used {verb} energy per token than {gpu.device} ({basis})"


# ---------------------------------------------------------------- decisions


def decision_groups(placements: Sequence[PlacementRow]) -> tuple[DecisionGroup, ...]:
    """Group decisions that are alike, most frequent first in a stage, without superseded ones."""
    kept = [row.placement for row in placements if not row.superseded]
    shown = shown_roles(kept)
    groups: dict[tuple[Stage, Role, str, Action, Action, str], list[str]] = defaultdict(list)
    for p in kept:
        # Reasons state figures (queue length, joules): alike but for them is alike.
        pattern = re.sub(r"\d+(?:[.,]\d+)*(?:e[+-]?\d+)?", "…", p.reason)
        pattern = re.sub(r"… [kmµ]J\b", "… J", pattern)
        groups[p.stage, shown[p.role], p.policy, p.proposed, p.action, pattern].append(p.reason)
    found = [
        DecisionGroup(
            *key[:5],
            reason=reasons[0] if len(set(reasons)) == 1 else key[5],
            n=len(reasons),
            example=reasons[-1],
        )
        for key, reasons in groups.items()
    ]
    return tuple(sorted(found, key=lambda g: (_STAGES.index(g.stage), g.role, -g.n, g.reason)))


def expectation(placements: Sequence[PlacementRow]) -> Expectation | None:
    """Add up the expected joules of the GPU path and the chosen actions, where both are known."""
    gpu, chosen, provenances = [], [], []
    for row in placements:
        costs = {c.action: c for c in row.placement.costs}
        pair = [costs.get(Action.GPU), costs.get(row.placement.action)]
        known = [c for c in pair if c is not None and not math.isnan(c.energy_j)]
        if not row.superseded and len(known) == 2:
            gpu.append(known[0].energy_j)
            chosen.append(known[1].energy_j)
            provenances += [c.provenance for c in known]
    if not gpu:
        return None
    return Expectation(len(gpu), math.fsum(gpu), math.fsum(chosen), weakest(*provenances))


def provenance_order(provenance: Provenance) -> int:
    """Sorting key: strongest provenance first."""
    return _PROVENANCES.index(provenance)

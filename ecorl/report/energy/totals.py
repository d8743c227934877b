"""Energy of the whole run: what its machine spent, and what a simulated card would have drawn.

The two are never added up but for one figure, the output tokens per joule with the card. A card
that does not exist spends nothing; what it would have drawn depends on how long this host took to
simulate it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from ecorl.ledger import DeviceRow, ExecutionRow
from ecorl.records import DeviceKind, Provenance, weakest
from ecorl.report.energy.causes import (
    CAUSES,
    OTHER_CAUSES,
    PAUSE_CAUSES,
    USEFUL_CAUSES,
    WASTED_CAUSES,
    cause_of,
    energy_parts,
)
from ecorl.report.energy.emissions import total_emissions
from ecorl.report.energy.evidence import Evidence
from ecorl.report.energy.model import Accounting, Cause, EnergyPart, EnergyTotals, Spending
from ecorl.report.energy.stages import (
    energy_j,
    gpu_path_devices,
    modelled_devices,
    provenance_order,
)
from ecorl.units import kwh_from_joules

TOGETHER, CARD, WITH_CARD = "together", "simulated card", "with the simulated card"
"""Titles of totals over several provenances, of the card alone, and of all there is."""


def simulated_cards(
    executions: Sequence[ExecutionRow], devices: Sequence[DeviceRow]
) -> frozenset[str]:
    """Find the ids of cards that stand for no hardware, whether or not they were given any work.

    A card counts as simulated when its energy is modelled, or when it answered in a time that is
    not a clock's.

    Args:
        executions: stage executions of the run.
        devices: what the attempts announced of their devices.
    """
    named = {
        d.device_id
        for d in devices
        if d.provenance is Provenance.MODELLED and d.kind is DeviceKind.FPGA
    }
    return frozenset(named - gpu_path_devices(executions)) | modelled_devices(executions)


def spending(evidence: Evidence, accounting: Accounting | None) -> Spending:
    """Add up where the joules went: parts, totals per provenance and together, and what is missing.

    Args:
        evidence: what the ledger holds of the run.
        accounting: factors of the carbon figure by the config; None without one.
    """
    cards = simulated_cards(evidence.executions, evidence.devices)
    parts = [
        replace(p, simulated=not cards.isdisjoint(p.device_ids)) for p in energy_parts(evidence)
    ]
    own = [p for p in parts if not p.simulated]
    beside = [p for p in parts if p.simulated]
    tokens = sum(
        e.result.n_output_tokens
        for e in evidence.executions
        if cause_of(e.result) is Cause.GENERATION and not e.superseded
    )
    columns = _columns(own, tokens, at_least=bool(evidence.lost))
    card = _totals(CARD, beside) if _known(beside) else None
    both = _totals(WITH_CARD, parts) if columns and card else None
    if both is not None and evidence.lost:
        both = replace(both, at_least=True)
    n_all = len(evidence.executions)
    n_known = sum(energy_j(e.result) is not None for e in evidence.executions)
    return Spending(
        parts=tuple(parts),
        columns=tuple(columns),
        card=card,
        with_card=both and replace(both, tokens_per_joule=_tokens_per_joule(both, tokens)),
        n_output_tokens=tokens,
        covered_share=n_known / n_all if n_all else None,
        gaps=tuple(dict.fromkeys(p.gap for p in parts if p.gap)),
        accounting=accounting,
    )


def _columns(parts: Sequence[EnergyPart], tokens: int, *, at_least: bool) -> list[EnergyTotals]:
    """Sum up what the machines spent: a column per provenance, then all of several together.

    Args:
        parts: of the machines.
        tokens: output tokens of generation.
        at_least: whether the record of a machine is missing from all that is known.
    """
    found = {p.provenance for p in _known(parts) if p.provenance is not None}
    columns = [
        _totals(str(p), [x for x in parts if x.provenance is p])
        for p in sorted(found, key=provenance_order)
    ]
    if len(columns) > 1:
        columns.append(_totals(TOGETHER, parts))
    if at_least:
        # Whose provenance the missing joules would have is as unknown as they are.
        columns = [replace(c, at_least=True) for c in columns]
    if columns:
        # A column of one provenance among several lacks joules that the tokens took.
        columns[-1] = replace(
            columns[-1],
            at_least=at_least or any(p.at_least for p in parts),
            tokens_per_joule=_tokens_per_joule(columns[-1], tokens),
        )
    return columns


def _tokens_per_joule(column: EnergyTotals, tokens: int) -> float | None:
    has_generation = Cause.GENERATION in column.by_cause
    return tokens / column.energy_j if has_generation and column.energy_j > 0 and tokens else None


def _known(parts: Sequence[EnergyPart]) -> list[EnergyPart]:
    return [p for p in parts if p.energy_j is not None and p.provenance is not None]


def _totals(title: str, parts: Sequence[EnergyPart]) -> EnergyTotals:
    known = _known(parts)
    provenances = {p.provenance for p in known if p.provenance is not None}
    by_cause = {
        cause: math.fsum(p.energy_j or 0.0 for p in known if p.cause == cause)
        for cause in CAUSES
        if any(p.cause == cause for p in known)
    }
    energy = math.fsum(by_cause.values())
    emitted = total_emissions(p.emissions for p in known)
    average, marginal = emitted.average, emitted.marginal
    return EnergyTotals(
        title=title,
        provenance=weakest(*provenances),
        n_provenances=len(provenances),
        energy_j=energy,
        useful_j=math.fsum(v for c, v in by_cause.items() if c in USEFUL_CAUSES),
        wasted_j=math.fsum(v for c, v in by_cause.items() if c in WASTED_CAUSES),
        other_j=math.fsum(v for c, v in by_cause.items() if c in OTHER_CAUSES),
        paused_j=math.fsum(v for c, v in by_cause.items() if c in PAUSE_CAUSES),
        by_cause=by_cause,
        energy_kwh=kwh_from_joules(energy),
        carbon_g=None if average is None else average.carbon_g,
        carbon_unknown_j=energy if average is None else average.unknown_j,
        marginal_g=None if marginal is None else marginal.carbon_g,
        marginal_unknown_j=None if marginal is None else marginal.unknown_j,
        tokens_per_joule=None,
        at_least=any(p.at_least for p in parts),
    )

"""Reads from a ledger what the energy of a run follows from."""

from __future__ import annotations

from collections.abc import Sequence

from ecorl.ledger import ExecutionRow, LedgerReader
from ecorl.report.energy.attribution import Attribution
from ecorl.report.energy.evidence import Evidence
from ecorl.report.energy.pauses import run_pauses
from ecorl.report.energy.readings import DeviceReadings
from ecorl.report.energy.spans import Span, device_spans


def recorded_evidence(
    reader: LedgerReader,
    spans: dict[int, Span],
    executions: Sequence[ExecutionRow],
    readings: Sequence[DeviceReadings],
    grid: Attribution | None = None,
) -> Evidence:
    """Put together what a ledger holds of the run's energy.

    Args:
        reader: the run's ledger.
        spans: begin and end of each attempt, monotonic s.
        executions: of the whole run.
        readings: energy of each device in each attempt by its readings.
        grid: finds what energy emitted; None where no grams are asked for.
    """
    return Evidence(
        executions=executions,
        barriers=reader.barriers(),
        devices=reader.devices(),
        readings=readings,
        spans=spans,
        own_spans=device_spans(reader.node_spans(), spans),
        lost=reader.lost_nodes(),
        pauses=run_pauses(reader.choices(), spans),
        grid=Attribution() if grid is None else grid,
    )

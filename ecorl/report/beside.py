"""What CodeCarbon found beside a run, held against the run's own readings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ecorl.errors import LedgerError
from ecorl.ledger import EventRow, LedgerReader
from ecorl.records import DeviceKind, EventKind, Provenance, weakest
from ecorl.report.energy.model import EnergyPart
from ecorl.telemetry.beside.codecarbon import Beside

_MEMORY = "dram"
"""How the ids of a host's memory begin, which count as its processor otherwise."""


@dataclass(frozen=True, slots=True)
class BesidePart:
    """One part of the machine by both.

    Attributes:
        name: ``gpu``, ``cpu`` or ``ram``.
        theirs_j: by CodeCarbon, J.
        ours_j: by the run's own readings, J; None where none of its devices is of that part.
        provenance: of ours; None without it.
        difference: theirs over ours, less 1; None without both.
    """

    name: str
    theirs_j: float
    ours_j: float | None
    provenance: Provenance | None
    difference: float | None


@dataclass(frozen=True, slots=True)
class BesideFigures:
    """CodeCarbon beside the run.

    Attributes:
        found: what it found.
        parts: by part of the machine.
        run_time_s: of the run, s; CodeCarbon's own time is shorter by what it takes to start.
    """

    found: Beside
    parts: tuple[BesidePart, ...]
    run_time_s: float


def read_beside(reader: LedgerReader) -> Beside | None:
    """What CodeCarbon found; of several attempts the sum, if all of them have a figure.

    Args:
        reader: the run's record.

    Raises:
        LedgerError: when its figures are damaged.
    """
    told: list[EventRow] = [e for e in reader.events() if e.kind is EventKind.BESIDE]
    if not told or len({e.attempt for e in told}) < len(reader.attempts()):
        return None
    try:
        parts = [Beside.from_json(e.detail) for e in told]
    except ValueError as error:
        raise LedgerError(f"the figures of the instrument beside are damaged ({error})") from error
    names = dict.fromkeys(name for part in parts for name in part.parts_j)
    return Beside(
        version=parts[-1].version,
        duration_s=math.fsum(p.duration_s for p in parts),
        energy_j=math.fsum(p.energy_j for p in parts),
        parts_j={name: math.fsum(p.parts_j.get(name, 0.0) for p in parts) for name in names},
        carbon_g=math.fsum(p.carbon_g for p in parts),
    )


def beside_figures(
    reader: LedgerReader, parts: Sequence[EnergyPart], run_time_s: float
) -> BesideFigures | None:
    """Hold what CodeCarbon found against the run's own energy; None where it did not run.

    Args:
        reader: the run's record.
        parts: of its energy.
        run_time_s: its run time, s.
    """
    found = read_beside(reader)
    if found is None:
        return None
    kinds = {d.device_id: _part_of(d.device_id, d.kind) for d in reader.devices()}
    compared = []
    for name, theirs_j in found.parts_j.items():
        own = [
            p for p in parts
            if not p.simulated and p.energy_j is not None and p.provenance is not None
            and {kinds.get(i) for i in p.device_ids} == {name}
        ]  # fmt: skip
        ours_j = math.fsum(p.energy_j or 0.0 for p in own) if own else None
        provenance = weakest(*(p.provenance for p in own if p.provenance)) if own else None
        difference = theirs_j / ours_j - 1.0 if ours_j else None
        compared.append(BesidePart(name, theirs_j, ours_j, provenance, difference))
    return BesideFigures(found, tuple(compared), run_time_s)


def _part_of(device_id: str, kind: DeviceKind) -> str:
    if kind is DeviceKind.CPU:
        return "ram" if device_id.rpartition("/")[2].startswith(_MEMORY) else "cpu"
    return "gpu" if kind is DeviceKind.GPU else str(kind)

"""The training stage against itself in one gear and width: those of its first step."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ecorl.records import Provenance, weakest
from ecorl.report.training_stage.model import (
    FixedStage,
    GearMeasurements,
    GearRow,
    WidthChanges,
)
from ecorl.report.training_stage.steps import TrainedStep


def fixed_stage(
    steps: Sequence[TrainedStep],
    rows: Sequence[GearRow],
    measured: GearMeasurements | None,
    widths: WidthChanges,
) -> FixedStage | None:
    """Hold the steps of one stage against the first gear and width.

    Args:
        steps: of one stage, in the order of time.
        rows: of all stages, by gear and width.
        measured: what measuring the gears took; None where nothing was measured.
        widths: changes of the number of workers.

    Returns:
        None where all steps were made in one gear and width.
    """
    if len({(s.gear, s.width) for s in steps}) < 2:
        return None
    first = steps[0]
    own = [r for r in rows if (r.stage, r.gear, r.width) == (first.stage, first.gear, first.width)]
    known = [r for r in own if r.j_per_token is not None]
    # Of several provenances the row with the most steps speaks for the gear.
    row = max(known, key=lambda r: r.n_with_energy, default=None)
    priced = [s for s in steps if s.energy_j is not None and s.n_tokens]
    provenances = [s.energy_provenance for s in priced if s.energy_provenance is not None]
    measuring_j = _measuring_j(measured)
    if measured is not None and measured.energy_provenance is not None:
        provenances.append(measured.energy_provenance)
    n_tokens = sum(s.n_tokens for s in priced)
    price = None if row is None else row.j_per_token
    return FixedStage(
        gear=first.gear,
        width=first.width,
        n_steps=0 if row is None else row.n_with_energy,
        j_per_token=price,
        drew_j=math.fsum(s.energy_j or 0.0 for s in priced) if priced else None,
        would_j=None if price is None or not priced else price * n_tokens,
        measuring_j=measuring_j,
        n_left_out=len(steps) - len(priced),
        changes_s=widths.total_s,
        provenance=_weakest(provenances),
    )


def _measuring_j(measured: GearMeasurements | None) -> float | None:
    """What measuring drew beside the steps, J; that within a step is a part of the step's."""
    if measured is None or measured.n_inside >= measured.n:
        return 0.0
    return measured.energy_j


def _weakest(provenances: Sequence[Provenance]) -> Provenance | None:
    return weakest(*provenances) if provenances else None

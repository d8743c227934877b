"""The training stage against itself in one gear and width: those of its first step."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from ecorl.records import Provenance, weakest
from ecorl.report.training_stage.model import FixedStage, GearMeasurements, WidthChanges
from ecorl.report.training_stage.steps import TrainedStep

LEAST_STEPS = 2
"""Steps in the first gear and width without which it has no price, the first ones left out.
Invented: as many as a run times of each gear before it plans. Single steps on a busy machine differ
by a third: where their number is told, a reader can judge."""


def fixed_stage(
    steps: Sequence[TrainedStep], measured: GearMeasurements | None, widths: WidthChanges
) -> FixedStage | None:
    """Hold the steps of one stage against the first gear and width.

    Args:
        steps: of one stage, in the order of time.
        measured: what measuring the gears took; None where nothing was measured.
        widths: changes of the number of workers.

    Returns:
        None where all steps were made in one gear and width.
    """
    if len({(s.gear, s.width) for s in steps}) < 2:
        return None
    first = steps[0]
    own = _priced_by(steps)
    known = [s for s in steps if s.energy_j is not None and s.n_tokens]
    n_own_tokens = sum(s.n_tokens for s in own)
    price = None
    if len(own) >= LEAST_STEPS and n_own_tokens:
        price = math.fsum(s.energy_j or 0.0 for s in own) / n_own_tokens
    measuring_j, is_whole = _measuring_j(measured)
    found = [s.energy_provenance for s in known if s.energy_provenance is not None]
    if measured is not None and measured.energy_provenance is not None:
        found.append(measured.energy_provenance)
    return FixedStage(
        gear=first.gear,
        width=first.width,
        n_steps=len(own),
        j_per_token=price,
        drew_j=math.fsum(s.energy_j or 0.0 for s in known) if known else None,
        would_j=None if price is None or not known else price * sum(s.n_tokens for s in known),
        measuring_j=measuring_j,
        n_left_out=len(steps) - len(known),
        n_changes=widths.n,
        n_changes_timed=widths.n_timed,
        changes_s=widths.total_s,
        # What left something out on the side of what was drawn, and nothing on the other.
        at_most=widths.n > 0 or not is_whole,
        # Steps that were never made in that gear have no energy but a modelled one.
        provenance=weakest(*found, Provenance.MODELLED) if found else None,
    )


def _priced_by(steps: Sequence[TrainedStep]) -> list[TrainedStep]:
    """The steps in the first gear and width that say what a step in them takes.

    The first step of each attempt warms things up, and one that was redone was computed twice. Of
    several provenances the most frequent one speaks.
    """
    attempts: set[int] = set()
    found = []
    for step in steps:
        is_first = step.attempt not in attempts
        attempts.add(step.attempt)
        is_own = (step.gear, step.width) == (steps[0].gear, steps[0].width)
        if is_own and not is_first and not step.is_redone and step.energy_j and step.n_tokens:
            found.append(step)
    counts = Counter(step.energy_provenance for step in found)
    most = max(counts, key=lambda provenance: counts[provenance], default=None)
    return [step for step in found if step.energy_provenance is most]


def _measuring_j(measured: GearMeasurements | None) -> tuple[float | None, bool]:
    """What measuring drew beside the steps, J, and whether all of it is known.

    That within a step is a part of the step's.
    """
    if measured is None or measured.n_inside >= measured.n:
        return 0.0, True
    return measured.energy_j, measured.n_with_energy >= measured.n - measured.n_inside

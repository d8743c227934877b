"""What the training stage ran in over time, beside the intensity that decisions went by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ecorl.ledger import AttemptRow, GearChoiceRow
from ecorl.records import weakest
from ecorl.report.energy.carbon_model import Footprint
from ecorl.report.energy.spans import Span
from ecorl.report.training_stage.model import StageBand, StageCourse
from ecorl.report.training_stage.steps import TrainedStep


def stage_course(
    steps: Sequence[TrainedStep],
    pauses: Mapping[int, Sequence[Span]],
    choices: Sequence[GearChoiceRow],
    attempts: Sequence[AttemptRow],
    footprint: Footprint,
) -> StageCourse:
    """Put bands and intensities on one clock: seconds of the wall clock since the run began.

    Args:
        steps: of one stage, in the order of time.
        pauses: when the run stood still by choice, by attempt, monotonic s.
        choices: decisions in their order.
        attempts: of the run.
        footprint: knows where the intensities come from.
    """
    began_s = attempts[0].unix_anchor_s if attempts else 0.0
    ahead_s = {a.attempt: a.unix_anchor_s - a.monotonic_anchor_s - began_s for a in attempts}
    own = [(s.attempt, StageBand(s.start_s, s.end_s, s.gear, s.width, 1)) for s in steps]
    own += [(a, StageBand(*span, None, 0)) for a, spans in pauses.items() for span in spans]
    bands: list[StageBand] = []
    last: int | None = None
    for attempt, band in sorted(own, key=lambda one: (one[0], one[1].start_s)):
        moved_s = ahead_s.get(attempt, 0.0)
        start_s, end_s = band.start_s + moved_s, band.end_s + moved_s
        before = bands[-1] if bands and last == attempt else None
        if before is not None and (before.gear, before.width) == (band.gear, band.width):
            n_steps = before.n_steps + band.n_steps
            bands[-1] = StageBand(before.start_s, end_s, band.gear, band.width, n_steps)
        else:
            bands.append(StageBand(start_s, end_s, band.gear, band.width, band.n_steps))
        last = attempt
    known = [f.provenance for f in footprint.intensities if f.provenance is not None]
    return StageCourse(
        intensities=tuple((c.choice.decided_s - began_s, c.choice.g_per_kwh) for c in choices),
        provenance=weakest(*known) if known else None,
        bands=tuple(bands),
    )

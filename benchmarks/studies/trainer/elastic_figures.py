"""The figures of elastic width: the stall of a change, and steps that faults cost."""

from __future__ import annotations

from benchmarks.harness.figures import Figure, Target, missing
from benchmarks.studies.trainer.elastic import WidthChangeTime, ray_here, width_change
from benchmarks.studies.trainer.lost_steps import LOSS_TOLERANCE, LostSteps, lost_steps
from ecorl.records import Provenance

STEP_S = (0.25, 0.5)
"""Median time of a step within which the stall is judged, s: shorter ones are shorter than what a
change has to do at all, and longer ones hide it."""


def elastic_figures(box_s: float, n_steps: int) -> list[Figure]:
    """Measure changes of width on this machine, and a training whose members are killed.

    Args:
        box_s: time of the training whose width changes, s.
        n_steps: steps of the one whose members are killed.
    """
    with ray_here():
        change, lost = width_change(box_s), lost_steps(n_steps)
    return [width_figure(change), lost_figure(lost)]


def width_figure(change: WidthChangeTime) -> Figure:
    """The stall of a change of width, judged where the steps are as long as they should be.

    Args:
        change: the training whose width changed.
    """
    widths = ", ".join(f"{time_s:.3f} s at {w}" for w, time_s in change.median_by_width_s.items())
    is_in_range = STEP_S[0] <= change.median_step_s <= STEP_S[1]
    judged = (
        "" if is_in_range else f"; not judged: the median is not in {STEP_S[0]} to {STEP_S[1]} s"
    )
    return Figure(
        "trainer.width_change_steps",
        change.stall_steps,
        "1",
        Provenance.MEASURED,
        {"at_a_change": change.stall_at_change_steps, "n_steps": change.n_steps},
        Target(high=2.0) if is_in_range else None,
        "longest time without a finished step over the median step of "
        f"{change.median_step_s:.3f} s ({widths}), 1 to 2 to 1 members over Ray on the CPU; "
        f"the second was ready after {change.prepared_s:.1f} s of training{judged}",
    )


def lost_figure(lost: LostSteps) -> Figure:
    """The steps that faults cost, judged where all faults that were to happen did.

    Args:
        lost: the training whose members were killed.
    """
    id, target = "trainer.lost_steps", Target(high=0.0)
    if not lost.n_killed:
        why = f"none of {lost.n_scripted} scripted kills happened: nothing could be lost"
        return missing(id, "1", why, target)
    is_whole = lost.n_killed == lost.n_scripted
    judged = "" if is_whole else f"; not judged: {lost.n_scripted} kills were scripted"
    gap = "no numbers" if lost.loss_gap is None else f"off by {lost.loss_gap:.1e} at most"
    return Figure(
        id,
        float(lost.n_lost),
        "1",
        Provenance.MEASURED,
        {"loss_gap": lost.loss_gap, "loss_off": lost.n_off},
        target if is_whole else None,
        f"steps lost or doubled of {lost.n_steps}, {lost.n_killed} members being killed, by what "
        f"driver and members tell and by losses, which may be off by {LOSS_TOLERANCE:g} of those "
        f"of an undisturbed training and are {gap}; {lost.n_redone} steps were computed "
        f"again{judged}",
    )

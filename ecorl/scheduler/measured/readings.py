"""What a run has measured of its stages, against what the cost table says of them.

A measured cost is told as a ratio to its nominal one, so that it holds for batches of other lengths
as well. Run and simulator share this arithmetic; it works on floats and on arrays alike.

A recent mean stands beside Eq. 5's slow one, because the two are for different questions. What a
token of a stage costs in this run is a matter of all its readings, and alpha = 0.05 keeps that
steady. What the next batch will cost on a path depends on who shares its devices just now: other
tenants come and go within tens of batches, and a mean that needs twenty readings to follow would
price each of them when it has left. How far the recent mean is to be believed, scatter and age
considered, is said by `ecorl.statistics.expected`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from ecorl.devices import StageCost
from ecorl.records import PathCost, Role, SchedulerState, StageWork, weakest
from ecorl.stages.figures import Number
from ecorl.statistics import RECENT_ALPHA, recent_weight

__all__ = ["PRIOR_COUNT", "RECENT_ALPHA", "UNREAD", "Readings", "level", "recent_weight"]

PRIOR_COUNT = 0.5
"""Readings that the nominal cost weighs as much as: one reading already has two thirds. Invented: a
roofline is off by factors, a reading after the first by some tens of percent."""


class Readings(NamedTuple):
    """What has been measured of a stage on one path; floats, or arrays side by side.

    Attributes:
        ratio: expected time over the nominal one; 1.0 where nothing is known.
        j_ratio: expected energy over the nominal one; where the energy is not known that of the
            time, which is the nominal power for longer; 1.0 where neither is.
        spread: standard deviation of time per token over its mean.
        count: readings behind these; 0.0 where nothing is known.
        age: rollout batches since the newest reading.
    """

    ratio: Number
    j_ratio: Number
    spread: Number
    count: Number
    age: Number


UNREAD = Readings(ratio=1.0, j_ratio=1.0, spread=0.0, count=0.0, age=0.0)
"""Of a stage that has not been read on a path."""


def level(ratio: Number, n_recent: Number) -> Number:
    """Compute the factor by which a nominal cost is scaled.

    It is the mean of the ratio, by its readings, and of 1, by `PRIOR_COUNT`.

    Args:
        ratio: cost that is expected by what was measured, over the nominal one.
        n_recent: readings behind it, 0 or more.
    """
    return 1.0 + (ratio - 1.0) * n_recent / (n_recent + PRIOR_COUNT)


def seen_on(state: SchedulerState, role: Role, *, on_card: bool) -> PathCost | None:
    """Find what a role has cost on a path, once it has run there twice.

    Args:
        state: at a decision.
        role: the role.
        on_card: which path.

    Returns:
        Its cost with recent figures, or None: the first execution is slower than the rest.
    """
    for path in state.paths:
        if path.on_card is on_card and path.role == role and path.n_recent:
            return path
    return None


def at_measured_level(
    nominal: StageCost,
    work: StageWork,
    seen: PathCost | None,
    price: Callable[[StageWork], StageCost],
) -> StageCost:
    """Scale the nominal cost of some work to the level that the run has measured.

    Where the energy was not measured it changes with the time: the nominal power, for longer.

    Args:
        nominal: what the work costs by the profile.
        work: the work.
        seen: what its role has cost on this path; None: the nominal cost stands.
        price: gives the nominal cost of other work of the role on this path.

    Returns:
        The cost; the nominal one itself where nothing of it, or of the measured rows, is known.
    """
    if seen is None or nominal.time_s is None or nominal.energy_j is None:
        return nominal
    measured = at_length(work, seen.mean_length)
    then, n_tokens = price(measured), measured.n_output_tokens
    time_s, energy_j = seen.expected_per_token
    if not then.time_s or not time_s or n_tokens < 1:
        return nominal
    factor = level(time_s * n_tokens / then.time_s, seen.n_recent)
    j_factor = factor
    if energy_j is not None and then.energy_j:
        j_factor = level(energy_j * n_tokens / then.energy_j, seen.n_recent)
    return replace(
        nominal,
        time_s=nominal.time_s * factor,
        energy_j=nominal.energy_j * j_factor,
        power_w=None if nominal.power_w is None else nominal.power_w * j_factor / factor,
        provenance=weakest(nominal.provenance, seen.provenance),
    )


def at_length(work: StageWork, length: float | None) -> StageWork:
    """Return the same rows with completions of another mean length.

    Args:
        work: the work.
        length: tokens of a completion; None: not known, the work itself.
    """
    if length is None or work.n_sequences < 1 or work.n_output_tokens < 1:
        return work
    n_output = max(1, round(length * work.n_sequences))
    n_tokens = work.n_tokens - work.n_output_tokens + n_output
    longest = max(1, round(work.max_length * n_tokens / work.n_tokens))
    return replace(work, n_tokens=n_tokens, n_output_tokens=n_output, max_length=longest)

"""Nominal costs of a stage, brought to the level of what the run has measured of it.

A profile says what a device should take, and small models, other tenants or a wrong profile make
factors of difference. The level (`ecorl.scheduler.measured.readings`) is the measured cost over the
nominal one at the length of the measured rows, so that longer rows do not pass for slower ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ecorl.devices import StageCost
from ecorl.records import PathCost, Role, SchedulerState, StageWork, weakest
from ecorl.scheduler.measured.readings import level


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

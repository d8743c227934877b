"""What a calibration holds for: the devices, models and batches that its run had, and no others."""

from __future__ import annotations

from ecorl.policy.calibration.calibration import Calibration


def holds_for(made: Calibration) -> list[str]:
    """Say what a calibration holds for, and what it does not, one sentence a line.

    Args:
        made: the calibration.
    """
    devices = f"{made.n_gpus} x {made.gpu} and {made.n_cards} x {made.card}"
    told = [f"holds for {devices}, {made.algorithm}; its figures are {made.provenance}"]
    reach = made.reach
    if reach.models:
        told.append("; ".join(f"{key} {name}" for key, name in reach.models.items()))
    told.append(
        f"fitted to {reach.n_batches} batches of {_range(reach.rows_least, reach.rows_most)} rows, "
        f"mean prompts of {_range(reach.prompt_least, reach.prompt_most)} and mean completions of "
        f"{_range(reach.completion_least, reach.completion_most)} tokens"
    )
    told.append(f"calls behind the fits: {_calls(made)}")
    lengths = made.table.lengths
    told.append(
        "does not hold for other models or devices, other numbers of rows, or mean completions "
        f"outside {_range(float(lengths[0]), float(lengths[-1]))} tokens; within these, but "
        "outside what was seen, it is extrapolated"
    )
    return told


def _range(least: float, most: float) -> str:
    first, last = f"{least:.3g}", f"{most:.3g}"
    if most >= 1000:
        first, last = f"{least:,.0f}", f"{most:,.0f}"
    return first if first == last else f"{first} to {last}"


def _calls(made: Calibration) -> str:
    """Readings behind the times of each stage, and where they ran."""
    told = []
    for name, n in made.counts.items():
        if name.endswith("_s"):
            stage, card = name.removesuffix("_s"), name.endswith("_card_s")
            told.append(f"{stage.removesuffix('_card')}{' on the card' if card else ''} {n}")
    return ", ".join(told)

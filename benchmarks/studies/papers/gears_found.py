"""What trainings with gears gave for CarbonGearRL's ablation, out of a kept result.

The trainings take half a minute and are those of ``benchmarks.trainer``: they are not made twice.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

_FIGURE = "optim.no_gamma_loss_ratio"

_BY_CLAIM = {
    "gear_variance": "norm_variance_ratio",
    "gear_perplexity_13b": "perplexity_ratio",
    "gear_perplexity_70b": "perplexity_ratio",
}
"""What of the figure's spread stands beside a claim."""


class GearsFound(NamedTuple):
    """Figures of trainings without gamma over those with it.

    Attributes:
        by_claim: medians over the seeds.
        source: one sentence on where they come from; empty without any.
    """

    by_claim: Mapping[str, float]
    source: str


NOTHING = GearsFound({}, "")


def gears_found(path: Path) -> GearsFound:
    """Read the kept result of ``benchmarks.trainer``.

    Args:
        path: of the result; where there is none, or none of these figures in it, nothing is found.
    """
    try:
        result: Any = json.loads(path.read_text("utf-8"))
        figures = {figure["id"]: figure for figure in result["figures"]}
        spread = figures[_FIGURE]["spread"] or {}
        by_claim = {
            claim: statistics.median(by_seed.values())
            for claim, name in _BY_CLAIM.items()
            if (by_seed := spread.get(name))
        }
        commit = result["commit"] or "an unknown commit"
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return NOTHING
    if not by_claim:
        return NOTHING
    n_steps = result.get("config", {}).get("recipe", {}).get("n_steps", "some")
    told = f"Trainings with gears: {path.name} of this device, {n_steps} steps, commit {commit}."
    return GearsFound(by_claim, told)

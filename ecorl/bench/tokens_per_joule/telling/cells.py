"""Figures over seeds as cells of a table."""

from __future__ import annotations

from ecorl.bench.tokens_per_joule.summary import OverSeeds
from ecorl.report.render.numbers import MISSING, figure

FACTOR_ONE = 1.0


def middle(found: OverSeeds | None, factor: float = FACTOR_ONE, bound: str = "") -> str:
    """The median; ``-`` where there is none.

    Args:
        found: over the seeds.
        factor: by which the unit shown is smaller.
        bound: what stands before it where it is a bound only.
    """
    if found is None:
        return MISSING
    return f"{bound}{figure(found.median * factor)}"


def ends(found: OverSeeds | None, factor: float = FACTOR_ONE) -> tuple[str, str]:
    """The ends of the spread; ``-`` where there is none.

    Args:
        found: over the seeds.
        factor: by which the unit shown is smaller.
    """
    if found is None or found.interval is None:
        return MISSING, MISSING
    low, high = found.interval
    return figure(low * factor), figure(high * factor)


def per_cent(found: OverSeeds | None) -> str:
    """The median of a share, in per cent without the sign."""
    return MISSING if found is None else f"{100 * found.median:.1f}"

"""Printed figures of a source as figures of a benchmark."""

from __future__ import annotations

from typing import Protocol

from benchmarks.harness.figures import Figure, missing
from ecorl.records import Provenance


class PrintedClaim(Protocol):
    """A claim of a source, as it is printed."""

    @property
    def id(self) -> str:
        """What the figures' ids go on with."""
        ...

    @property
    def text(self) -> str:
        """What is claimed."""
        ...

    @property
    def unit(self) -> str:
        """Unit of the figures."""
        ...

    @property
    def printed(self) -> float | tuple[float, float] | None:
        """As printed; None where no figure is."""
        ...

    @property
    def not_printed(self) -> str:
        """What stands there in place of a figure."""
        ...


def printed_figures(benchmark: str, claim: PrintedClaim, source: str) -> list[Figure]:
    """What a source prints for a claim: one figure, or both ends of a range.

    Args:
        benchmark: what the figures' ids begin with.
        claim: the claim.
        source: what to call the source where it prints no figure.
    """
    id = f"{benchmark}.{claim.id}.printed"
    if claim.printed is None:
        return [missing(id, claim.unit, f"{source} prints {claim.not_printed}")]
    if isinstance(claim.printed, tuple):
        return [
            Figure(f"{id}_{end}", value, claim.unit, Provenance.PUBLISHED, note=claim.text)
            for end, value in zip(("low", "high"), claim.printed, strict=True)
        ]
    return [Figure(id, claim.printed, claim.unit, Provenance.PUBLISHED, note=claim.text)]

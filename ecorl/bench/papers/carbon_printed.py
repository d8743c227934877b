"""What a blog post and the EcoRL-Sched paper print of carbon; it lies in ``carbon.toml``."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any, Literal

from ecorl.bench.papers.printed import printed_value, with_place

FILE = "carbon.toml"

Source = Literal["blog", "paper"]

SOURCES: Mapping[Source, str] = {
    "blog": "Carbon-Aware Model Training (a blog post)",
    "paper": "EcoRL-Sched, sections 4.4 and 5.3",
}
"""Whose claims they are, in the order of the tables."""


@dataclass(frozen=True, slots=True)
class CarbonClaim:
    """One claim about carbon.

    Attributes:
        id: of its figures: ``paper_carbon.<id>.printed`` and so on.
        source: whose it is.
        text: what is claimed, with the place.
        unit: of the figures; ``1`` for a ratio or share.
        printed: as printed; a pair for a range; None where no figure is printed.
        why: what the other figures are, and why they differ.
        not_printed: what stands there in place of a figure.
        needs_training: whether it takes a training loop to say anything of it.
    """

    id: str
    source: Source
    text: str
    unit: str
    printed: float | tuple[float, float] | None
    why: str
    not_printed: str = ""
    needs_training: bool = False


def _claim(entry: Mapping[str, Any]) -> CarbonClaim:
    return CarbonClaim(
        id=entry["id"],
        source=entry["source"],
        text=with_place(entry),
        unit=entry["unit"],
        printed=printed_value(entry),
        why=entry["why"],
        not_printed=entry.get("not_printed", ""),
        needs_training=entry.get("needs_training", False),
    )


_FOUND: dict[str, Any] = tomllib.loads((resources.files(__package__) / FILE).read_text("utf-8"))

BLOG: Mapping[str, float] = _FOUND["blog"]
"""Figures of the blog post that others are derived from."""

PAPER: Mapping[str, Any] = _FOUND["paper"]
"""Figures of the paper that others are derived from."""

CAR_G_PER_KM: float = _FOUND["outside"]["car_g_per_km"]

ACT: Mapping[str, Any] = _FOUND["act"]
"""Constants of ACT, which the paper names as its method."""

UTC_OFFSET_H: Mapping[str, float] = _FOUND["utc_offset_h"]
"""Local standard time less UTC by grid, h."""

CLAIMS: tuple[CarbonClaim, ...] = tuple(_claim(entry) for entry in _FOUND["claims"])

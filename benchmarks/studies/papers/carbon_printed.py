"""What four sources print of carbon; it lies in ``carbon.toml`` and ``control_claims.toml``."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any, Literal

from benchmarks.studies.papers.printed import printed_value, with_place

FILE = "carbon.toml"
CONTROL_FILE = "control_claims.toml"

Source = Literal["blog", "paper", "gear", "carl"]

Training = Literal["", "accumulation", "gears"]

SOURCES: Mapping[Source, str] = {
    "blog": "Carbon-Aware Model Training (a blog post)",
    "paper": "EcoRL-Sched, sections 4.4 and 5.3",
    "gear": "CarbonGearRL",
    "carl": "Eco-Orchestrator with CARL",
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
        needs_training: what has to be trained to say anything of it: with gradient accumulation,
            or with gears; empty where nothing has.
        only_grids: recordings that it is about; empty: all.
        not_tested: why nothing of ecorl stands beside it; empty where something does.
    """

    id: str
    source: Source
    text: str
    unit: str
    printed: float | tuple[float, float] | None
    why: str
    not_printed: str = ""
    needs_training: Training = ""
    only_grids: tuple[str, ...] = ()
    not_tested: str = ""


def _claim(entry: Mapping[str, Any]) -> CarbonClaim:
    return CarbonClaim(
        id=entry["id"],
        source=entry["source"],
        text=with_place(entry),
        unit=entry["unit"],
        printed=printed_value(entry),
        why=entry["why"],
        not_printed=entry.get("not_printed", ""),
        needs_training=entry.get("needs_training", ""),
        only_grids=tuple(entry.get("only_grids", ())),
        not_tested=entry.get("not_tested", ""),
    )


def _read(file: str) -> dict[str, Any]:
    return tomllib.loads((resources.files(__package__) / file).read_text("utf-8"))


_FOUND, _CONTROL = _read(FILE), _read(CONTROL_FILE)

BLOG: Mapping[str, float] = _FOUND["blog"]
"""Figures of the blog post that others are derived from."""

PAPER: Mapping[str, Any] = _FOUND["paper"]
"""Figures of the paper that others are derived from."""

CAR_G_PER_KM: float = _FOUND["outside"]["car_g_per_km"]

ACT: Mapping[str, Any] = _FOUND["act"]
"""Constants of ACT, which the paper names as its method."""

UTC_OFFSET_H: Mapping[str, float] = _FOUND["utc_offset_h"]
"""Local standard time less UTC by grid, h."""

GEAR: Mapping[str, Any] = _CONTROL["gear"]
"""Figures of CarbonGearRL that others are derived from."""

CARL: Mapping[str, Any] = _CONTROL["carl"]
"""Figures of Eco-Orchestrator that others are derived from."""

BESIDE: Mapping[str, float] = _CONTROL["beside"]
"""What neither of those two prints."""

CLAIMS: tuple[CarbonClaim, ...] = tuple(
    _claim(entry) for entry in (*_FOUND["claims"], *_CONTROL["claims"])
)

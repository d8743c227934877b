"""What the EcoRL-Sched paper prints of its scheduler; the figures lie in ``ecorl_sched.toml``."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

FILE = "ecorl_sched.toml"


@dataclass(frozen=True, slots=True)
class Claim:
    """One claim of the paper.

    Attributes:
        id: of its figures: ``paper.<id>.printed``, ``.paper`` and ``.roofline``.
        text: what is claimed, with the place in the paper.
        unit: of the figures; ``1`` for a ratio or share.
        printed: as printed; a pair for a range; None where no figure is printed.
        why: why our simulator gives another value.
        not_printed: what stands there in place of a figure.
    """

    id: str
    text: str
    unit: str
    printed: float | tuple[float, float] | None
    why: str
    not_printed: str = ""


def _claim(entry: Mapping[str, Any], reasons: Mapping[str, str]) -> Claim:
    return Claim(
        id=entry["id"],
        text=with_place(entry),
        unit=entry["unit"],
        printed=printed_value(entry),
        why=entry["why"].format(**reasons),
        not_printed=entry.get("not_printed", ""),
    )


def with_place(entry: Mapping[str, Any]) -> str:
    """Text of a claim or slip, with its place in the paper where that is not in the text."""
    place = entry.get("place")
    return entry["text"] if place is None else f"{entry['text']} ({place})"


def printed_value(entry: Mapping[str, Any]) -> float | tuple[float, float] | None:
    """The printed figure of a claim or slip: one, a range, a ratio of two, or none."""
    if "printed_ratio" in entry:
        above, below = entry["printed_ratio"]
        return float(above / below)
    value = entry.get("printed")
    if isinstance(value, list):
        low, high = value
        return float(low), float(high)
    return None if value is None else float(value)


def _read() -> dict[str, Any]:
    return tomllib.loads((resources.files(__package__) / FILE).read_text("utf-8"))


_FOUND = _read()

FIGURES: Mapping[str, Any] = _FOUND["figures"]
"""Printed figures that others are derived from, by name."""

CLAIMS: tuple[Claim, ...] = tuple(_claim(entry, _FOUND["reasons"]) for entry in _FOUND["claims"])

SLIPS: tuple[Mapping[str, Any], ...] = tuple(_FOUND["slips"])
"""Printed figures that are held against the paper's others, in the order of the table."""

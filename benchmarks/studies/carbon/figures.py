"""Figures of the carbon benchmarks; their notes, provenances and targets lie in ``figures.toml``.

Braces in an id or a note hold what `carbon_figure` is given, and the format of it; a format that
ends with `` %`` writes a share as a percentage.
"""

from __future__ import annotations

import string
import tomllib
from collections.abc import Mapping
from importlib import resources
from typing import Any

from benchmarks.harness.figures import Figure, Target, missing
from ecorl.records import Provenance

_ENTRIES = tomllib.loads((resources.files(__package__) / "figures.toml").read_text("utf-8"))


class _Words(string.Formatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec.endswith(" %"):
            return f"{100 * value:{format_spec[:-2]}} %"
        return str(super().format_field(value, format_spec))


def carbon_figure(
    key: str,
    value: float | None,
    spread: Mapping[str, object] | None = None,
    *,
    target: Target | None = None,
    has_target: bool = True,
    why: str = "",
    **words: Any,
) -> Figure:
    """Make a figure.

    Args:
        key: of its table in the file.
        value: of the figure, or None.
        spread: how it varied.
        target: in place of the file's.
        has_target: whether it has the file's target.
        why: the reason for a missing value.
        words: what stands in the braces; ``grid`` also chooses the target.
    """
    entry, grid = _ENTRIES[key], words.get("grid")
    id, unit = f"carbon.{key.format(**words)}", entry.get("unit", "1")
    limits = {
        end: limit.get(grid) if isinstance(limit, dict) else limit
        for end, limit in entry.items()
        if end in ("low", "high")
    }
    if target is None and has_target and any(limit is not None for limit in limits.values()):
        target = Target(**limits)
    if value is None:
        return missing(id, unit, why, target)
    note = _Words().format(entry["note"], **words)
    return Figure(id, value, unit, Provenance(entry["provenance"]), spread, target, note)

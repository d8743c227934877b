"""A benchmark's figures: value, where it came from, target, and whether the target holds.

A figure that could not be measured has the value None and a note that says why; it is never 0. The
id of a figure never changes its meaning: what a quick pass measures is smaller, so its figures
carry another id.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from ecorl.bench.machine import Machine
from ecorl.files import write_whole
from ecorl.records import Provenance

QUICK = "@quick"
"""Suffix of the ids of a quick pass."""


@dataclass(frozen=True, slots=True)
class Target:
    """The range that a figure should lie in: at least ``low``, at most ``high``, or both."""

    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        if self.low is None and self.high is None:
            raise ValueError("a target needs a limit")

    def __str__(self) -> str:
        parts = [f">= {self.low:g}"] if self.low is not None else []
        parts += [f"<= {self.high:g}"] if self.high is not None else []
        return " and ".join(parts)

    def holds(self, value: float) -> bool:
        """Whether a value meets the target."""
        return (self.low is None or value >= self.low) and (self.high is None or value <= self.high)


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of a benchmark.

    Attributes:
        id: ``benchmark.name``; keeps its meaning for good.
        value: the figure, or None where there is none.
        unit: of the value; ``1`` for a ratio or share.
        provenance: of the value; None without a value.
        spread: how the value varied, e.g. from `ecorl.bench.stats.spread_of`; of a modelled value
            that rests on figures with intervals, ``of`` names those figures, and ``low`` and
            ``high`` are the value at their ends, None where there is none.
        target: what it should be, if anything.
        note: what exactly was measured; with the value None, why it is missing.

    Raises:
        ValueError: for NaN or infinity, a value without provenance, or a gap without a reason.
    """

    id: str
    value: float | None
    unit: str
    provenance: Provenance | None = None
    spread: Mapping[str, object] | None = None
    target: Target | None = None
    note: str | None = None

    def __post_init__(self) -> None:
        if self.value is None:
            if not self.note:
                raise ValueError(f"{self.id}: a missing figure needs a reason")
            return
        if not math.isfinite(self.value):
            raise ValueError(f"{self.id}: {self.value} is not a figure")
        if self.provenance is None:
            raise ValueError(f"{self.id}: a figure needs a provenance")

    @property
    def holds(self) -> bool | None:
        """Whether the target is met; None without a target or without a value."""
        if self.target is None or self.value is None:
            return None
        return self.target.holds(self.value)

    def as_dict(self) -> dict[str, object]:
        """Plain data for JSON."""
        return {
            "id": self.id,
            "value": self.value,
            "unit": self.unit,
            "provenance": str(self.provenance) if self.provenance else None,
            "spread": dict(self.spread) if self.spread is not None else None,
            "target": str(self.target) if self.target else None,
            "holds": self.holds,
            "note": self.note,
        }

    def line(self) -> str:
        """Id, value, target, and whether it holds, as one line."""
        unit = "" if self.unit == "1" else f" {self.unit}"
        # "none", not "not measured": a modelled figure that has no value was never to be measured.
        value = "none" if self.value is None else f"{self.value:.4g}{unit}"
        if self.value is None:
            verdict = self.note or ""
        elif self.target is None:
            verdict = "no target"
        else:
            verdict = f"{self.target}: {'holds' if self.holds else 'falls short'}"
        return f"{self.id:<38} {value:>18}  {self._ends()}{verdict}"

    def _ends(self) -> str:
        """The interval by the figures that the value rests on; empty without one."""
        if self.spread is None or "of" not in self.spread:
            return ""
        ends = self.spread["low"], self.spread["high"]
        low, high = ("none" if end is None else f"{end:.4g}" for end in ends)
        return "" if high == "none" else f"{low} to {high}; "


def known(values: Sequence[float | None]) -> list[float]:
    """Return the values that are there.

    Args:
        values: with None for a missing one.
    """
    return [value for value in values if value is not None]


def over(value: float | None, base: float | None) -> float | None:
    """A value over another; None without both.

    Args:
        value: the one.
        base: the other.
    """
    return value / base if value is not None and base else None


def as_quick(figures: Sequence[Figure]) -> list[Figure]:
    """Rename the figures of a quick pass and drop their targets."""
    return [replace(f, id=f"{f.id}{QUICK}", target=None) for f in figures]


@dataclass(frozen=True, slots=True)
class Result:
    """The figures of one run of a benchmark, with device, commit and settings.

    Attributes:
        config: settings of the benchmark, plain data.
    """

    benchmark: str
    commit: str | None
    machine: Machine
    figures: Sequence[Figure]
    config: Mapping[str, object] = field(default_factory=dict)

    def as_dict(self) -> dict[str, object]:
        """Plain data for JSON."""
        return {
            "benchmark": self.benchmark,
            "commit": self.commit,
            "device": asdict(self.machine),
            "config": dict(self.config),
            "figures": [figure.as_dict() for figure in self.figures],
        }


def write_result(result: Result, path: Path) -> None:
    """Write a result as JSON; the file is whole or not there.

    Args:
        result: the result.
        path: the file; its folder is made if need be.

    Raises:
        OSError: when the folder cannot be written.
        ValueError: when the config holds NaN or what JSON does not know.
    """
    text = json.dumps(result.as_dict(), indent=1, allow_nan=False) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text)

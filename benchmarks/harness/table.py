"""A benchmark's table of figures: what each is called, its unit, provenance, target and note.

The tables lie in ``benchmarks/figures``, a TOML file a benchmark. A row is named by the figure's id
and has

- ``note``: what exactly was measured;
- ``unit``: ``1`` where it is absent;
- ``provenance``: that of the whole file where it is absent;
- ``least``, ``most``: the ends of the target; without them there is none;
- ``missing``: why there is no value, where a caller has no reason of its own.

Id, unit, note and reason are templates, whose fields a caller fills in.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.figures import Figure, Target
from ecorl.bench.rounds import round_ratios
from ecorl.bench.stats import Values, bootstrap_interval, median, spread_of
from ecorl.records import Provenance

FOLDER = Path(__file__).resolve().parent.parent / "figures"


class FigureTable:
    """Makes the figures of a benchmark.

    Args:
        name: of the file in ``benchmarks/figures``, without its ending.
    """

    def __init__(self, name: str) -> None:
        self._rows: dict[str, Any] = tomllib.loads((FOLDER / f"{name}.toml").read_text("utf-8"))

    def __iter__(self) -> Iterator[str]:
        """Names of the rows."""
        return (key for key, row in self._rows.items() if isinstance(row, dict))

    def figure(
        self,
        key: str,
        value: float | None,
        spread: Mapping[str, object] | None = None,
        *,
        why: str | None = None,
        judged: bool = True,
        provenance: Provenance | None = None,
        words: Mapping[str, object] | None = None,
        **more: object,
    ) -> Figure:
        """Make the figure of a value, or without one the figure that says why.

        Args:
            key: name of the row.
            value: the figure, or None.
            spread: how the value varied.
            why: the reason, where there is no value; that of the row by default.
            judged: whether the row's target holds.
            provenance: of the value; that of the row by default.
            words: fields of id, unit, note and reason.
            **more: further fields.
        """
        row, fields = self._rows[key], {**(words or {}), **more}
        id, unit = key.format(**fields), row.get("unit", "1").format(**fields)
        target = None
        if judged and ("least" in row or "most" in row):
            target = Target(row.get("least"), row.get("most"))
        if value is None:
            reason = why or row["missing"].format(**fields)
            return Figure(id, None, unit, None, spread, target, reason)
        known = provenance or Provenance(row.get("provenance", self._rows.get("provenance")))
        return Figure(id, value, unit, known, spread, target, row["note"].format(**fields))

    def median(
        self, key: str, values: Values, beside: Mapping[str, object] | None = None, **more: Any
    ) -> Figure:
        """Make the figure of repeated measurements: their median with its spread.

        Args:
            key: name of the row.
            values: independent measurements; without any the figure is missing.
            beside: what else stands in the spread.
            **more: as of `figure`.
        """
        if not len(values):
            return self.figure(key, None, **more)
        return self.figure(key, median(values), spread_of(values) | dict(beside or {}), **more)

    def ratio(self, key: str, numerator: Values, denominator: Values, **more: Any) -> Figure:
        """Make the figure of one arm over another: the median of the ratios of their rounds.

        Args:
            key: name of the row.
            numerator: one arm, round by round.
            denominator: the other.
            **more: as of `figure`.
        """
        return self.median(key, round_ratios(numerator, denominator), **more)

    def interval_end(self, key: str, values: Values, end: int, **more: Any) -> Figure:
        """Make the figure of one end of the 95 % bootstrap interval of a median.

        Args:
            key: name of the row, which says why where the values are too few for an interval.
            values: independent measurements.
            end: 0 for the lower end, 1 for the upper one.
            **more: as of `figure`.
        """
        found = bootstrap_interval(values)
        if found is None:
            return self.figure(key, None, **more)
        return self.figure(key, found[end], {"interval_95": list(found)}, **more)

    def all_missing(self, keys: Sequence[str], why: str) -> list[Figure]:
        """Make figures without values.

        Args:
            keys: names of the rows.
            why: the reason of all of them.
        """
        return [self.figure(key, None, why=why) for key in keys]

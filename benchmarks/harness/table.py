"""A benchmark's table of figures: what each is called, its unit, provenance, target and note.

The tables lie in ``benchmarks/figures``, a TOML file a benchmark. A row is named by the figure's id
and has

- ``note``: what exactly was measured;
- ``unit``: ``1`` where it is absent;
- ``provenance``;
- ``least``, ``most``: the ends of the target; without them there is none;
- ``missing``: why there is no value, where a caller has no reason of its own.

Keys above the first row are the defaults of all rows. Id, unit, note and reason are templates,
whose fields a caller fills in; a format that ends with `` %`` writes a share as a percentage. A row
whose name is one filled-in id of a template, such as ``carbon.regret_CISO_history``, overrides the
template's keys for that figure: a target of its own, for instance.
"""

from __future__ import annotations

import string
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.figures import Figure, Target, known, over
from ecorl.bench.stats import Values, bootstrap_interval, median, spread_of
from ecorl.records import Provenance

FOLDER = Path(__file__).resolve().parent.parent / "figures"


class _Template(string.Formatter):
    """Fills in a template; the format ``.1f %`` writes 0.123 as ``12.3 %``."""

    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec.endswith(" %"):
            return f"{100 * value:{format_spec[:-2]}} %"
        return str(super().format_field(value, format_spec))


class FigureTable:
    """Makes the figures of a benchmark.

    Args:
        name: of the file in ``benchmarks/figures``, without its ending.
    """

    def __init__(self, name: str) -> None:
        entries = tomllib.loads((FOLDER / f"{name}.toml").read_text("utf-8"))
        self._rows = {key: row for key, row in entries.items() if isinstance(row, dict)}
        self._defaults = {key: value for key, value in entries.items() if key not in self._rows}

    def rows(self, start: str = "") -> list[str]:
        """Names of the rows.

        Args:
            start: with which they begin.
        """
        return [key for key in self._rows if key.startswith(start)]

    def figure(
        self,
        key: str,
        value: float | None,
        spread: Mapping[str, object] | None = None,
        *,
        why: str | None = None,
        target: Target | None = None,
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
            target: that of the row by default.
            judged: whether the row's target holds.
            provenance: of the value; that of the row by default.
            words: fields of id, unit, note and reason.
            **more: further fields.
        """
        fill, fields = _Template().vformat, {**(words or {}), **more}
        id = fill(key, (), fields)
        row = {**self._defaults, **self._rows[key], **self._rows.get(id, {})}
        unit = fill(row.get("unit", "1"), (), fields)
        if target is None and judged and ("least" in row or "most" in row):
            target = Target(row.get("least"), row.get("most"))
        if value is None:
            return Figure(
                id, None, unit, None, spread, target, why or fill(row["missing"], (), fields)
            )
        source = provenance or Provenance(row["provenance"])
        return Figure(id, value, unit, source, spread, target, fill(row["note"], (), fields))

    def median(
        self,
        key: str,
        values: Sequence[float | None],
        beside: Mapping[str, object] | None = None,
        **more: Any,
    ) -> Figure:
        """Make the figure of repeated measurements: their median with its spread.

        Args:
            key: name of the row.
            values: independent measurements; without any, or where one is not known, the figure is
                missing.
            beside: what else stands in the spread.
            **more: as of `figure`.
        """
        kept = known(values)
        if not kept or len(kept) < len(values):
            return self.figure(key, None, **more)
        return self.figure(key, median(kept), spread_of(kept) | dict(beside or {}), **more)

    def ratio(
        self,
        key: str,
        numerator: Sequence[float | None],
        denominator: Sequence[float | None],
        **more: Any,
    ) -> Figure:
        """Make the figure of one arm over another: the median of the ratios of their rounds.

        Args:
            key: name of the row.
            numerator: one arm, round by round.
            denominator: the other.
            **more: as of `figure`.
        """
        ratios = [over(a, b) for a, b in zip(numerator, denominator, strict=True)]
        return self.median(key, ratios, **more)

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

    def all_missing(self, keys: Sequence[str], why: str, **more: Any) -> list[Figure]:
        """Make figures without values.

        Args:
            keys: names of the rows.
            why: the reason of all of them.
            **more: as of `figure`.
        """
        return [self.figure(key, None, why=why, **more) for key in keys]

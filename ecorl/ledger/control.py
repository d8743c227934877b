"""The control path's part of the record: intensities, PUE, and decisions about training."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Mapping

from ecorl.control import GearChoice
from ecorl.grid import AverageIntensity, Intensity, MarginalIntensity
from ecorl.ledger.encoding import Columns, columns_of, json_text, number, record_of
from ecorl.ledger.rows import GearChoiceRow, IntensityRow

Insert = Callable[[str, Callable[[], Columns]], None]
"""Puts a row into a table; the columns are made on the writing thread."""


class ControlRecord:
    """Writes what the control path knew and decided; as all of a `Ledger` it never raises.

    Args:
        insert: of the ledger.
    """

    def __init__(self, insert: Insert) -> None:
        self._insert = insert

    def intensity(self, kind: type[Intensity], value: Intensity | None) -> None:
        """Record what counts as the grid's intensity from now on, on the head.

        Args:
            kind: `AverageIntensity` or `MarginalIntensity`.
            value: of that kind; None: nothing is known from now on.
        """
        t_s = time.monotonic()
        self._insert("intensity", lambda: {"t_s": t_s, **_intensity_row(kind, value)})

    def pue(self, start_s: float, value: float | None) -> None:
        """Record the power usage effectiveness from a time on, on the head.

        Args:
            start_s: from when it counts, s since 1970.
            value: the ratio, or None where none is known from then on.
        """
        self._insert("pue", lambda: {"start_unix_s": number(start_s), "pue": number(value)})

    def choice(self, choice: GearChoice, memory: Mapping[str, object] | None = None) -> None:
        """Record a decision about the training stage, on the head.

        Args:
            choice: the decision; it counts until the next one.
            memory: what its controller goes on from after a resume, in values that JSON can hold.
        """
        t_s = time.monotonic()
        told = json_text(memory) if memory else None
        row = {"t_s": t_s, **columns_of(GearChoice, choice), "memory": told}
        self._insert("gear_choice", lambda: row)


_KINDS: dict[str, type[Intensity]] = {"average": AverageIntensity, "marginal": MarginalIntensity}


def _intensity_row(kind: type[Intensity], value: Intensity | None) -> Columns:
    """Columns of table ``intensity``.

    Args:
        kind: `AverageIntensity` or `MarginalIntensity`.
        value: what counts from now on; None: nothing is known from now on.
    """
    (name,) = (name for name, one in _KINDS.items() if one is kind)
    if value is None:
        return {"kind": name}
    if type(value) is not kind:
        raise TypeError(f"{type(value).__name__} among values of {kind.__name__}")
    return {"kind": name, **columns_of(Intensity, value)}


def intensity_of(row: sqlite3.Row) -> IntensityRow:
    """The row of table ``intensity``."""
    kind = _KINDS[row["kind"]]
    value = None if row["feed"] is None else record_of(kind, row)
    return IntensityRow(row["attempt"], row["t_s"], kind, value)


def choice_of(row: sqlite3.Row) -> GearChoiceRow:
    """The row of table ``gear_choice``."""
    memory = {} if row["memory"] is None else json.loads(row["memory"])
    return GearChoiceRow(row["attempt"], row["t_s"], record_of(GearChoice, row), memory)

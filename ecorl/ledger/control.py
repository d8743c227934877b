"""The control path's part of the record: intensities, PUE, and decisions about training."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Mapping

from ecorl.control import Command, Gear, GearChoice, Why
from ecorl.grid import AverageIntensity, Basis, Fuel, Gas, Intensity, MarginalIntensity, Scope
from ecorl.ledger.encoding import Columns, number
from ecorl.ledger.rows import GearChoiceRow, IntensityRow, PueRow
from ecorl.records import Provenance

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
        told = json.dumps(memory, separators=(",", ":")) if memory else None
        row = {"t_s": t_s, **_choice_row(choice), "memory": told}
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
    shares = None
    if value.mix is not None:
        shares = {str(fuel): number(share) for fuel, share in value.mix.items()}
    return {
        "kind": name,
        "feed": str(value.feed),
        "start_unix_s": number(value.start_s),
        "interval_s": number(value.interval_s),
        "g_per_kwh": number(value.g_per_kwh),
        "gas": str(value.gas),
        "basis": str(value.basis),
        "scope": str(value.scope),
        "factors": str(value.factors),
        "is_estimated": None if value.is_estimated is None else int(value.is_estimated),
        "fetched_unix_s": number(value.fetched_s),
        "provenance": str(value.provenance),
        "mix": None if shares is None else json.dumps(shares, separators=(",", ":")),
    }


def intensity_of(row: sqlite3.Row) -> IntensityRow:
    """The row of table ``intensity``."""
    kind = _KINDS[row["kind"]]
    value = None
    if row["feed"] is not None:
        shares = None if row["mix"] is None else json.loads(row["mix"])
        value = kind(
            feed=row["feed"],
            start_s=float(row["start_unix_s"]),
            interval_s=float(row["interval_s"]),
            g_per_kwh=float(row["g_per_kwh"]),
            gas=Gas(row["gas"]),
            basis=Basis(row["basis"]),
            scope=Scope(row["scope"]),
            factors=row["factors"],
            is_estimated=None if row["is_estimated"] is None else bool(row["is_estimated"]),
            fetched_s=float(row["fetched_unix_s"]),
            provenance=Provenance(row["provenance"]),
            mix=None if shares is None else {Fuel(f): float(s) for f, s in shares.items()},
        )
    return IntensityRow(row["attempt"], row["t_s"], kind, value)


def _choice_row(c: GearChoice) -> Columns:
    return {
        "decided_unix_s": number(c.decided_s),
        "command": str(c.command),
        "why": str(c.why),
        "controller": str(c.controller),
        "reason": str(c.reason),
        "look_again_unix_s": number(c.look_again_s),
        "g_per_kwh": number(c.g_per_kwh),
        "feed": None if c.feed is None else str(c.feed),
        "threshold_g_per_kwh": number(c.threshold_g_per_kwh),
        "width": None if c.width is None else int(c.width),
        "gear": None if c.gear is None else str(c.gear),
        "price_g_per_token": number(c.price_g_per_token),
        "price_g_per_step": number(c.price_g_per_step),
        "clock_share": number(c.clock_share),
    }


def choice_of(row: sqlite3.Row) -> GearChoiceRow:
    """The row of table ``gear_choice``."""
    choice = GearChoice(
        decided_s=float(row["decided_unix_s"]),
        command=Command(row["command"]),
        why=Why(row["why"]),
        controller=row["controller"],
        reason=row["reason"],
        look_again_s=float(row["look_again_unix_s"]),
        g_per_kwh=row["g_per_kwh"],
        feed=row["feed"],
        threshold_g_per_kwh=row["threshold_g_per_kwh"],
        width=row["width"],
        gear=None if row["gear"] is None else Gear(row["gear"]),
        price_g_per_token=row["price_g_per_token"],
        price_g_per_step=row["price_g_per_step"],
        clock_share=row["clock_share"],
    )
    memory = {} if row["memory"] is None else json.loads(row["memory"])
    return GearChoiceRow(row["attempt"], row["t_s"], choice, memory)


def pue_of(row: sqlite3.Row) -> PueRow:
    """The row of table ``pue``."""
    return PueRow(row["attempt"], float(row["start_unix_s"]), row["pue"])

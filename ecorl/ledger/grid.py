"""Intensities of the grid to rows of the record, and back."""

from __future__ import annotations

import json
import sqlite3

from ecorl.grid import AverageIntensity, Basis, Fuel, Gas, Intensity, MarginalIntensity, Scope
from ecorl.ledger.encoding import Columns, number
from ecorl.ledger.rows import IntensityRow
from ecorl.records import Provenance

_KINDS: dict[str, type[Intensity]] = {"average": AverageIntensity, "marginal": MarginalIntensity}


def intensity_row(kind: type[Intensity], value: Intensity | None) -> Columns:
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

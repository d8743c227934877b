"""Cells of the EDI matrix: what one model of a stage has cost on one device."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from ecorl.errors import DataError
from ecorl.records import PathCost, Provenance, Stage


@dataclass(frozen=True, slots=True)
class EdiCell:
    """One cell of the matrix.

    Attributes:
        stage: row of the matrix.
        device: column of the matrix, a profile name.
        provenance: of all readings in this cell.
        value_j_per_token: the smoothed figure of Eq. 5, J per output token.
        count: readings so far.
        mean_j_per_token: plain mean over all readings.
        m2: sum of squared deviations from the mean (Welford), from which the spread follows.
        mean_time_s_per_token: plain mean of time over output tokens, s; None while a reading came
            without its time.
        role_name: which of the stage's models ran; empty where it has only one.
        variant: how it ran where that changes its price; empty for the framework's own way.
    """

    stage: Stage
    device: str
    provenance: Provenance
    value_j_per_token: float
    count: int
    mean_j_per_token: float
    m2: float
    mean_time_s_per_token: float | None = None
    role_name: str = ""
    variant: str = ""

    @property
    def key(self) -> CellKey:
        """Its place in the matrix."""
        return self.stage, self.role_name, self.device, self.provenance, self.variant

    @property
    def std_j_per_token(self) -> float | None:
        """Sample standard deviation, or None with fewer than two readings."""
        return math.sqrt(max(self.m2, 0.0) / (self.count - 1)) if self.count > 1 else None


CellKey = tuple[Stage, str, str, Provenance, str]
"""Stage, name of its model, device, provenance and variant."""


def mean_cost(cells: Sequence[EdiCell]) -> PathCost | None:
    """Average the variants of one model by their readings; None where a time is missing.

    Args:
        cells: of the variants, at least one.
    """
    times_s = [c.mean_time_s_per_token for c in cells if c.mean_time_s_per_token is not None]
    if len(times_s) < len(cells):
        return None
    count = sum(c.count for c in cells)
    time_s, energy_j = times_s[0], cells[0].mean_j_per_token
    if len(cells) > 1:
        time_s = sum(t * c.count for t, c in zip(times_s, cells, strict=True)) / count
        energy_j = sum(c.mean_j_per_token * c.count for c in cells) / count
    first = cells[0]
    return PathCost(first.stage, time_s, energy_j, count, first.provenance, first.role_name)


_CELL_KEYS = frozenset(field.name for field in fields(EdiCell))


def refuse_unknown(raw: Mapping[str, Any], known: frozenset[str]) -> None:
    """Refuse an object of the JSON text that holds what this program does not know.

    Args:
        raw: the object.
        known: what it may hold.

    Raises:
        DataError: when it holds something else.
    """
    # What a later version adds may change what the figures mean, so it is not passed over.
    unknown = sorted(set(raw) - known)
    if unknown:
        names = ", ".join(map(repr, unknown))
        raise DataError(f"EDI matrix: holds {names}, which this program does not know")


def cell_from(raw: Mapping[str, Any]) -> EdiCell:
    """Restore a cell from its object in the JSON text.

    Args:
        raw: the object.

    Raises:
        DataError: when it holds what this program does not know.
        KeyError, TypeError, ValueError: when it is not what this program writes.
    """
    refuse_unknown(raw, _CELL_KEYS)
    cell = EdiCell(
        stage=Stage(raw["stage"]),
        device=str(raw["device"]),
        provenance=Provenance(raw["provenance"]),
        value_j_per_token=float(raw["value_j_per_token"]),
        count=int(raw["count"]),
        mean_j_per_token=float(raw["mean_j_per_token"]),
        m2=float(raw["m2"]),
        # Matrices of earlier versions hold no times.
        mean_time_s_per_token=None if (t := raw.get("mean_time_s_per_token")) is None else float(t),
        role_name=str(raw.get("role_name", "")),
        variant=str(raw.get("variant", "")),
    )
    figures = (
        cell.value_j_per_token, cell.mean_j_per_token, cell.m2, cell.mean_time_s_per_token or 0.0,
    )  # fmt: skip
    if cell.count < 1 or not all(math.isfinite(x) and x >= 0 for x in figures):
        raise ValueError(f"a cell of {cell.stage} on {cell.device} holds impossible figures")
    return cell

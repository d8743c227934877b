"""The EDI matrix: joules per output token by stage and device (Definition 1, Eq. 4 and 5).

    EDI(stage, device) = mean power x time / output tokens                      (Eq. 4)
    E <- (1 - alpha) E + alpha E_new, alpha = 0.05, after a profiling phase     (Eq. 5)

During the profiling phase a cell is the running mean of its readings, so that the first reading
does not weigh for twenty iterations. A missing reading touches no cell. Readings of different
provenance go to different cells: a measured figure and a modelled one are never averaged. So do
readings of different models of one stage, and of different ways to run it (its variants, such as
the numeric format of a training step), for these have prices of their own.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from ecorl.errors import ConfigError, DataError
from ecorl.records import EdiReading, PathCost, Provenance, Stage, StageResult, weakest

_FORMAT = 2
"""Format 1 had neither models nor variants: its cells are read with both empty."""
_STRENGTH = list(Provenance)
_STAGES = list(Stage)


def edi(
    mean_power_w: float | None, time_s: float | None, n_output_tokens: int | None
) -> float | None:
    """EDI in J per output token, Eq. 4; None when a part is missing.

    A negative or non-finite power or time counts as missing, and so do no output tokens: a stage
    without output has no energy per token.

    Args:
        mean_power_w: mean power over the stage, W.
        time_s: time of the stage, s.
        n_output_tokens: completion tokens that the stage worked on.
    """
    if mean_power_w is None or time_s is None:
        return None
    return edi_from_energy(
        mean_power_w * time_s if min(mean_power_w, time_s) >= 0 else None, n_output_tokens
    )


def edi_from_energy(energy_j: float | None, n_output_tokens: int | None) -> float | None:
    """Compute EDI in J per output token from the energy itself; None when a part is missing.

    Args:
        energy_j: energy of the stage, J.
        n_output_tokens: completion tokens that the stage worked on.
    """
    if energy_j is None or n_output_tokens is None or n_output_tokens <= 0:
        return None
    if not math.isfinite(energy_j) or energy_j < 0:
        return None
    return energy_j / n_output_tokens


def edi_reading(result: StageResult) -> EdiReading:
    """Make the reading of one stage execution on one device.

    Its EDI is None when a part is missing. Its variant is the numeric format of a training step.

    Args:
        result: the execution, with its energy where that is known.
    """
    energy = result.energy
    energy_j = None if energy is None else energy.energy_j
    provenance = result.time_provenance
    return EdiReading(
        stage=result.stage,
        device=result.device,
        energy_j=energy_j,
        n_output_tokens=result.n_output_tokens,
        edi_j_per_token=edi_from_energy(energy_j, result.n_output_tokens),
        provenance=provenance if energy is None else weakest(energy.provenance, provenance),
        time_s=result.time_s,
        role_name=result.role_name,
        variant=result.gear or "",
    )


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


@dataclass(frozen=True, slots=True)
class Confidence:
    """How far a cell can be trusted.

    Attributes:
        count: readings behind the cell.
        std_j_per_token: their spread, or None with fewer than two.
        standard_error_j_per_token: spread over the root of the count, or None.
        profiled: whether the profiling phase of this cell is over.
    """

    count: int
    std_j_per_token: float | None
    standard_error_j_per_token: float | None
    profiled: bool


CellKey = tuple[Stage, str, str, Provenance, str]
"""Stage, name of its model, device, provenance and variant."""


class EdiMatrix:
    """Energy per output token by stage and device, with count and spread beside each figure.

    Args:
        alpha: weight of a new reading after the profiling phase, above 0 and at most 1 (Eq. 5).
        n_profiling: readings of a cell during which it is the running mean. 20 = 1 / alpha: there
            the running mean's weight 1/n meets Eq. 5's alpha. (The paper's 500 steps would never
            end in a short run.)

    Raises:
        ConfigError: when an argument is out of range.
    """

    def __init__(self, alpha: float = 0.05, n_profiling: int = 20) -> None:
        if not 0 < alpha <= 1:
            raise ConfigError("placement.edi_alpha", alpha, "above 0 and at most 1")
        if n_profiling < 0:
            raise ConfigError("placement.n_profiling", n_profiling, "0 or more")
        self.alpha = alpha
        self.n_profiling = n_profiling
        self._cells: dict[CellKey, EdiCell] = {}

    def update(self, reading: EdiReading) -> EdiCell | None:
        """Average a reading into its cell.

        Returns:
            The cell as it stands now, or None when the reading is missing (nothing changes).
        """
        new = reading.edi_j_per_token
        if new is None or not math.isfinite(new) or new < 0:
            return None
        key = (
            reading.stage, reading.role_name, reading.device, reading.provenance, reading.variant,
        )  # fmt: skip
        old = self._cells.get(key)
        time_s = None
        if reading.time_s is not None and math.isfinite(reading.time_s) and reading.time_s >= 0:
            time_s = reading.time_s / reading.n_output_tokens
        if old is None:
            cell = EdiCell(
                reading.stage, reading.device, reading.provenance, new, 1, new, 0.0, time_s,
                reading.role_name, reading.variant,
            )  # fmt: skip
        else:
            cell = self._blend(old, new, time_s)
        self._cells[key] = cell
        return cell

    def _blend(self, old: EdiCell, new: float, time_s: float | None) -> EdiCell:
        count = old.count + 1
        delta = new - old.mean_j_per_token
        mean = old.mean_j_per_token + delta / count
        if count <= self.n_profiling:
            value = mean
        else:
            value = (1.0 - self.alpha) * old.value_j_per_token + self.alpha * new
        m2 = old.m2 + delta * (new - mean)
        before_s = old.mean_time_s_per_token
        if before_s is not None and time_s is not None:
            time_s = before_s + (time_s - before_s) / count
        else:
            time_s = None
        return replace(
            old, value_j_per_token=value, count=count, mean_j_per_token=mean, m2=m2,
            mean_time_s_per_token=time_s,
        )  # fmt: skip

    def cell(
        self,
        stage: Stage,
        device: str,
        provenance: Provenance,
        *,
        role_name: str = "",
        variant: str = "",
    ) -> EdiCell | None:
        """Return one cell, or None while it has no reading.

        Args:
            stage: row of the matrix.
            device: column of the matrix, a profile name.
            provenance: of the readings.
            role_name: which of the stage's models; empty for its only one.
            variant: how it ran; empty for the framework's own way.
        """
        return self._cells.get((stage, role_name, device, provenance, variant))

    def best(
        self, stage: Stage, device: str, *, role_name: str = "", variant: str = ""
    ) -> EdiCell | None:
        """Return the cell of the strongest provenance (measured first); None without a reading.

        Args:
            stage: row of the matrix.
            device: column of the matrix, a profile name.
            role_name: which of the stage's models; empty for its only one.
            variant: how it ran; empty for the framework's own way.
        """
        for provenance in _STRENGTH:
            found = self.cell(stage, device, provenance, role_name=role_name, variant=variant)
            if found is not None:
                return found
        return None

    def cells(self) -> tuple[EdiCell, ...]:
        """All cells, ordered by stage, model, device, provenance and variant."""
        return tuple(sorted(self._cells.values(), key=_order))

    def path_costs(self, device: str) -> tuple[PathCost, ...]:
        """Return what each model of each stage has cost on a device, means over its executions.

        Of several provenances only the strongest counts; the variants of that one are averaged by
        their readings. A model is left out while a reading came without its time.

        Args:
            device: column of the matrix, a profile name.
        """
        by_role: dict[tuple[Stage, str], list[EdiCell]] = {}
        for cell in self.cells():
            if cell.device == device:
                cells = by_role.setdefault(cell.key[:2], [])
                # The cells of a model come with the strongest provenance first.
                if not cells or cells[0].provenance is cell.provenance:
                    cells.append(cell)
        found = (_mean_cost(cells) for cells in by_role.values())
        return tuple(cost for cost in found if cost is not None)

    def confidence(
        self,
        stage: Stage,
        device: str,
        provenance: Provenance,
        *,
        role_name: str = "",
        variant: str = "",
    ) -> Confidence:
        """Return count and spread of a cell; the count is 0 where there is no reading.

        Args:
            stage: row of the matrix.
            device: column of the matrix, a profile name.
            provenance: of the readings.
            role_name: which of the stage's models; empty for its only one.
            variant: how it ran; empty for the framework's own way.
        """
        found = self.cell(stage, device, provenance, role_name=role_name, variant=variant)
        if found is None:
            return Confidence(0, None, None, False)
        std = found.std_j_per_token
        error = None if std is None else std / math.sqrt(found.count)
        return Confidence(found.count, std, error, found.count >= self.n_profiling)

    def to_json(self) -> str:
        """The whole matrix as JSON; `from_json` reads it back equal."""
        data = {
            "format": _FORMAT,
            "alpha": self.alpha,
            "n_profiling": self.n_profiling,
            "cells": [asdict(cell) for cell in self.cells()],
        }
        return json.dumps(data, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> EdiMatrix:
        """Restore a matrix, also one that an earlier version wrote.

        Raises:
            DataError: when the text is not what `to_json` writes.
        """
        try:
            data = json.loads(text)
            if data["format"] not in range(1, _FORMAT + 1):
                raise DataError(
                    f"EDI matrix: format {data['format']!r}, this program reads 1 to {_FORMAT}"
                )
            _refuse_unknown(data, _KEYS)
            matrix = cls(float(data["alpha"]), int(data["n_profiling"]))
            for raw in data["cells"]:
                cell = _cell_from(raw)
                matrix._cells[cell.key] = cell
        except (json.JSONDecodeError, KeyError, TypeError, ValueError) as error:
            raise DataError(f"EDI matrix: not as written by this program ({error})") from error
        return matrix

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, EdiMatrix):
            return NotImplemented
        return vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]  # mutable


def _order(cell: EdiCell) -> tuple[int, str, str, int, str]:
    return (
        _STAGES.index(cell.stage), cell.role_name, cell.device, _STRENGTH.index(cell.provenance),
        cell.variant,
    )  # fmt: skip


def _mean_cost(cells: Sequence[EdiCell]) -> PathCost | None:
    """Average the variants of one model by their readings; None where a time is missing."""
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


_KEYS = frozenset({"format", "alpha", "n_profiling", "cells"})
_CELL_KEYS = frozenset(field.name for field in fields(EdiCell))


def _refuse_unknown(raw: Mapping[str, Any], known: frozenset[str]) -> None:
    # What a later version adds may change what the figures mean, so it is not passed over.
    unknown = sorted(set(raw) - known)
    if unknown:
        names = ", ".join(map(repr, unknown))
        raise DataError(f"EDI matrix: holds {names}, which this program does not know")


def _cell_from(raw: Mapping[str, Any]) -> EdiCell:
    _refuse_unknown(raw, _CELL_KEYS)
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

"""The EDI matrix: joules per output token by stage and device (Definition 1, Eq. 4 and 5).

    EDI(stage, device) = mean power x time / output tokens                      (Eq. 4)
    E <- (1 - alpha) E + alpha E_new, alpha = 0.05, after a profiling phase     (Eq. 5)

During the profiling phase a cell is the running mean of its readings, so that the first reading
does not weigh for twenty iterations. A missing reading touches no cell. Readings of different
provenance go to different cells: a measured figure and a modelled one are never averaged.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import Any

from ecorl.errors import ConfigError, DataError
from ecorl.records import EdiReading, Provenance, Stage

_FORMAT = 1
_STRENGTH = list(Provenance)


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


def edi_reading(
    stage: Stage,
    device: str,
    energy_j: float | None,
    n_output_tokens: int,
    provenance: Provenance,
    time_s: float | None = None,
) -> EdiReading:
    """Make the reading of one stage execution on one device.

    Its EDI is None when a part is missing.

    Args:
        stage: the stage.
        device: profile name.
        energy_j: its energy, J; None when unknown.
        n_output_tokens: completion tokens that it worked on.
        provenance: of the energy.
        time_s: its time, s; None when unknown.
    """
    value = edi_from_energy(energy_j, n_output_tokens)
    return EdiReading(stage, device, energy_j, n_output_tokens, value, provenance, time_s)


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
    """

    stage: Stage
    device: str
    provenance: Provenance
    value_j_per_token: float
    count: int
    mean_j_per_token: float
    m2: float
    mean_time_s_per_token: float | None = None

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


CellKey = tuple[Stage, str, Provenance]


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
        key = (reading.stage, reading.device, reading.provenance)
        old = self._cells.get(key)
        time_s = None
        if reading.time_s is not None and math.isfinite(reading.time_s) and reading.time_s >= 0:
            time_s = reading.time_s / reading.n_output_tokens
        if old is None:
            cell = EdiCell(*key, value_j_per_token=new, count=1, mean_j_per_token=new, m2=0.0,
                           mean_time_s_per_token=time_s)  # fmt: skip
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
        return EdiCell(old.stage, old.device, old.provenance, value, count, mean, m2, time_s)

    def cell(self, stage: Stage, device: str, provenance: Provenance) -> EdiCell | None:
        """Return one cell, or None while it has no reading.

        Args:
            stage: row of the matrix.
            device: column of the matrix, a profile name.
            provenance: of the readings.
        """
        return self._cells.get((stage, device, provenance))

    def best(self, stage: Stage, device: str) -> EdiCell | None:
        """Return the cell of the strongest provenance (measured first); None without a reading.

        Args:
            stage: row of the matrix.
            device: column of the matrix, a profile name.
        """
        for provenance in _STRENGTH:
            found = self._cells.get((stage, device, provenance))
            if found is not None:
                return found
        return None

    def cells(self) -> tuple[EdiCell, ...]:
        """All cells, ordered by stage, device and provenance."""
        stages = list(Stage)
        return tuple(
            sorted(
                self._cells.values(),
                key=lambda c: (stages.index(c.stage), c.device, _STRENGTH.index(c.provenance)),
            )
        )

    def confidence(self, stage: Stage, device: str, provenance: Provenance) -> Confidence:
        """Return count and spread of a cell; the count is 0 where there is no reading.

        Args:
            stage: row of the matrix.
            device: column of the matrix, a profile name.
            provenance: of the readings.
        """
        found = self.cell(stage, device, provenance)
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
        """Restore a matrix.

        Raises:
            DataError: when the text is not what `to_json` writes.
        """
        try:
            data = json.loads(text)
            if data["format"] != _FORMAT:
                raise DataError(f"EDI matrix: format {data['format']!r}, this program reads 1")
            matrix = cls(float(data["alpha"]), int(data["n_profiling"]))
            for raw in data["cells"]:
                cell = _cell_from(raw)
                matrix._cells[(cell.stage, cell.device, cell.provenance)] = cell
        except (json.JSONDecodeError, KeyError, TypeError, ValueError) as error:
            raise DataError(f"EDI matrix: not as written by this program ({error})") from error
        return matrix

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, EdiMatrix):
            return NotImplemented
        return (self.alpha, self.n_profiling, self._cells) == (
            other.alpha,
            other.n_profiling,
            other._cells,
        )

    __hash__ = None  # type: ignore[assignment]  # mutable


def _cell_from(raw: dict[str, Any]) -> EdiCell:
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
    )
    figures = (
        cell.value_j_per_token, cell.mean_j_per_token, cell.m2, cell.mean_time_s_per_token or 0.0,
    )  # fmt: skip
    if cell.count < 1 or not all(math.isfinite(x) and x >= 0 for x in figures):
        raise ValueError(f"a cell of {cell.stage} on {cell.device} holds impossible figures")
    return cell

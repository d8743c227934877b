"""Readings of the Energy Density Index, Eq. 4: joules per output token, and the matrix of them.

Cells of the matrix tell what one model of a stage has cost on one device, by stage, model, device,
provenance and variant.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from ecorl.edi.times import (
    AnyCell,
    CellKey,
    TimeCell,
    by_readings,
    first_time,
    moved,
    path_cost,
    restored,
    time_per_token,
    with_time,
)
from ecorl.errors import ConfigError, DataError
from ecorl.records import EdiReading, PathCost, Provenance, Stage, StageResult, weakest
from ecorl.statistics import recent_weight


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


def edi_reading(result: StageResult, batch: int | None = None) -> EdiReading:
    """Make the reading of one stage execution on one device.

    Its EDI is None when a part is missing. Its provenance is the weaker of energy and time, and
    that of the time where the energy is not known. Its variant is the numeric format of a training
    step.

    Args:
        result: the execution, with its energy where that is known.
        batch: 0-based number of its rollout batch; None where that is not known.
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
        provenance=provenance
        if energy is None or energy_j is None
        else weakest(energy.provenance, provenance),
        time_s=result.time_s,
        role_name=result.role_name,
        variant=result.gear or "",
        n_sequences=result.n_sequences,
        batch=batch,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EdiCell(TimeCell):
    """One cell of the matrix: a `TimeCell` whose readings came with their energy.

    The plain means are over all readings, the recent ones as in `TimeCell`.

    Attributes:
        value_j_per_token: the smoothed figure of Eq. 5, J per output token.
        mean_j_per_token: plain mean over all readings.
        m2: sum of squared deviations from the mean (Welford), from which the spread follows.
        recent_j_per_token: recent mean of energy over output tokens, J; None before a second
            reading.
    """

    value_j_per_token: float
    mean_j_per_token: float
    m2: float
    recent_j_per_token: float | None = None

    @property
    def std_j_per_token(self) -> float | None:
        """Sample standard deviation, or None with fewer than two readings."""
        return math.sqrt(max(self.m2, 0.0) / (self.count - 1)) if self.count > 1 else None


def cell_with(
    old: EdiCell | None, reading: EdiReading, new_j: float, alpha: float, n_profiling: int
) -> EdiCell:
    """Return a cell with one more reading.

    Args:
        old: the cell so far; None at its first reading.
        reading: the reading.
        new_j: its EDI, J per output token, finite and 0 or more.
        alpha: weight of a new reading after the profiling phase (Eq. 5).
        n_profiling: readings during which the cell is the running mean.
    """
    time_s = time_per_token(reading)
    if old is None:
        return EdiCell(
            **first_time(reading, time_s), value_j_per_token=new_j, mean_j_per_token=new_j, m2=0.0
        )
    later = with_time(old, reading, time_s)
    delta = new_j - old.mean_j_per_token
    mean = old.mean_j_per_token + delta / later.count
    smoothed = (1.0 - alpha) * old.value_j_per_token + alpha * new_j
    recent_j = old.recent_j_per_token
    if time_s is not None:
        # Energies and times behind the recent figures are of the same readings.
        recent_j = moved(recent_j, new_j, recent_weight(float(later.n_recent)))
    return replace(
        later,
        value_j_per_token=mean if later.count <= n_profiling else smoothed,
        mean_j_per_token=mean,
        m2=old.m2 + delta * (new_j - mean),
        recent_j_per_token=recent_j,
    )


def mean_cost(
    cells: Sequence[EdiCell], batch: int | None = None, *, on_card: bool = False
) -> PathCost | None:
    """Average the variants of one model by their readings; None where a time is missing.

    Args:
        cells: of the variants, at least one.
        batch: 0-based number of the rollout batch at hand; None: ages are not known.
        on_card: whether the device is the card.
    """
    if len(cells) == 1:
        (cell,) = cells
        energy_j, recent_j = cell.mean_j_per_token, cell.recent_j_per_token
    else:
        energy_j = sum(c.mean_j_per_token * c.count for c in cells) / sum(c.count for c in cells)
        recent_j = by_readings([(c.recent_j_per_token, c.n_recent) for c in cells if c.n_recent])
    return path_cost(cells, energy_j, recent_j, batch, on_card=on_card)


_FORMAT = 3
_STRENGTH = list(Provenance)
_STAGES = list(Stage)

_Models = dict[str, dict[tuple[Stage, str], list[AnyCell]]]
"""Cells by their device, then by stage and model."""


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
        self._times: dict[CellKey, TimeCell] = {}
        # By device the cells that tell the cost of each model, kept as cells come and change.
        self._models: _Models[EdiCell] = {}
        self._timed: _Models[TimeCell] = {}

    def update(self, reading: EdiReading) -> EdiCell | None:
        """Average a reading into its cell; without an energy, its time into those beside them.

        Returns:
            The cell as it stands now, or None when the reading's energy is missing (no cell
            changes).
        """
        key = (
            reading.stage, reading.role_name, reading.device, reading.provenance, reading.variant,
        )  # fmt: skip
        new = reading.edi_j_per_token
        if new is None or not math.isfinite(new) or new < 0:
            self._learn_time(key, reading)
            return None
        cell = cell_with(self._cells.get(key), reading, new, self.alpha, self.n_profiling)
        self._cells[key] = cell
        self._models = _models(self.cells())
        return cell

    def _learn_time(self, key: CellKey, reading: EdiReading) -> None:
        time_s = time_per_token(reading)
        if time_s is not None:
            old = self._times.get(key)
            self._times[key] = (
                with_time(old, reading, time_s) if old else TimeCell(**first_time(reading, time_s))
            )
            self._timed = _models(self.times())

    def cells(self) -> tuple[EdiCell, ...]:
        """All cells, ordered by stage, model, device, provenance and variant."""
        return tuple(sorted(self._cells.values(), key=_order))

    def times(self) -> tuple[TimeCell, ...]:
        """Times of all readings that came without energy, in the order of `cells`."""
        return tuple(sorted(self._times.values(), key=_order))

    def path_costs(
        self, device: str, batch: int | None = None, *, on_card: bool = False
    ) -> tuple[PathCost, ...]:
        """Return what each model of each stage has cost on a device, means over its executions.

        Of several provenances only the strongest counts; the variants of that one are averaged by
        their readings. What readings without energy took counts where there is no cell whose
        readings all had a time, or where only they have recent figures; the energy is then not
        known.

        Args:
            device: column of the matrix, a profile name.
            batch: 0-based number of the rollout batch at hand, from which ages follow; None: they
                are not known.
            on_card: whether the device is the card.
        """
        found: dict[tuple[Stage, str], PathCost] = {}
        # An iteration waits for this, so which cells belong together is found as readings come.
        for role, cells in self._models.get(device, {}).items():
            cost = mean_cost(cells, batch, on_card=on_card)
            if cost is not None:
                found[role] = cost
        for role, times in self._timed.get(device, {}).items():
            with_energy, alone = found.get(role), path_cost(times, batch=batch, on_card=on_card)
            if alone is None or (with_energy and (with_energy.n_recent or not alone.n_recent)):
                continue
            found[role] = alone
        return tuple(found.values())

    def to_json(self) -> str:
        """The whole matrix as JSON; `from_json` reads it back equal."""
        data = {
            "format": _FORMAT,
            "alpha": self.alpha,
            "n_profiling": self.n_profiling,
            "cells": [asdict(cell) for cell in self.cells()],
            "times": [asdict(cell) for cell in self.times()],
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
                raise DataError(
                    f"EDI matrix: format {data['format']!r}, this ecorl reads {_FORMAT}"
                )
            matrix = cls(float(data["alpha"]), int(data["n_profiling"]))
            for raw in data["cells"]:
                cell = restored(EdiCell, raw)
                matrix._cells[cell.key] = cell
            for raw in data["times"]:
                times = restored(TimeCell, raw)
                if times.mean_time_s_per_token is None:
                    raise ValueError(f"no time of {times.stage} on {times.device}")
                matrix._times[times.key] = times
            matrix._models, matrix._timed = _models(matrix.cells()), _models(matrix.times())
        except (json.JSONDecodeError, KeyError, TypeError, ValueError) as error:
            raise DataError(f"EDI matrix: not as written by this program ({error})") from error
        return matrix

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, EdiMatrix):
            return NotImplemented
        return vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]  # mutable


def _models(cells: Sequence[AnyCell]) -> _Models[AnyCell]:
    """Return by device which cells tell the cost of each model of each stage, in their order.

    Those are the variants of its strongest provenance.

    Args:
        cells: all, ordered.
    """
    found: _Models[AnyCell] = {}
    for cell in cells:
        own = found.setdefault(cell.device, {}).setdefault(cell.key[:2], [])
        # The cells of a model come with the strongest provenance first.
        if not own or own[0].provenance is cell.provenance:
            own.append(cell)
    return found


def _order(cell: TimeCell) -> tuple[int, str, str, int, str]:
    return (
        _STAGES.index(cell.stage), cell.role_name, cell.device, _STRENGTH.index(cell.provenance),
        cell.variant,
    )  # fmt: skip

"""Cells of the EDI matrix: what one model of a stage has cost on one device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ecorl.edi.times import (
    TimeCell,
    by_readings,
    first_time,
    moved,
    path_cost,
    time_per_token,
    with_time,
)
from ecorl.records import EdiReading, PathCost
from ecorl.statistics import recent_weight


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

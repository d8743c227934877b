"""Power P(n, p) and throughput tau(n, p) of the training stage by width and gear."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ecorl.control import Gear
from ecorl.errors import ConfigError
from ecorl.kinds import Provenance

FloatArray = NDArray[np.float64]


class TrainingAction(NamedTuple):
    """What the training stage does in an epoch.

    Attributes:
        width: number of workers; 0 is a pause.
        gear: numeric format; None in a pause.
    """

    width: int
    gear: Gear | None

    @property
    def is_pause(self) -> bool:
        """Whether nothing is trained."""
        return self.width == 0

    @property
    def is_low(self) -> bool:
        """Whether its tokens count as such in low precision."""
        return self.gear is not None and self.gear.is_low


PAUSE = TrainingAction(0, None)


@dataclass(frozen=True, eq=False)
class GearTable:
    """Power and throughput of the workers that train, by gear and width.

    Attributes:
        gears: the rows.
        widths: the columns: numbers of workers, rising, from 1 on.
        power_w: ``[G, W] float64``, drawn by the workers that train, W.
        tokens_per_s: ``[G, W] float64``.
        provenance: measured, modelled, published, ...
        source: where the figures come from, in one line.
        power_spread_w: ``[G, W] float64``, standard deviation of the power, W; None: unknown.
        tokens_spread_per_s: the same of the throughput, tokens/s; None: unknown.
        key: where the table stands in the user's config, for error messages.

    Raises:
        ConfigError: when a figure is not positive and finite, the widths do not rise, or power or
            throughput falls where the width rises.
    """

    gears: tuple[Gear, ...]
    widths: tuple[int, ...]
    power_w: FloatArray
    tokens_per_s: FloatArray
    provenance: Provenance
    source: str
    power_spread_w: FloatArray | None = None
    tokens_spread_per_s: FloatArray | None = None
    key: str = "carbon.control.table"

    def __post_init__(self) -> None:
        shape = (len(self.gears), len(self.widths))
        if 0 in shape or len(set(self.gears)) < len(self.gears):
            gears = [str(gear) for gear in self.gears]
            raise ConfigError(f"{self.key}.gears", gears, "each gear once, and at least one")
        if self.widths[0] < 1 or any(np.diff(self.widths) <= 0):
            allowed = "rising numbers of workers from 1 on"
            raise ConfigError(f"{self.key}.widths", list(self.widths), allowed)
        for name, values in (("power_w", self.power_w), ("tokens_per_s", self.tokens_per_s)):
            self._check(name, np.asarray(values), shape)

    def _check(self, name: str, values: FloatArray, shape: tuple[int, int]) -> None:
        if values.shape != shape:
            allowed = f"one figure for each of {shape[0]} gears and {shape[1]} widths"
            raise ConfigError(f"{self.key}.{name}", list(values.shape), allowed)
        for gear, row in zip(self.gears, values, strict=True):
            key = f"{self.key}.{name}.{gear}"
            is_bad = ~(np.isfinite(row) & (row > 0))
            if is_bad.any():
                raise ConfigError(key, float(row[is_bad][0]), "figures above 0")
            falls = np.flatnonzero(np.diff(row) < 0)
            if falls.size:
                at = int(falls[0])
                allowed = (
                    f"figures that do not fall with the width: {row[at]:g} at {self.widths[at]} "
                    f"workers, {row[at + 1]:g} at {self.widths[at + 1]}"
                )
                raise ConfigError(key, float(row[at + 1]), allowed)

    def actions(self) -> list[TrainingAction]:
        """All actions but the pause, gear by gear."""
        return [TrainingAction(width, gear) for gear in self.gears for width in self.widths]

    def power(self, action: TrainingAction) -> float:
        """Power of the workers that train, W; 0 in a pause.

        Args:
            action: one of `actions`, or `PAUSE`.
        """
        return 0.0 if action.is_pause else float(self.power_w[self._places[action]])

    def rate(self, action: TrainingAction) -> float:
        """Throughput, tokens/s; 0 in a pause.

        Args:
            action: one of `actions`, or `PAUSE`.
        """
        return 0.0 if action.is_pause else float(self.tokens_per_s[self._places[action]])

    @cached_property
    def _places(self) -> dict[TrainingAction, tuple[int, int]]:
        """Row and column of each action."""
        return {
            TrainingAction(width, gear): (row, column)
            for row, gear in enumerate(self.gears)
            for column, width in enumerate(self.widths)
        }

    def only(
        self, gears: tuple[Gear, ...] | None = None, widths: tuple[int, ...] | None = None
    ) -> GearTable:
        """The part of the table with some gears and widths.

        Args:
            gears: which are kept; None: all.
            widths: which are kept; None: all.

        Raises:
            ConfigError: when none is left.
        """
        rows = [g for g, gear in enumerate(self.gears) if gears is None or gear in gears]
        columns = [w for w, width in enumerate(self.widths) if widths is None or width in widths]
        place = np.ix_(rows, columns)
        spread, tokens = self.power_spread_w, self.tokens_spread_per_s
        return GearTable(
            gears=tuple(self.gears[row] for row in rows),
            widths=tuple(self.widths[column] for column in columns),
            power_w=self.power_w[place],
            tokens_per_s=self.tokens_per_s[place],
            provenance=self.provenance,
            source=self.source,
            power_spread_w=None if spread is None else spread[place],
            tokens_spread_per_s=None if tokens is None else tokens[place],
            key=self.key,
        )


def scaled_table(
    widths: tuple[int, ...],
    rates: Mapping[Gear, float],
    worker_w: Mapping[Gear, float],
    *,
    exponent: float,
    overhead: float,
    provenance: Provenance,
    source: str,
) -> GearTable:
    """A table in which throughput grows as a power of the width, and power in proportion to it.

    ``tokens_per_s = rate * n ** exponent`` and ``power_w = overhead * n * worker_w``.

    Args:
        widths: numbers of workers, rising.
        rates: throughput of one worker by gear, tokens/s.
        worker_w: power of one worker by gear, W.
        exponent: of the scaling, at most 1.
        overhead: what a node draws beside its accelerators, as a factor.
        provenance: of the figures.
        source: where they come from, in one line.
    """
    gears = tuple(rates)
    n = np.array(widths, dtype=np.float64)
    return GearTable(
        gears=gears,
        widths=widths,
        power_w=np.array([overhead * n * worker_w[gear] for gear in gears]),
        tokens_per_s=np.array([rates[gear] * n**exponent for gear in gears]),
        provenance=provenance,
        source=source,
    )

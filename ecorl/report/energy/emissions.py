"""Emissions of energy, by both kinds of intensity, as amounts that add up."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from ecorl.carbon.timeline import Emitted


class IntensityKind(StrEnum):
    """The two kinds of intensity; no figure is made of both."""

    AVERAGE = "average"  # of all that is generated: for inventories
    MARGINAL = "marginal"  # of the plants that follow one more kilowatt-hour: for decisions


@dataclass(frozen=True, slots=True)
class Emissions:
    """What some energy emitted.

    Attributes:
        average: by the average intensity; None where there is no energy figure.
        marginal: by the marginal intensity; None as well where the run recorded none.
    """

    average: Emitted | None = None
    marginal: Emitted | None = None

    def of(self, kind: IntensityKind) -> Emitted | None:
        """Those by one kind of intensity."""
        return self.average if kind is IntensityKind.AVERAGE else self.marginal


NO_EMISSIONS = Emissions()
"""Of what has no energy figure."""


@dataclass(frozen=True, slots=True)
class Draw:
    """Some energy, J, and what it emitted."""

    energy_j: float
    emissions: Emissions


def total_emitted(parts: Iterable[Emitted | None]) -> Emitted | None:
    """Add up emissions by one kind of intensity; None when there are none to add."""
    found = [part for part in parts if part is not None]
    if not found:
        return None
    grams = [part.carbon_g for part in found if part.carbon_g is not None]
    return Emitted(
        sum(grams) if grams else None,
        *(sum(part[i] for part in map(_energies, found)) for i in range(5)),
    )


def total_emissions(parts: Iterable[Emissions]) -> Emissions:
    """Add up emissions, each kind by itself."""
    found = list(parts)
    return Emissions(
        total_emitted(part.average for part in found),
        total_emitted(part.marginal for part in found),
    )


def scaled(emissions: Emissions, factor: float) -> Emissions:
    """The emissions of a part of the energy.

    Args:
        emissions: of all of it.
        factor: the part, 0 to 1.
    """

    def one(e: Emitted) -> Emitted:
        grams = None if e.carbon_g is None else e.carbon_g * factor
        return Emitted(grams, *(energy_j * factor for energy_j in _energies(e)))

    kinds = (emissions.average, emissions.marginal)
    return Emissions(*(None if e is None else one(e) for e in kinds))


def left_over(whole: Draw, taken: Iterable[Draw], energy_j: float) -> Emissions:
    """The emissions of what is left of some energy once parts of it are taken away.

    Args:
        whole: all of it.
        taken: the parts, of energies by other instruments or over other times.
        energy_j: what is left, J.

    Returns:
        By each kind the difference; where that is below nought, as where the parts overlap, the
        emissions are unknown, for all of the energy that is left.
    """
    parts = list(taken)

    def one(kind: IntensityKind) -> Emitted | None:
        all_of_it = whole.emissions.of(kind)
        if all_of_it is None:
            return None
        gone = total_emitted(part.emissions.of(kind) for part in parts)
        return _difference(all_of_it, gone, energy_j)

    return Emissions(one(IntensityKind.AVERAGE), one(IntensityKind.MARGINAL))


_ROUNDING = 1e-9
"""Share of the whole by which a difference may be below nought through rounding alone."""


def _difference(whole: Emitted, gone: Emitted | None, energy_j: float) -> Emitted:
    """What is left of emissions; its energies add up to the energy that is left."""
    if gone is None:
        return whole
    grams = (whole.carbon_g or 0.0) - (gone.carbon_g or 0.0)
    # Instruments differ a little, so that more may be taken from a time than was drawn in it: what
    # is left is then taken to be of the other time.
    known_j = min(max(0.0, whole.known_j - gone.known_j), energy_j)
    if energy_j - known_j <= _ROUNDING * (whole.known_j + whole.unknown_j):
        known_j = energy_j
    is_below = grams < -_ROUNDING * (whole.carbon_g or 0.0)
    if whole.carbon_g is None or is_below or (known_j == 0 < energy_j):
        return Emitted(None, 0.0, energy_j)
    others = zip(_energies(whole)[2:], _energies(gone)[2:], strict=True)
    return Emitted(
        max(0.0, grams), known_j, energy_j - known_j, *(max(0.0, a - b) for a, b in others)
    )


def _energies(e: Emitted) -> tuple[float, float, float, float, float]:
    return e.known_j, e.unknown_j, e.facility_j, e.mixed_j, e.renewable_j

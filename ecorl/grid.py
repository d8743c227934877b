"""Records of the electricity grid: what a kilowatt-hour of it emits, who says so, and for when.

Times are seconds since 1970 (UTC), as the grid operators' own are; the rest of the records has
monotonic ones. Average and marginal intensities are types of their own: an average is for
inventories, a marginal one for what a decision changes, and no figure is made of both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from ecorl.kinds import Provenance


class Fuel(StrEnum):
    """What a grid's electricity is made from."""

    WIND = "wind"
    SOLAR = "solar"
    HYDRO = "hydro"
    BIOMASS = "biomass"
    GEOTHERMAL = "geothermal"
    NUCLEAR = "nuclear"
    GAS = "gas"
    OIL = "oil"
    COAL = "coal"
    IMPORTS = "imports"  # over the grid's borders, of which nobody says what they are made from
    STORAGE = "storage"  # out of pumped water or batteries
    OTHER = "other"


RENEWABLE = frozenset({Fuel.WIND, Fuel.SOLAR, Fuel.HYDRO, Fuel.BIOMASS, Fuel.GEOTHERMAL})
"""The renewable fuels. Imports, storage and what is unknown do not count as such."""


class Basis(StrEnum):
    """Whose electricity an intensity is about (GHG Protocol, Scope 2)."""

    LOCATION = "location"  # the mix of the grid at the place
    MARKET = "market"  # what contracts say that was bought


class Scope(StrEnum):
    """Which emissions of a power station an intensity counts."""

    LIFE_CYCLE = "life_cycle"  # with building it and its fuel's way to it
    DIRECT = "direct"  # of the chimney alone


class Gas(StrEnum):
    """What the grams are of."""

    CO2E = "gCO2e/kWh"  # all greenhouse gases, by their warming in 100 years
    CO2 = "gCO2/kWh"  # carbon dioxide alone


def provider_provenance(is_estimated: bool | None) -> Provenance:
    """Provenance of an intensity that a provider gives: its estimates are not published figures.

    Args:
        is_estimated: whether the provider estimated it; None where it does not say.
    """
    return Provenance.MODELLED if is_estimated else Provenance.PUBLISHED


def provenance_label(provenance: Provenance, is_estimated: bool | None) -> str:
    """Words for the provenance of an intensity, which name a provider's estimates.

    Args:
        provenance: of the intensity.
        is_estimated: whether the provider estimated it; None where it does not say.
    """
    if not is_estimated:
        return str(provenance)
    is_replayed = provenance is Provenance.REPLAYED
    return f"{provenance}, estimated" if is_replayed else "estimated by its provider"


@dataclass(frozen=True, slots=True)
class Intensity:
    """What a kilowatt-hour emits in one interval; only its two kinds are made.

    Attributes:
        feed: name of the feed that gave it.
        start_s: begin of the interval for which it holds, s since 1970.
        interval_s: length of the interval, s.
        g_per_kwh: the value, in the unit of `gas`.
        gas: what the grams are of.
        basis: location- or market-based.
        scope: life-cycle or direct emissions.
        factors: the set of emission factors behind it, e.g. ``IPCC AR5 medians``.
        is_estimated: whether the provider estimated it; None where it does not say.
        fetched_s: when it was asked for, s since 1970.
        provenance: published for a provider's or a stated figure, replayed, or modelled, as
            estimates of a provider are.
        mix: share of each fuel, 0 to 1, together about 1; None where the feed has none.
    """

    feed: str
    start_s: float
    interval_s: float
    g_per_kwh: float
    gas: Gas
    basis: Basis
    scope: Scope
    factors: str
    is_estimated: bool | None
    fetched_s: float
    provenance: Provenance
    mix: Mapping[Fuel, float] | None = None

    @property
    def end_s(self) -> float:
        """End of the interval, s since 1970."""
        return self.start_s + self.interval_s

    @property
    def is_provided(self) -> bool:
        """Whether a provider gave it for its time: no model or recording of ecorl's."""
        is_estimate = self.provenance is Provenance.MODELLED and bool(self.is_estimated)
        return is_estimate or self.provenance is Provenance.PUBLISHED

    @property
    def renewable_share(self) -> float | None:
        """Share of renewable fuels in the mix, 0 to 1, or None without one."""
        if self.mix is None:
            return None
        return sum(share for fuel, share in self.mix.items() if fuel in RENEWABLE)


@dataclass(frozen=True, slots=True)
class AverageIntensity(Intensity):
    """Emissions of all that is generated, over all of it: for inventories."""


@dataclass(frozen=True, slots=True)
class MarginalIntensity(Intensity):
    """Emissions of the plants that would follow one more kilowatt-hour: for decisions."""

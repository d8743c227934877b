"""What a saving is worth over a year, and when what was bought for it has paid itself back."""

from __future__ import annotations

from dataclasses import dataclass

from ecorl.errors import ConfigError
from ecorl.operate.levers.choice import MOST_SLOWDOWN
from ecorl.units import JOULES_PER_KWH

HOURS_PER_YEAR = 8760.0


@dataclass(frozen=True, slots=True)
class PlanTerms:
    """What the user says of money, carbon and use; None where it is not known.

    Attributes:
        card_price: of one device, in any currency.
        kwh_price: of a kilowatt-hour, in the same.
        g_per_kwh: carbon intensity of the electricity, gCO2e/kWh.
        card_embodied_kg: emissions of making one device, kgCO2e.
        use: share of the year in which the job runs, above 0 and at most 1.
        years: how long a device serves.
        slowdown: share by which a step may take longer for a lever.
        slack: time that there is for the whole job over the time that it takes without a pause.
    """

    card_price: float | None = None
    kwh_price: float | None = None
    g_per_kwh: float | None = None
    card_embodied_kg: float | None = None
    use: float = 0.8
    years: float = 5.0
    slowdown: float = MOST_SLOWDOWN
    slack: float = 1.5

    def __post_init__(self) -> None:
        for key in ("card_price", "kwh_price", "g_per_kwh", "card_embodied_kg"):
            value = getattr(self, key)
            if value is not None and not 0.0 <= value < float("inf"):
                raise ConfigError(f"plan.{key}", value, "0 or more")
        for key, low, high, told in (
            ("use", 0.0, 1.0, "above 0 and at most 1"),
            ("years", 0.0, 100.0, "above 0 and at most 100"),
        ):
            if not low < getattr(self, key) <= high:
                raise ConfigError(f"plan.{key}", getattr(self, key), told)
        if not 0.0 <= self.slowdown <= 10.0:
            raise ConfigError("plan.slowdown", self.slowdown, "0 to 10")
        if not 1.0 <= self.slack <= 1000.0:
            raise ConfigError("plan.slack", self.slack, "1 to 1000")


@dataclass(frozen=True, slots=True)
class Payback:
    """What a saving comes to in a year, and what it has cost.

    Attributes:
        kwh_per_year: energy that is saved; below 0 where it is lost.
        money_per_year: what that is worth; None without a price.
        kg_per_year: CO2e that is not emitted; None without an intensity.
        money_years: after how many years the purchase has paid itself back; None where it never
            does, or a price is missing.
        carbon_years: after how many years it has saved what making it emitted; None likewise.
        embodied_share: emissions of making it over those of its service that it saves; None
            likewise.
        missing: names of what the user has not told.
    """

    kwh_per_year: float
    money_per_year: float | None
    kg_per_year: float | None
    money_years: float | None
    carbon_years: float | None
    embodied_share: float | None
    missing: tuple[str, ...]


def payback(saved_share: float, power_w: float, n_devices: int, terms: PlanTerms) -> Payback:
    """Compute when a saving has paid back what was bought for it.

    Args:
        saved_share: of the energy; below 0 where it costs.
        power_w: mean power of the job as it is, W.
        n_devices: how many devices were bought; 0 for what costs nothing.
        terms: prices, intensity and use.
    """
    kwh = saved_share * power_w * terms.use * HOURS_PER_YEAR * 3600.0 / JOULES_PER_KWH
    money = None if terms.kwh_price is None else kwh * terms.kwh_price
    kg = None if terms.g_per_kwh is None else kwh * terms.g_per_kwh / 1000.0
    price = None if terms.card_price is None else n_devices * terms.card_price
    made_kg = None if terms.card_embodied_kg is None else n_devices * terms.card_embodied_kg
    needed = ("kwh_price", "g_per_kwh", *(("card_price", "card_embodied_kg") if n_devices else ()))
    carbon_years = _years(made_kg, kg) if n_devices else None
    return Payback(
        kwh_per_year=kwh,
        money_per_year=money,
        kg_per_year=kg,
        money_years=_years(price, money) if n_devices else None,
        carbon_years=carbon_years,
        embodied_share=None if carbon_years is None else carbon_years / terms.years,
        missing=tuple(key for key in needed if getattr(terms, key) is None),
    )


def _years(spent: float | None, per_year: float | None) -> float | None:
    if spent is None or per_year is None or per_year <= 0.0:
        return None
    return spent / per_year

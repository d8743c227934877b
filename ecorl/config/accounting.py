"""``[accounting]``: the factors of the carbon figure."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, StrictFloat, model_validator

from ecorl.config.base import Model, SomePath, Text
from ecorl.config.mistakes import NOT_GIVEN, RefusedValue

_PUE = 1.2
_INTENSITY_G_PER_KWH = 450.0
_DEFAULT_SOURCE = "450 g/kWh: world average as used by the EcoRL-Sched paper; PUE 1.2: assumed"


class AccountingConfig(Model):
    """Factors of the carbon figure, and where they come from.

    Without a word in the config the defaults hold; the report names them and their source. That
    source speaks for the defaults alone: whoever changes a factor states its source, or the report
    says that none was stated.
    """

    pue: StrictFloat = Field(_PUE, ge=1.0, le=3.0, description="power usage effectiveness")
    intensity_g_per_kwh: StrictFloat = Field(
        _INTENSITY_G_PER_KWH, ge=0, le=3000, description="grid carbon intensity, gCO2e/kWh"
    )
    source: Text | None = Field(None, description="where the two factors come from")
    pue_csv: SomePath | None = Field(
        None, description="CSV of time and PUE, which then counts in the place of pue"
    )
    budget_g: StrictFloat | None = Field(
        None, gt=0, description="emissions of the whole run, gCO2e, at whose 80 % it warns"
    )
    over_budget: Literal["warn", "stop"] = Field(
        "warn", description="at the budget only warn, or have the trainer save and stop"
    )
    beside: Literal["codecarbon"] | None = Field(
        None, description="another instrument that runs beside, for comparison"
    )
    country: str | None = Field(
        None,
        pattern="^[A-Z]{3}$",
        description="country code of three letters, by whose mix that instrument computes",
    )
    embodied_kg: StrictFloat | None = Field(
        None, gt=0, description="emissions of making the reserved hardware, kgCO2e"
    )
    lifetime_h: StrictFloat = Field(
        43_800.0, gt=0, description="hours for which that hardware serves"
    )
    embodied_source: Text | None = Field(
        None, description="where the figure of making the hardware comes from"
    )

    @model_validator(mode="after")
    def _country_is_given(self) -> AccountingConfig:
        if self.beside is not None and self.country is None:
            allowed = "a country code of three letters such as 'GBR', for accounting.beside"
            raise RefusedValue("country", NOT_GIVEN, allowed)
        return self

    @property
    def origin(self) -> str:
        """Where the two factors come from, for the report."""
        if (self.pue, self.intensity_g_per_kwh) == (_PUE, _INTENSITY_G_PER_KWH):
            return self.source or _DEFAULT_SOURCE
        # Configs of earlier versions hold the default's source beside any factors.
        stated = None if self.source == _DEFAULT_SOURCE else self.source
        return stated or "given in the config, no source stated"

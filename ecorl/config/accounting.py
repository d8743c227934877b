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
    """By which factors energy is turned into emissions, and where they come from.

    Without a word in the config the defaults hold; the report names them and their source. That
    source speaks for the defaults alone: whoever changes a factor states its source, or the report
    says that none was stated.
    """

    pue: StrictFloat = Field(
        _PUE,
        ge=1.0,
        le=3.0,
        description="power usage effectiveness: factor from the energy of the machines to that of "
        "the whole data centre",
    )
    intensity_g_per_kwh: StrictFloat = Field(
        _INTENSITY_G_PER_KWH,
        ge=0,
        le=3000,
        description="carbon intensity of the grid where no feed tells it",
    )
    source: Text | None = Field(
        None, description="where pue and intensity_g_per_kwh come from, for the report"
    )
    pue_csv: SomePath | None = Field(None, description="CSV of time and PUE, used in place of pue")
    budget_g: StrictFloat | None = Field(
        None,
        gt=0,
        description="budget of emissions of the whole run; a warning comes at 80 % of it",
    )
    over_budget: Literal["warn", "stop"] = Field(
        "warn", description="at the budget: warn only, or have the trainer save and stop"
    )
    beside: Literal["codecarbon"] | None = Field(
        None, description="another instrument that measures the run beside ecorl, for comparison"
    )
    country: str | None = Field(
        None,
        pattern="^[A-Z]{3}$",
        description="country by whose electricity that instrument computes, a code of three "
        "letters such as GBR; required with beside",
    )
    embodied_kg: StrictFloat | None = Field(
        None, gt=0, description="emissions of making the hardware that is kept for the run"
    )
    lifetime_h: StrictFloat = Field(
        43_800.0,
        gt=0,
        description="time for which that hardware serves, over which embodied_kg is spread",
    )
    embodied_source: Text | None = Field(
        None, description="where embodied_kg comes from, for the report"
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
        is_default = (self.pue, self.intensity_g_per_kwh) == (_PUE, _INTENSITY_G_PER_KWH)
        return self.source or (
            _DEFAULT_SOURCE if is_default else "given in the config, no source stated"
        )

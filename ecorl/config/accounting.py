"""``[accounting]``: the factors of the carbon figure."""

from __future__ import annotations

from pydantic import Field, StrictFloat

from ecorl.config.base import Model, Text

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

    @property
    def origin(self) -> str:
        """Where the two factors come from, for the report."""
        if (self.pue, self.intensity_g_per_kwh) == (_PUE, _INTENSITY_G_PER_KWH):
            return self.source or _DEFAULT_SOURCE
        # Configs of earlier versions hold the default's source beside any factors.
        stated = None if self.source == _DEFAULT_SOURCE else self.source
        return stated or "given in the config, no source stated"

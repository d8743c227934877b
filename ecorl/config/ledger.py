"""``[ledger]``: how much of the raw record is kept."""

from __future__ import annotations

from pydantic import Field, StrictInt

from ecorl.config.base import MANY, Model


class LedgerConfig(Model):
    """Limits of the raw record that is kept."""

    raw_samples: StrictInt = Field(20_000, ge=0, le=MANY, description="ring of raw samples")

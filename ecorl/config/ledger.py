"""``[ledger]``: how much of the raw record is kept."""

from __future__ import annotations

from pydantic import Field, StrictInt

from ecorl.config.base import MANY, Model


class LedgerConfig(Model):
    """How much of the record of the run is kept."""

    raw_samples: StrictInt = Field(
        20_000,
        ge=0,
        le=MANY,
        description="number of raw power readings that are kept on each machine; older ones are "
        "dropped, sums and stages are not",
    )

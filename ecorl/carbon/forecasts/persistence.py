"""Persistence: what was last goes on."""

from __future__ import annotations

from ecorl.carbon.forecasts.rules import Cycle, Rule
from ecorl.carbon.forecasts.single import Bounds, RuleForecaster


class Persistence(RuleForecaster):
    """The newest value goes on, or the last 24 hours are repeated.

    Args:
        daily: whether the last 24 hours are repeated.
        bounds: what the signal cannot be below and above, in its unit; None where nothing is known.
    """

    def __init__(self, daily: bool = False, bounds: Bounds | None = None) -> None:
        name = "daily persistence" if daily else "persistence"
        super().__init__(name, Rule(Cycle.DAY, 1) if daily else Rule(Cycle.NEWEST), bounds)

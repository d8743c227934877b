"""``[carbon.control]``: who decides about the training stage, and within which limits."""

from __future__ import annotations

from typing import Literal

from pydantic import AwareDatetime, Field, StrictFloat, StrictInt, model_validator

from ecorl.config.base import Model, PresetPath, SomePath
from ecorl.config.mistakes import RefusedValue

ControllerName = Literal[
    "stochastic",
    "receding",
    "width-fixed",
    "gear-fixed",
    "carbonscaler",
    "carbonscaler-fp8",
    "dual",
    "dual-printed",
    "soft-q",
    "soft-q-printed",
    "carl",
    "suspend",
    "spot",
    "race",
    "fcfs",
    "static",
]
"""Names of the controllers that keep a hard deadline."""


class ControlConfig(Model):
    """Who decides when the training stage runs, how wide and in which gear.

    With a controller there is a hard deadline: the run pauses in dirty hours for as long as the
    steps that are left can still be made in time, and then goes on whatever the grid does. Gears of
    ``[gears]`` and widths of ``trainer.widths`` are chosen too, by ``table`` or by the run's own
    steps. Other keys are for plans and simulations alone (``ecorl carbon plan``, ``simulate``).
    """

    controller: ControllerName | None = Field(
        None,
        description="who decides; stochastic is what plans take; not set: the threshold of "
        "[carbon], if there is one",
    )
    deadline: AwareDatetime | None = Field(
        None, description="date and time by which training has to be over; a promise that is kept"
    )
    deadline_in_s: StrictFloat | None = Field(
        None, gt=0, le=315_360_000, description="the same as a time after the start of the run"
    )
    slack: StrictFloat | None = Field(
        None,
        ge=1,
        le=1000,
        description="the same as a factor: how many times the time that the run would take "
        "without a pause",
    )
    reserve: StrictFloat = Field(
        0.05,
        ge=0,
        le=1,
        description="time that is kept free before the deadline, as a share of the time that the "
        "steps left will take",
    )
    late_g_per_h: StrictFloat = Field(
        0.0, ge=0, le=1e12, description="what an hour after carbon.soft_deadline counts as"
    )
    seed: StrictInt = Field(
        0, ge=0, le=2**32 - 1, description="seed of controllers that draw at random"
    )
    spot_prices: SomePath | None = Field(
        None, description="CSV of time and price of a worker, for the controller spot"
    )
    tokens: StrictFloat | None = Field(
        None,
        gt=0,
        le=1e18,
        description="number of tokens to train; for plans and simulations alone",
    )
    table: PresetPath | None = Field(
        None,
        description="TOML of power and throughput by width and gear, from `ecorl carbon profile`; "
        "not set: the run times each gear first; {presets} is the folder of the presets",
    )
    low_share: StrictFloat = Field(
        1.0, ge=0, le=1, description="largest share of the tokens that are trained on in FP8"
    )
    base_w: StrictFloat = Field(
        0.0,
        ge=0,
        le=1e9,
        description="power that is drawn for as long as the machines are kept; for plans alone",
    )
    idle_w: StrictFloat = Field(
        0.0,
        ge=0,
        le=1e6,
        description="power of each kept worker that does not train; for plans alone",
    )
    kept: Literal["deadline", "done"] = Field(
        "deadline",
        description="until when machines are kept: the deadline, or done with the last token; for "
        "plans alone",
    )
    width_change_s: StrictFloat = Field(
        0.0, ge=0, le=86_400, description="time without training when the width changes"
    )
    gear_change_s: StrictFloat = Field(
        0.0, ge=0, le=86_400, description="time without training when the gear alone changes"
    )
    epoch_s: StrictFloat = Field(
        300.0, ge=1, le=86_400, description="time between two decisions; for plans alone"
    )

    @model_validator(mode="after")
    def _one_deadline(self) -> ControlConfig:
        given = {
            "deadline": self.deadline,
            "deadline_in_s": self.deadline_in_s,
            "slack": self.slack,
        }
        named = [name for name, value in given.items() if value is not None]
        if len(named) > 1:
            allowed = f"nothing beside carbon.control.{named[0]}, or the other way round"
            raise RefusedValue(named[1], given[named[1]], allowed)
        if self.controller and not named:
            allowed = "a controller together with 'deadline', 'deadline_in_s' or 'slack'"
            raise RefusedValue("controller", self.controller, allowed)
        return self

    @model_validator(mode="after")
    def _spot_has_prices(self) -> ControlConfig:
        if self.controller == "spot" and self.spot_prices is None:
            raise RefusedValue("spot_prices", None, "a CSV of time and price, for 'spot'")
        return self

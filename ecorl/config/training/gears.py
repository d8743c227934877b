"""``[gears]``: numeric formats between which the training stage may be shifted."""

from __future__ import annotations

from collections import Counter
from typing import Literal

from pydantic import Field, StrictBool, StrictFloat, StrictInt, model_validator

from ecorl.config.base import MANY, Model
from ecorl.config.mistakes import RefusedValue
from ecorl.control import Gear


class GearsConfig(Model):
    """Numeric formats of the training stage, and the limits within which they may be chosen.

    Generation, rewards and the reference keep the precision that the trainer has given them, and
    weights and moments stay as they are, in FP32: a shift between two steps loses nothing. Without
    ``allowed`` nothing of the training changes.
    """

    allowed: tuple[Gear, ...] = Field(
        (),
        description="gears that may be chosen, of FP32, FP16, BF16, FP8; the first is begun with",
    )
    simulate_fp8: StrictBool = Field(
        False,
        description="where the device computes in no FP8: round as FP8 does; it saves nothing",
    )
    optimizer: Literal["adaptive", "literal", "own"] = Field(
        "adaptive",
        description="AdamW decelerated by the noise of the gear (adaptive), by the paper's rule "
        "as printed (literal), or the trainer's own (own)",
    )
    measure_every: StrictInt = Field(
        50,
        ge=0,
        le=MANY,
        description="steps between two measurements of gradient noise and mismatch; 0: never",
    )
    noise_budget: StrictFloat | None = Field(
        None,
        gt=0,
        le=1000,
        description="largest mean excess of the gradient's variance, over all tokens, over that of "
        "BF16 or, where it is not allowed, FP32",
    )
    mismatch_limit: StrictFloat = Field(
        1.05,
        gt=1,
        le=10,
        description="largest mean ratio of token probabilities between trainer and rollout",
    )
    max_overflows: StrictInt = Field(
        3, ge=1, le=1000, description="steps in a row that had to be redone, which retire a gear"
    )

    @property
    def is_on(self) -> bool:
        """Whether the training stage computes in a gear of this table."""
        return bool(self.allowed)

    @property
    def reference(self) -> Gear | None:
        """The gear that noise is held against; None without gears.

        It is the one in which a step is redone: BF16, or the first that is not of low precision.
        """
        others = [gear for gear in self.allowed if gear not in (Gear.FP8, Gear.FP16)]
        return Gear.BF16 if Gear.BF16 in others else next(iter(others), None)

    @model_validator(mode="after")
    def _each_once(self) -> GearsConfig:
        twice = [str(gear) for gear, n in Counter(self.allowed).items() if n > 1]
        if twice:
            raise RefusedValue("allowed", [str(gear) for gear in self.allowed], "each gear once")
        return self

    @model_validator(mode="after")
    def _low_gears_can_be_redone(self) -> GearsConfig:
        if self.allowed and all(gear in (Gear.FP8, Gear.FP16) for gear in self.allowed):
            allowed = "a list with BF16 or FP32, for when the others may not be chosen any more"
            raise RefusedValue("allowed", [str(gear) for gear in self.allowed], allowed)
        return self

    @model_validator(mode="after")
    def _noise_is_measured(self) -> GearsConfig:
        if self.noise_budget is not None and self.measure_every == 0:
            allowed = "above 0 with a noise_budget: the noise has to be measured"
            raise RefusedValue("measure_every", 0, allowed)
        if self.noise_budget is not None and Gear.FP8 not in self.allowed:
            allowed = "left out without FP8 in gears.allowed: it limits the share of FP8 alone"
            raise RefusedValue("noise_budget", self.noise_budget, allowed)
        return self

"""``[placement]``: the policy that proposes where a stage runs, and its guards."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StrictBool, StrictFloat, StrictInt, model_validator

from ecorl.config.base import MANY, Model, SomePath, Text
from ecorl.config.mistakes import RefusedValue
from ecorl.records import Action

_ACTIONS = (
    "gpu (where your framework computes, a processor too), fpga (on the card; the framework "
    "waits), concurrent (on the card; the framework goes on)"
)


class StaticPolicyConfig(Model):
    """A fixed action for each offloadable stage."""

    type: Literal["static"] = "static"
    reward: Action = Field(Action.GPU, description=f"where the reward stage runs: {_ACTIONS}")
    reference: Action = Field(Action.GPU, description=f"where the reference stage runs: {_ACTIONS}")


class ThresholdPolicyConfig(Model):
    """Concurrent while rows are short and the FPGA's queue is short, else GPU."""

    type: Literal["threshold"] = "threshold"
    max_length: StrictInt = Field(
        2048,
        ge=1,
        le=MANY,
        description="longest mean row that is offloaded, prompt and completion, tokens",
    )
    max_queue: StrictInt = Field(
        4, ge=0, le=MANY, description="longest queue of the card that is added to, batches"
    )


class LookaheadPolicyConfig(Model):
    """The action of least modelled energy and time, waiting included; idle cards not counted."""

    type: Literal["lookahead"] = "lookahead"
    energy_weight: StrictFloat = Field(0.5, ge=0, le=1, description="weight of energy")
    time_weight: StrictFloat = Field(0.5, ge=0, le=1, description="weight of time")

    @model_validator(mode="after")
    def _something_counts(self) -> LookaheadPolicyConfig:
        if self.energy_weight == self.time_weight == 0:
            time = RefusedValue("time_weight", 0.0, "a number above 0, here or in energy_weight")
            allowed = "a number above 0, here or in time_weight"
            raise RefusedValue("energy_weight", 0.0, allowed, time)
        return self


class LearnedPolicyConfig(Model):
    """A trained policy: the shipped one, a file of the user's, or one from elsewhere.

    Policies from elsewhere register under the entry-point group ``ecorl.policies``.
    """

    type: Literal["learned"] = "learned"
    name: Text = Field("ecorl", description="name of the entry point; ecorl: policies of ours")
    path: SomePath | None = Field(
        None, description="policy file (ecorl policy export); leave out for the shipped one"
    )


Policy = Annotated[
    StaticPolicyConfig | ThresholdPolicyConfig | LookaheadPolicyConfig | LearnedPolicyConfig,
    Field(discriminator="type"),
]


class PlacementConfig(Model):
    """Settings of Algorithm 1: the policy, its guards and the EDI matrix."""

    policy: Policy = Field(default_factory=StaticPolicyConfig, description="who proposes an action")
    q_max: StrictInt = Field(
        8, ge=1, le=1024, description="queue of the card at which offloading stops, batches"
    )
    l_max: StrictInt = Field(
        2048, ge=1, le=131072, description="mean row length limit, prompt and completion, tokens"
    )
    energy_margin: StrictFloat | None = Field(
        None,
        ge=0,
        description="by how much more energy offloading may cost than the stage where your "
        "framework computes, both modelled: 0 nothing, 0.1 a tenth; leave out to allow any",
    )
    deadline_s: StrictFloat = Field(
        60.0, gt=0, le=3600, description="limit of the waits at one iteration's barrier, s"
    )
    max_faults: StrictInt = Field(
        3, ge=1, le=MANY, description="faults in a row that quarantine an engine"
    )
    n_profiling: StrictInt = Field(
        20,
        ge=0,
        le=MANY,
        description="rollout batches of the profiling phase, and readings for which energy per "
        "token is a plain mean; 20 = 1 / edi_alpha (the paper: 500 steps)",
    )
    profile_both_paths: StrictBool = Field(
        False,
        description="during the profiling phase every other batch keeps the offloadable stages "
        "where your framework computes, so that the energy of the two can be compared",
    )
    edi_alpha: StrictFloat = Field(
        0.05,
        gt=0,
        le=1,
        description="weight of a new reading in a stage's energy per token, after profiling",
    )

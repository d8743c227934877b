"""``[placement]``: the policy that proposes where a stage runs, and its guards."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StrictBool, StrictFloat, StrictInt, model_validator

from ecorl.config.base import MANY, Model, SomePath, Text
from ecorl.config.mistakes import RefusedValue
from ecorl.records import Action

_ACTIONS = (
    "gpu is where your framework computes (GPU or host), fpga the card while the framework waits, "
    "concurrent the card while the framework goes on"
)


class StaticPolicyConfig(Model):
    """A fixed place for each stage that can leave: always the same, whatever it costs."""

    type: Literal["static"] = "static"
    reward: Action = Field(Action.GPU, description=f"where rewards are computed: {_ACTIONS}")
    reference: Action = Field(
        Action.GPU, description=f"where reference log-probs are computed: {_ACTIONS}"
    )


class ThresholdPolicyConfig(Model):
    """Offloads while rows are short and few batches wait for the card."""

    type: Literal["threshold"] = "threshold"
    max_length: StrictInt = Field(
        2048,
        ge=1,
        le=MANY,
        description="longest mean row that is offloaded: prompt and completion, in tokens",
    )
    max_queue: StrictInt = Field(
        4, ge=0, le=MANY, description="longest queue of the card that is added to, in batches"
    )


class LookaheadPolicyConfig(Model):
    """The place of least modelled energy and time, waiting included; idle cards are not counted."""

    type: Literal["lookahead"] = "lookahead"
    energy_weight: StrictFloat = Field(0.5, ge=0, le=1, description="weight of energy, a share")
    time_weight: StrictFloat = Field(0.5, ge=0, le=1, description="weight of time, a share")
    measured: StrictBool = Field(
        True,
        description="whether costs are brought to the level of what the run has measured, of each "
        "stage on each side from its second execution there on; false: as the profiles say",
    )

    @model_validator(mode="after")
    def _something_counts(self) -> LookaheadPolicyConfig:
        if self.energy_weight == self.time_weight == 0:
            time = RefusedValue("time_weight", 0.0, "a number above 0, here or in energy_weight")
            allowed = "a number above 0, here or in time_weight"
            raise RefusedValue("energy_weight", 0.0, allowed, time)
        return self


class LearnedPolicyConfig(Model):
    """A trained network: the shipped one, one of your own, or that of another package."""

    type: Literal["learned"] = "learned"
    name: Text = Field(
        "ecorl",
        description="who loads it: ecorl, or a name that another package registers in the "
        "entry-point group ecorl.policies",
    )
    path: SomePath | None = Field(
        None, description="policy file from `ecorl policy export`; not set: the shipped one"
    )


Policy = Annotated[
    StaticPolicyConfig | ThresholdPolicyConfig | LookaheadPolicyConfig | LearnedPolicyConfig,
    Field(discriminator="type"),
]


class PlacementConfig(Model):
    """Who decides whether reward and reference leave for the card, and within which limits."""

    policy: Policy = Field(
        default_factory=StaticPolicyConfig, description="who proposes where a stage is computed"
    )
    q_max: StrictInt = Field(
        8,
        ge=1,
        le=1024,
        description="queue of the card at which nothing more is offloaded, in batches",
    )
    l_max: StrictInt = Field(
        2048,
        ge=1,
        le=131072,
        description="longest mean row that may be offloaded: prompt and completion, in tokens",
    )
    energy_margin: StrictFloat | None = Field(
        None,
        ge=0,
        description="share by which the modelled energy of an offload may be above that of "
        "staying; what takes more is refused; not set: energy refuses nothing",
    )
    deadline_s: StrictFloat = Field(
        60.0,
        gt=0,
        le=3600,
        description="longest wait for offloaded rows in one iteration; the trainer then computes "
        "them itself",
    )
    max_faults: StrictInt = Field(
        3,
        ge=1,
        le=MANY,
        description="number of faults in a row after which an engine gets no work for a while",
    )
    n_profiling: StrictInt = Field(
        20,
        ge=0,
        le=MANY,
        description="number of batches at the start in which energy per token is learnt as a "
        "plain mean; 1 / edi_alpha by default, the paper has 500",
    )
    profile_both_paths: StrictBool = Field(
        False,
        description="in these first batches every other one stays where your framework computes, "
        "so that both sides are seen; with lookahead and learned the rest leaves",
    )
    edi_alpha: StrictFloat = Field(
        0.05,
        gt=0,
        le=1,
        description="weight of a new reading of energy per token after these first batches, a "
        "share",
    )

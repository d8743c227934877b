"""``[engine]`` and ``[placement]``: what computes offloaded stages, policies, guards."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, StrictBool, StrictFloat, StrictInt, model_validator

from ecorl.config.base import MANY, Model, Ordinal, SomePath, Text
from ecorl.config.mistakes import Part, RefusedValue
from ecorl.records import Action


def _nans(value: object, parts: tuple[Part, ...] = ()) -> Iterator[tuple[Part, ...]]:
    """Yield the keys under which free options hold NaN."""
    if isinstance(value, float) and math.isnan(value):
        yield parts
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _nans(item, (*parts, str(key)))
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            yield from _nans(item, (*parts, i))


def _comparable(options: dict[str, Any]) -> dict[str, Any]:
    # NaN differs from itself: a config with one would differ from its own copy.
    for parts in _nans(options):
        raise RefusedValue(parts, math.nan, "anything that TOML can hold, but not nan")
    return options


Options = Annotated[dict[str, Any], AfterValidator(_comparable)]


class FpgaEngineConfig(Model):
    """The INT8 kernels, on real cards or on simulated ones, whose time and energy are modelled."""

    type: Literal["fpga"] = "fpga"
    build: Literal["fast", "strict"] = Field(
        "fast",
        description="which build of the simulated kernels: fast computes in native integers, "
        "strict in the exact widths of the hardware; both give the same bits",
    )
    threads: StrictInt = Field(
        1, ge=1, le=256, description="number of host threads that simulate the card"
    )
    host: Literal["auto", "csim", "xrt"] | None = Field(
        None,
        description="how the kernels are started: csim calls the simulation, xrt goes through XRT "
        "(to its simulated driver where no bitstream is named), auto takes xrt where it is "
        "installed; not set: xrt with a bitstream, else csim",
    )
    bitstream: SomePath | None = Field(
        None, description="file for real cards (xclbin) from `make bitstream`; not with host csim"
    )
    cards: tuple[Ordinal, ...] = Field(
        (0,), min_length=1, max_length=64, description="numbers of the cards, as XRT counts them"
    )
    isolated: StrictBool = Field(
        True, description="run in a process of its own, whose crash or hang the training survives"
    )

    @model_validator(mode="after")
    def _runs_somewhere(self) -> FpgaEngineConfig:
        if len(set(self.cards)) < len(self.cards):
            raise RefusedValue("cards", list(self.cards), "numbers of cards, each once")
        if self.bitstream is not None and self.host == "csim":
            raise RefusedValue("host", self.host, "auto or xrt, since a bitstream is named")
        if self.bitstream is not None and self.build != "fast":
            raise RefusedValue("build", self.build, "fast: a bitstream brings its own kernels")
        return self


class TorchEngineConfig(Model):
    """The same models in float by torch, in a process beside the trainer or on a second GPU."""

    type: Literal["torch"] = "torch"
    device: Annotated[str, Field(pattern=r"^(cpu|cuda:(0|[1-9][0-9]{0,2}))$")] = Field(
        "cpu",
        description="where it computes: cpu, or a CUDA device by torch's number of it, such as "
        "cuda:1, whose profile `devices.accelerator` then names",
    )
    threads: StrictInt = Field(1, ge=1, le=256, description="number of torch threads")
    isolated: StrictBool = Field(
        True, description="run in a process of its own, whose crash or hang the training survives"
    )


class PluginEngineConfig(Model):
    """An engine of another package, registered in the entry-point group ecorl.engines."""

    type: Literal["plugin"] = "plugin"
    name: Text = Field(description="name under which the engine is registered")
    options: Options = Field(
        default_factory=dict, description="settings that are handed to the engine"
    )
    isolated: StrictBool = Field(
        True, description="run in a process of its own, whose crash or hang the training survives"
    )


class FaultInjection(Model):
    """A fault to inject into the engine, to rehearse what the run survives."""

    kind: Literal["raise", "hang", "nan", "shape", "exit"] = Field(
        description="what goes wrong in a call: an error, no answer, rows of NaN, an answer of "
        "the wrong shape, or the process ends"
    )
    calls: tuple[Ordinal, ...] = Field(
        min_length=1, description="which calls of the engine fail, counted from 0"
    )
    rows: tuple[Ordinal, ...] = Field(
        (0,), min_length=1, description="which rows become NaN with kind nan, counted from 0"
    )


OffloadEngine = Annotated[
    FpgaEngineConfig | TorchEngineConfig | PluginEngineConfig, Field(discriminator="type")
]


class EngineConfig(Model):
    """What computes the stages that are offloaded."""

    offload: OffloadEngine = Field(
        default_factory=FpgaEngineConfig, description="the engine that computes them"
    )
    faults: tuple[FaultInjection, ...] = Field(
        (), description="faults to inject into the engine, to rehearse what the run survives"
    )


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
    max_length: Annotated[StrictInt, Field(ge=1, le=MANY)] = Field(
        2048, description="longest mean row that is offloaded: prompt and completion, in tokens"
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
    q_max: Annotated[StrictInt, Field(ge=1, le=1024)] = Field(
        8, description="queue of the card at which nothing more is offloaded, in batches"
    )
    l_max: Annotated[StrictInt, Field(ge=1, le=131072)] = Field(
        2048, description="longest mean row that may be offloaded: prompt and completion, in tokens"
    )
    energy_margin: Annotated[StrictFloat, Field(ge=0)] | None = Field(
        None,
        description="share by which the modelled energy of an offload may be above that of "
        "staying; what takes more is refused; not set: energy refuses nothing",
    )
    deadline_s: Annotated[StrictFloat, Field(gt=0, le=3600)] = Field(
        60.0,
        description="longest wait for offloaded rows in one iteration; the trainer then computes "
        "them itself",
    )
    max_faults: Annotated[StrictInt, Field(ge=1, le=MANY)] = Field(
        3, description="number of faults in a row after which an engine gets no work for a while"
    )
    n_profiling: Annotated[StrictInt, Field(ge=0, le=MANY)] = Field(
        20,
        description="number of batches at the start in which energy per token is learnt as a "
        "plain mean; 1 / edi_alpha by default, the paper has 500",
    )
    profile_both_paths: StrictBool = Field(
        False,
        description="in these first batches every other one stays where your framework computes, "
        "so that both sides are seen; with lookahead and learned the rest leaves",
    )
    edi_alpha: Annotated[StrictFloat, Field(gt=0, le=1)] = Field(
        0.05,
        description="weight of a new reading of energy per token after these first batches, a "
        "share",
    )

"""The back-ends that a config chooses by a ``type`` key: task, policy, engine, power source."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StringConstraints,
    model_validator,
)

from ecorl.config.mistakes import Part, RefusedValue
from ecorl.records import Action

MANY = 10_000_000
"""Bound of steps and the like: far above any real run, far below what overflows."""


class Model(BaseModel):
    """Base of all tables: frozen, without unknown keys; numbers are finite."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_enum_values=False, allow_inf_nan=False
    )


def _some_path(value: object) -> object:
    # An empty path would be the current folder.
    if isinstance(value, str) and (not value.strip() or "\0" in value):
        raise ValueError("no path")
    return value


SomePath = Annotated[Path, BeforeValidator(_some_path)]
"""A path that is not empty."""
Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
"""Text that says something."""
Place = Annotated[StrictInt, Field(ge=0)]
"""A place in a sequence, from 0."""


# ---------------------------------------------------------------- task


class ArithmeticTask(Model):
    """A small self-made task: policy, reward model, prompts and pairs are made and cached."""

    type: Literal["arithmetic"] = "arithmetic"
    cache_dir: SomePath = Field(
        Path("~/.cache/ecorl/tasks"), description="folder in which prepared checkpoints are kept"
    )
    n_eval: StrictInt = Field(
        256, ge=16, le=4096, description="held-out prompts for before and after"
    )


class FilesTask(Model):
    """The user's own checkpoints and prompts."""

    type: Literal["files"] = "files"
    policy: SomePath = Field(description="Hugging Face checkpoint folder of the policy")
    reward: SomePath = Field(description="checkpoint folder of the reward model (scalar head)")
    prompts: SomePath = Field(description='JSON lines with a "prompt" string, one a line')
    eval_prompts: SomePath | None = Field(None, description="held-out prompts, same form")
    pairs: SomePath | None = Field(
        None, description='held-out preference pairs: "prompt", "chosen", "rejected", one a line'
    )


Task = Annotated[ArithmeticTask | FilesTask, Field(discriminator="type")]


# ---------------------------------------------------------------- policies


class StaticPolicyConfig(Model):
    """A fixed action for each offloadable stage."""

    type: Literal["static"] = "static"
    reward: Action = Field(Action.GPU, description="action for the reward stage")
    reference: Action = Field(Action.GPU, description="action for the reference stage")


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
        4, ge=0, le=MANY, description="longest FPGA queue that is added to, batches"
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


# ---------------------------------------------------------------- engines


def _nans(value: object, parts: tuple[Part, ...] = ()) -> Iterator[tuple[Part, ...]]:
    """Where NaN stands in free options."""
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
    """INT8 kernels, on cards or as C-simulation with the card's time and energy modelled."""

    type: Literal["fpga"] = "fpga"
    build: Literal["fast", "strict"] = Field("fast", description="native or bit-true ap_int")
    threads: StrictInt = Field(1, ge=1, le=256, description="host threads of the C-simulation")
    host: Literal["auto", "csim", "xrt"] | None = Field(
        None,
        description="csim calls the C-simulation; xrt runs the kernels through XRT, on its noop "
        "driver where no bitstream is named; auto takes xrt where it is installed; by default xrt "
        "with a bitstream, else csim",
    )
    bitstream: SomePath | None = Field(
        None, description="xclbin for the cards, from make bitstream; not with host csim"
    )
    cards: tuple[Place, ...] = Field(
        (0,), min_length=1, max_length=64, description="XRT's numbers of the cards"
    )
    isolated: StrictBool = Field(True, description="run in a process of its own")

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
    """The exact path as an engine in another process."""

    type: Literal["torch"] = "torch"
    threads: StrictInt = Field(1, ge=1, le=256, description="torch threads")
    isolated: StrictBool = Field(True, description="run in a process of its own")


class PluginEngineConfig(Model):
    """An engine from elsewhere, by entry point in the group ``ecorl.engines``."""

    type: Literal["plugin"] = "plugin"
    name: Text = Field(description="name of the entry point")
    options: Options = Field(default_factory=dict, description="handed to its factory")
    isolated: StrictBool = Field(True, description="run in a process of its own")


class FaultInjection(Model):
    """Faults to inject into the offload engine, to rehearse what the run survives."""

    kind: Literal["raise", "hang", "nan", "shape", "exit"] = Field(description="what goes wrong")
    calls: tuple[Place, ...] = Field(
        min_length=1, description="0-based calls of the engine that fail"
    )
    rows: tuple[Place, ...] = Field((0,), min_length=1, description="rows that turn NaN (kind nan)")


OffloadEngine = Annotated[
    FpgaEngineConfig | TorchEngineConfig | PluginEngineConfig, Field(discriminator="type")
]


# ---------------------------------------------------------------- power sources


class AutoSourceConfig(Model):
    """NVML, else RAPL, else modelled, whichever answers first."""

    type: Literal["auto"] = "auto"


class NvmlSourceConfig(Model):
    """NVIDIA GPUs by NVML."""

    type: Literal["nvml"] = "nvml"
    interval_s: StrictFloat = Field(0.1, ge=0.05, le=10, description="polling interval, s")


class RaplSourceConfig(Model):
    """The host's CPU package by RAPL."""

    type: Literal["rapl"] = "rapl"
    interval_s: StrictFloat = Field(0.1, ge=0.01, le=10, description="polling interval, s")
    root: SomePath = Field(Path("/sys/class/powercap"), description="powercap folder")


class XrtSourceConfig(Model):
    """Alveo cards by XRT's electrical report."""

    type: Literal["xrt"] = "xrt"
    interval_s: StrictFloat = Field(0.05, ge=0.05, le=10, description="polling interval, s")


class ModelledSourceConfig(Model):
    """Power from a device profile and utilisation."""

    type: Literal["modelled"] = "modelled"
    interval_s: StrictFloat = Field(0.1, ge=0.01, le=10, description="polling interval, s")


class ReplaySourceConfig(Model):
    """Readings from a recorded CSV file."""

    type: Literal["replay"] = "replay"
    path: SomePath = Field(description="CSV with t_s, device_id, power_w, energy_j, utilisation")
    interval_s: StrictFloat = Field(0.1, ge=0.01, le=10, description="polling interval, s")


class NullSourceConfig(Model):
    """No readings at all: every energy figure is missing."""

    type: Literal["null"] = "null"
    interval_s: StrictFloat = Field(1.0, ge=0.01, le=10, description="polling interval, s")


GpuPower = Annotated[
    AutoSourceConfig
    | NvmlSourceConfig
    | RaplSourceConfig
    | ModelledSourceConfig
    | ReplaySourceConfig
    | NullSourceConfig,
    Field(discriminator="type"),
]

"""``[engine]``: the engine that answers offloaded stages, and faults to inject into it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, StrictBool, StrictInt, model_validator

from ecorl.config.base import Model, Ordinal, SomePath, Text
from ecorl.config.mistakes import Part, RefusedValue


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
    device: str = Field(
        "cpu",
        pattern=r"^(cpu|cuda:(0|[1-9][0-9]{0,2}))$",
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

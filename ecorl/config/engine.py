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
    cards: tuple[Ordinal, ...] = Field(
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
    calls: tuple[Ordinal, ...] = Field(
        min_length=1, description="0-based calls of the engine that fail"
    )
    rows: tuple[Ordinal, ...] = Field(
        (0,), min_length=1, description="rows that turn NaN (kind nan)"
    )


OffloadEngine = Annotated[
    FpgaEngineConfig | TorchEngineConfig | PluginEngineConfig, Field(discriminator="type")
]


class EngineConfig(Model):
    """The engine that answers offloaded stages."""

    offload: OffloadEngine = Field(default_factory=FpgaEngineConfig, description="offload engine")
    faults: tuple[FaultInjection, ...] = Field((), description="faults to inject (rehearsal)")

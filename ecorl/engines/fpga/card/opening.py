"""From what a configuration names to cards that can be opened."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Literal

from ecorl.drivers.xrt_card import OpenCard, load_pyxrt
from ecorl.drivers.xrt_reset import reset_card
from ecorl.engines.decoder_config import DecoderConfig
from ecorl.engines.fpga.banks import card_memory
from ecorl.engines.fpga.bitstream import same_platform
from ecorl.engines.fpga.build import Build, csim_library
from ecorl.engines.fpga.cache import cache_folder, locked
from ecorl.engines.fpga.card.emulation import can_emulate, emulated_pyxrt
from ecorl.engines.fpga.card.service import CardLimits, CardSetup
from ecorl.engines.fpga.interfaces import KernelInterface, kernel_interfaces
from ecorl.engines.fpga.limits import shape_limits
from ecorl.engines.fpga.xclbin import CSIM_SUFFIX, write_container
from ecorl.errors import BuildError, CheckpointError, DriverError, MissingToolError

logger = logging.getLogger(__name__)

Host = Literal["auto", "csim", "xrt"]
"""Who runs the kernels: the C-simulation called directly, or XRT; ``auto`` takes XRT where it is
installed and the model can run there."""

EMULATED_START_S = 300.0
"""Patience with one start in emulation, s: the kernels' own loops take minutes for large models."""


@dataclass(frozen=True, slots=True)
class Opening:
    """Cards to open, and whether they are emulated."""

    setups: tuple[CardSetup, ...]
    is_emulated: bool


def objection_to(config: DecoderConfig) -> str | None:
    """Why a model cannot run through the kernels' top functions; None when it can."""
    if config.gating is not None:
        return "the layers of its gate have no kernel"
    return shape_limits().refusal(config)


def wants_xrt(host: Host, config: DecoderConfig) -> bool:
    """Whether a host setting means XRT for this model on this machine.

    Raises:
        CheckpointError: when XRT is asked for, and the model cannot run there.
    """
    if host == "csim":
        return False
    objection = objection_to(config)
    if objection is None:
        return host == "xrt" or can_emulate()
    if host == "xrt":
        raise CheckpointError(f"the kernels cannot run this {config.architecture}: {objection}")
    logger.info("the C-simulation is called directly: %s", objection)
    return False


def emulated(
    container: Path, cards: Sequence[int], progress: Callable[[str], None] | None = None
) -> Opening:
    """Cards on XRT's noop driver; the kernels compute by the C-simulation in a container.

    Raises:
        MissingToolError: without XRT, pybind11 or a compiler.
        BuildError: when something does not compile.
    """
    module = emulated_pyxrt(progress)
    interfaces = kernel_interfaces()
    limits = CardLimits(start_s=EMULATED_START_S)
    return Opening(
        tuple(_setup(module, i, container, interfaces, limits, _no_reset) for i in cards), True
    )


def on_cards(
    bitstream: Path, platform: str, cards: Sequence[int], module: ModuleType | None = None
) -> Opening:
    """Real cards, by AMD's ``pyxrt``.

    Args:
        bitstream: an xclbin that has been checked.
        platform: that it was linked for; a card of another one is not loaded.
        cards: XRT's numbers.
        module: stands in for ``pyxrt``.

    Raises:
        MissingToolError: without ``pyxrt``.
    """
    try:
        module = module or load_pyxrt()
    except DriverError as error:
        raise MissingToolError(str(error)) from error
    interfaces = kernel_interfaces()
    limits = CardLimits()

    def fits(name: str) -> bool:
        return same_platform(platform, name)

    setups = (_setup(module, i, bitstream, interfaces, limits, reset_card, fits) for i in cards)
    return Opening(tuple(setups), False)


def csim_container(build: Build, progress: Callable[[str], None] | None = None) -> Path:
    """The C-simulation as a file that XRT loads, from the cache.

    Raises:
        MissingToolError: without a compiler.
        BuildError: when it does not compile or cannot be written.
    """
    library = csim_library(build, progress=progress)
    path = cache_folder() / f"{library.parent.name}{CSIM_SUFFIX}"
    try:
        with locked(path.with_suffix(".lock")):
            # Written anew each time: a few ms, and whatever lay there before does not matter.
            write_container(path, kernel_interfaces(), library.read_bytes(), card_memory())
    except OSError as error:
        raise BuildError(f"cannot write {path}: {error}") from error
    return path


def _setup(
    module: ModuleType,
    index: int,
    bitstream: Path,
    interfaces: Sequence[KernelInterface],
    limits: CardLimits,
    reset: Callable[[str], None],
    fits: Callable[[str], bool] | None = None,
) -> CardSetup:
    tops = tuple(interface.top for interface in interfaces)

    def open_card() -> OpenCard:
        return OpenCard(module, index, bitstream, tops, fits)

    return CardSetup(index, open_card, reset, interfaces, limits)


def _no_reset(_address: str) -> None:
    """Opening the emulated device anew is all that there is to it."""

"""Opens emulated or real cards, as a configuration names them.

Emulation is XRT without a card: its noop driver, and our module in place of pyxrt, which computes.
The module is compiled once, against the XRT that is installed, into the same cache as the
C-simulation. Nothing of it is used with a real card and AMD's ``pyxrt``.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import logging
import os
import platform
import shutil
import sys
import sysconfig
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType

from ecorl import errors
from ecorl.drivers.xrt.card import OpenCard, card_name, load_pyxrt
from ecorl.drivers.xrt.reset import reset_card
from ecorl.engines.fpga.bitstream.manifest import (
    Manifest,
    check_bitstream,
    file_digest,
    same_platform,
)
from ecorl.engines.fpga.bitstream.xclbin import CSIM_SUFFIX, write_container
from ecorl.engines.fpga.card.backend import Host, KernelBackend
from ecorl.engines.fpga.card.health import CardLimits, CardSetup
from ecorl.engines.fpga.csim.build import Build, Progress, csim_library, kernel_root
from ecorl.engines.fpga.csim.cache import cache_folder, fresh_folder, locked
from ecorl.engines.fpga.csim.compiler import Compiler, find_compiler, first_error, run
from ecorl.engines.fpga.kernels.banks import card_memory
from ecorl.engines.fpga.kernels.interfaces import kernel_interfaces, shape_limits
from ecorl.engines.models.decoder_config import DecoderConfig
from ecorl.errors import BuildError, ConfigError, MissingToolError

MODULE = "ecorl_xrt_csim"
MODE = "XCL_EMULATION_MODE"
ROOT = "XILINX_XRT"
DRIVER = "libxrt_noop.so.2"

_FLAGS = ("-O2", "-std=c++17", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra")
_LIBRARIES = ("-lxrt_coreutil", "-luuid", "-ldl", "-lpthread")


@dataclass(frozen=True, slots=True)
class InstalledXrt:
    """The folders of XRT's headers and libraries."""

    include: Path
    lib: Path


def installed_xrt() -> InstalledXrt | None:
    """Find an XRT that can emulate, with headers and the noop driver; None without.

    ``$XILINX_XRT`` is looked at first, then AMD's folder, then Debian's.
    """
    own = os.environ.get(ROOT)
    homes = [Path(own)] if own else []
    homes.append(Path("/opt/xilinx/xrt"))
    places = [(home / "include", home / "lib") for home in homes]
    places += [(Path("/usr/include/xrt"), lib) for lib in Path("/usr/lib").glob("*-linux-gnu")]
    for include, lib in places:
        if (include / "xrt" / "xrt_kernel.h").is_file() and (lib / DRIVER).is_file():
            # Not by way of our own links, which $XILINX_XRT names once a card was opened.
            return InstalledXrt(include.resolve(), (lib / DRIVER).resolve().parent)
    return None


def can_emulate() -> bool:
    """Whether XRT and pybind11 are installed; a compiler may still be missing."""
    return installed_xrt() is not None and importlib.util.find_spec("pybind11") is not None


def emulated_pyxrt(progress: Progress | None = None) -> ModuleType:
    """Load our module, which has pyxrt's interface; compile it first if the cache lacks it.

    XRT reads two environment variables when a device is opened; this sets them for this process and
    those that it starts.

    Args:
        progress: receives one line when the module is compiled.

    Raises:
        MissingToolError: without XRT, pybind11 or a compiler.
        ConfigError: when the environment asks for another emulation mode.
        BuildError: when it does not compile or cannot be loaded.
    """
    xrt = installed_xrt()
    if xrt is None:
        raise MissingToolError(
            "XRT with its noop driver is not on this machine "
            "(Debian: apt install libxrt-dev uuid-dev)"
        )
    mode = os.environ.get(MODE, "noop")
    if mode != "noop":
        raise ConfigError(MODE, mode, "noop, or not set")
    library = _built(xrt, progress or (lambda _line: None))
    os.environ[MODE] = mode
    os.environ[ROOT] = str(library.parent / "xrt")
    return _loaded(library)


def _loaded(library: Path) -> ModuleType:
    known = sys.modules.get(MODULE)
    if known is not None:
        return known
    spec = importlib.util.spec_from_file_location(MODULE, library)
    if spec is None or spec.loader is None:
        raise BuildError(f"{library} is no Python module")
    try:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError as error:
        raise BuildError(f"{library} cannot be loaded: {error}") from error
    sys.modules[MODULE] = module
    return module


def _built(xrt: InstalledXrt, progress: Callable[[str], None]) -> Path:
    root = kernel_root() / "sim" / "xrt"
    sources = sorted(root.glob("*.cpp"))
    compiler, includes = find_compiler(), _includes(xrt)
    facts = {
        "compiler": compiler.version,
        "flags": [*_FLAGS, *compiler.own_flags],
        "includes": [str(path) for path in includes],
        "driver": str((xrt.lib / DRIVER).resolve()),
        "machine": platform.machine(),
        "sources": [
            hashlib.sha256(path.read_bytes()).hexdigest()
            for path in (*sources, *sorted(root.glob("*.hpp")))
        ],
    }
    key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:20]
    folder = cache_folder() / f"xrt-{key}"
    library = folder / f"{MODULE}{sysconfig.get_config_var('EXT_SUFFIX') or '.so'}"
    if library.is_file():
        return library
    try:
        with locked(cache_folder() / f"xrt-{key}.lock"):
            if not library.is_file():
                shutil.rmtree(folder, ignore_errors=True)
                progress(f"compiling the XRT emulation ({compiler.version})")
                with fresh_folder(folder) as temporary:
                    _compile(compiler, xrt, includes, sources, temporary / library.name)
                    (temporary / "xrt" / "lib").mkdir(parents=True)
                    (temporary / "xrt" / "lib" / DRIVER).symlink_to(xrt.lib / DRIVER)
                    (temporary / "xrt" / "include").symlink_to(xrt.include)
    except OSError as error:
        raise BuildError(f"cannot write the cache {folder}: {error}") from error
    return library


def _includes(xrt: InstalledXrt) -> list[Path]:
    try:
        import pybind11
    except ImportError as error:
        raise MissingToolError(
            'the XRT emulation needs pybind11: pip install "ecorl[xrt]"'
        ) from error
    python = Path(sysconfig.get_paths()["include"])
    if not (python / "Python.h").is_file():
        raise MissingToolError(
            f"the XRT emulation needs Python's headers, and {python}/Python.h is not there "
            "(Debian: apt install python3-dev)"
        )
    return [xrt.include, Path(pybind11.get_include()), python]


def _compile(
    compiler: Compiler, xrt: InstalledXrt, includes: list[Path], sources: list[Path], target: Path
) -> None:
    command = [*compiler.command, *_FLAGS]
    for path in includes:
        command += ["-isystem", str(path)]
    command += [*map(str, sources), "-o", str(target), f"-L{xrt.lib}", *_LIBRARIES]
    finished = run(command)
    if finished.returncode != 0:
        raise BuildError(f"the XRT emulation: {first_error(finished.stderr)}")


logger = logging.getLogger(__name__)

EMULATED_START_S = 300.0
"""Longest time of one emulated kernel start, s: its loops run for minutes with large models."""


@dataclass(frozen=True, slots=True)
class Opening:
    """Setups of the cards, and whether they are emulated."""

    setups: tuple[CardSetup, ...]
    is_emulated: bool


def objection_to(config: DecoderConfig) -> str | None:
    """Why the kernels' top functions cannot run a model; None when they can."""
    if config.gating is not None:
        return "the layers of its gate have no kernel"
    return shape_limits().refusal(config)


def wants_xrt(host: Host, config: DecoderConfig) -> bool:
    """Decide whether a host setting means XRT for this model on this machine.

    Args:
        host: the setting.
        config: of the model.

    Raises:
        CheckpointError: when XRT is asked for, and the model cannot run there.
    """
    if host == "csim":
        return False
    objection = objection_to(config)
    if objection is None:
        return host == "xrt" or can_emulate()
    if host == "xrt":
        raise errors.CheckpointError(
            f"the kernels cannot run this {config.architecture}: {objection}"
        )
    logger.info("the C-simulation is called directly: %s", objection)
    return False


def open_cards(backend: KernelBackend, build: Build, config: DecoderConfig) -> Opening | None:
    """Open the cards for a model; None where the C-simulation is called directly.

    Args:
        backend: which backend runs the kernels.
        build: of the C-simulation, where no bitstream is named.
        config: the model.

    Raises:
        CheckpointError: when XRT is asked for, and the model cannot run there.
        ConfigError: for a build that the bitstream is not of, or an emulation mode that does not
            fit.
        BitstreamError: when the bitstream is not to be loaded.
        MissingToolError: when XRT is asked for, and it or a tool for it is not here.
        BuildError: when something does not compile.
    """
    if backend.bitstream is not None:
        if build != "fast":
            allowed = "fast: a bitstream brings its own kernels"
            raise errors.ConfigError("engine.offload.build", build, allowed)
        try:
            path = backend.bitstream.expanduser()
        except RuntimeError as error:  # a user's folder, of a user that does not exist
            raise errors.BitstreamError(f"{backend.bitstream}: {error}") from error
        return _with_bitstream(backend, path, config)
    if not wants_xrt(backend.host, config):
        return None
    try:
        return emulated(csim_container(build), backend.cards)
    except (errors.MissingToolError, errors.BuildError, errors.ConfigError) as error:
        if backend.host != "auto":
            raise
        logger.warning("the C-simulation is called directly: %s", error)
        return None


def _with_bitstream(backend: KernelBackend, path: Path, config: DecoderConfig) -> Opening:
    is_csim = path.name.endswith(CSIM_SUFFIX)
    # The platform is compared with each card's own name when it is opened.
    manifest = check_bitstream(path, platform=None, model=config, emulated=is_csim)
    return emulated(path, backend.cards) if is_csim else on_cards(path, manifest, backend)


def emulated(container: Path, cards: Sequence[int]) -> Opening:
    """Emulated cards on XRT's noop driver; the C-simulation in a container computes the kernels.

    Args:
        container: the C-simulation as XRT loads it.
        cards: XRT's numbers of the cards.

    Raises:
        MissingToolError: without XRT, pybind11 or a compiler.
        BuildError: when something does not compile.
    """
    limits = CardLimits(start_s=EMULATED_START_S)
    setups = _setups(emulated_pyxrt(), cards, container, limits, _no_reset)
    return Opening(setups, is_emulated=True)


def on_cards(
    bitstream: Path, manifest: Manifest, backend: KernelBackend, module: ModuleType | None = None
) -> Opening:
    """Real cards, through AMD's ``pyxrt``.

    Args:
        bitstream: an xclbin that has been checked. Its hash is compared whenever a card is opened,
            since it may have been rebuilt meanwhile.
        manifest: its manifest.
        backend: which cards, and whether they may be reset.
        module: used in place of ``pyxrt``.

    Raises:
        MissingToolError: without ``pyxrt``.
        ConfigError: in one of XRT's emulation modes, whose results would pass for a card's; or for
            a card that XRT does not open.
    """
    mode = os.environ.get(MODE)
    if mode:
        raise errors.ConfigError(MODE, mode, "not set: the bitstream is for a card")
    try:
        module = module or load_pyxrt()
    except errors.DriverError as error:
        raise errors.MissingToolError(str(error)) from error
    for index in backend.cards:
        try:
            card_name(module, index)
        except errors.DriverError as error:
            allowed = f"numbers of cards that XRT opens ({error})"
            raise errors.ConfigError("engine.offload.cards", index, allowed) from error

    def check(name: str) -> None:
        if not same_platform(manifest.platform, name):
            raise errors.BitstreamError(
                f"{bitstream} is for {manifest.platform}, and the card is {name}"
            )
        if file_digest(bitstream) != manifest.sha256:
            raise errors.BitstreamError(f"{bitstream} is no longer the file that was checked")

    reset = reset_card if backend.may_reset else _refused_reset
    return Opening(
        _setups(module, backend.cards, bitstream, CardLimits(), reset, check), is_emulated=False
    )


def csim_container(build: Build) -> Path:
    """Write the C-simulation as a file that XRT loads into the cache.

    Args:
        build: of the C-simulation.

    Returns:
        The file.

    Raises:
        MissingToolError: without a compiler.
        BuildError: when it does not compile or cannot be written.
    """
    library = csim_library(build)
    path = cache_folder() / f"{library.parent.name}{CSIM_SUFFIX}"
    try:
        with locked(path.with_suffix(".lock")):
            # Written each time: that takes a few ms, and no damaged file of before is used.
            write_container(path, kernel_interfaces(), library.read_bytes(), card_memory())
    except OSError as error:
        raise errors.BuildError(f"cannot write {path}: {error}") from error
    return path


def _setups(
    module: ModuleType,
    cards: Sequence[int],
    bitstream: Path,
    limits: CardLimits,
    reset: Callable[[str], None],
    check: Callable[[str], None] | None = None,
) -> tuple[CardSetup, ...]:
    interfaces = kernel_interfaces()
    tops = tuple(interface.top for interface in interfaces)
    openings = [partial(OpenCard, module, index, bitstream, tops, check) for index in cards]
    return tuple(
        CardSetup(index, opening, reset, interfaces, limits)
        for index, opening in zip(cards, openings, strict=True)
    )


def _refused_reset(address: str) -> None:
    # The driver would end this process with all others that have the card open.
    raise errors.DriverError(
        f"card {address} is not reset from a process that it shares with a training"
    )


def _no_reset(_address: str) -> None:
    """Do nothing: the emulated device is reset when it is opened again."""

"""Looks at this machine: reads its drivers once, and judges what is possible on it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ecorl import __version__
from ecorl.carbon.building import build_chains
from ecorl.carbon.feeds import electricity_maps, watttime
from ecorl.config import Config
from ecorl.devices.host import read_host_cpu
from ecorl.doctor.findings import (
    Capability,
    CardFindings,
    FeedFindings,
    Findings,
    GpuFindings,
    HostFindings,
)
from ecorl.drivers import nvml, rapl
from ecorl.drivers.instruments import INSTRUMENTS, NvmlDevice
from ecorl.drivers.xrt.power import XrtDriver
from ecorl.engines.fpga.card.opening import can_emulate, installed_xrt
from ecorl.engines.fpga.csim.compiler import find_compiler
from ecorl.errors import BuildError, ConfigError, DriverError, MissingToolError

_FIRST_KEY = "carbon.feeds.0"


@dataclass(frozen=True, slots=True)
class _Needs:
    """What a type of feed takes: packages, and variables of the environment."""

    packages: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()


_NEEDS = {
    "constant": _Needs(),
    "synthetic": _Needs(),
    "replay": _Needs(),
    "uk": _Needs(("requests",)),
    "electricity_maps": _Needs(("requests",), (electricity_maps.KEY_VARIABLE,)),
    "watttime": _Needs(
        ("requests", "watttime"), (watttime.USER_VARIABLE, watttime.KEY_VARIABLE)
    ),
}  # fmt: skip
"""By the ``type`` of a feed in a config."""

_IN_CONFIG = {
    electricity_maps.KEY_VARIABLE: "key_file",
    watttime.USER_VARIABLE: "user",
    watttime.KEY_VARIABLE: "key_file",
}
"""Keys of a feed's config that do in the place of a variable."""


def examine_feeds(version: Callable[[str], str | None]) -> tuple[FeedFindings, ...]:
    """Look at what each type of feed takes.

    Args:
        version: gives the version of an installed package, or None.
    """
    found = []
    for kind, needs in _NEEDS.items():
        packages = {name: version(name) for name in needs.packages}
        keys = {name: bool(os.environ.get(name, "").strip()) for name in needs.variables}
        absent = [name for name, there in packages.items() if there is None]
        unset = [name for name, is_set in keys.items() if not is_set]
        possible = not absent and not unset
        why = _present(packages, keys) if possible else _missing(absent, unset)
        found.append(FeedFindings(kind, possible, why, packages, keys))
    return tuple(found)


def examine_configured(config: Config) -> tuple[Capability, ...]:
    """Try to build each feed of a config by itself; nothing is asked of it.

    Args:
        config: of a run.
    """
    found = []
    for number, feed in enumerate(config.carbon.feeds):
        name = f"carbon.feeds.{number}, {feed.name} ({feed.type})"
        carbon = config.carbon.model_copy(update={"feeds": (feed,)})
        problem = _problem(config.model_copy(update={"carbon": carbon}), number)
        found.append(Capability(name, problem is None, problem or "can be built"))
    return tuple(found)


def _problem(with_one_feed: Config, number: int) -> str | None:
    """Why the only feed of a config cannot be built, under its number in the whole one."""
    try:
        build_chains(with_one_feed, time.time())
    except ConfigError as error:
        key = error.key
        if key.startswith(_FIRST_KEY):
            key = f"carbon.feeds.{number}{key.removeprefix(_FIRST_KEY)}"
        return str(ConfigError(key, error.value, error.allowed))
    except MissingToolError as error:
        return str(error)
    return None


def _present(packages: dict[str, str | None], keys: dict[str, bool]) -> str:
    parts = [f"{name} {there}" for name, there in packages.items()]
    parts += [f"{name} is set" for name in keys]
    if not keys:
        parts.append("no key needed")
    return ", ".join(parts)


def _missing(absent: list[str], unset: list[str]) -> str:
    parts = []
    if absent:
        parts.append(f'without {", ".join(absent)}: pip install "ecorl[carbon]"')
    if unset:
        instead = " and ".join(_IN_CONFIG[name] for name in unset)
        is_not, serve = ("is not", "serves") if len(unset) == 1 else ("are not", "serve")
        parts.append(f"{' and '.join(unset)} {is_not} set ({instead} in the config {serve} too)")
    return "; ".join(parts)


TOOLS = ("g++", "make", "v++", "xbutil", "verilator", "yosys")
PACKAGES = ("torch", "trl", "transformers", "datasets", "onnxruntime", "onnx", "hls4ml")
TRL_PACKAGES = ("torch", "trl", "transformers", "datasets", "accelerate")
VECTOR_FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "amx_int8")


def examine(config: Config | None = None) -> Findings:
    """Look at this machine; never raises for what it lacks, and asks no network.

    Args:
        config: of a run, whose feeds of carbon intensities are built to see whether they can be.
    """
    gpus, gpus_reason = _gpus()
    cards, cards_reason = _cards()
    zones, rapl_reason = _rapl()
    tools = {tool: shutil.which(tool) for tool in TOOLS}
    packages = {name: _version(name) for name in PACKAGES}
    possible = (
        _gpu_energy(gpus, gpus_reason),
        _cpu_energy(zones, rapl_reason),
        _card_power(cards, cards_reason),
        _card_scoring(cards, cards_reason),
        _xrt_emulation(),
        _fast_build(),
        _strict_build(),
        _trl_training(),
        _needs_packages("ONNX Runtime baseline", ("onnxruntime", "onnx"), "onnxruntime onnx"),
        _needs_tool("RTL check of the processing element", tools, "verilator"),
        _needs_tool("resource estimate by open synthesis", tools, "yosys"),
        _needs_tool("bitstream build", tools, "v++"),
    )
    return Findings(
        _host(),
        gpus,
        gpus_reason,
        cards,
        cards_reason,
        zones,
        rapl_reason,
        tools,
        packages,
        possible,
        examine_feeds(_version),
        None if config is None else examine_configured(config),
    )


# ---------------------------------------------------------------- looking


def _host() -> HostFindings:
    cpu = read_host_cpu()
    return HostFindings(
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
        ecorl=__version__,
        cpu=cpu.model,
        n_cores=cpu.n_cores,
        memory_bytes=cpu.memory_bytes,
        vector={flag: flag in cpu.flags for flag in VECTOR_FLAGS},
    )


def _gpus() -> tuple[tuple[GpuFindings, ...], str | None]:
    driver = nvml.NvmlDriver()
    try:
        driver.open()
        found = tuple(_gpu(driver, device) for device in driver.select(None))
    except DriverError as error:
        return (), f"{type(error).__name__}: {error}"
    finally:
        driver.close()
    return found, None if found else "NVML sees no GPU"


def _gpu(driver: nvml.NvmlDriver, device: NvmlDevice) -> GpuFindings:
    instrument = problem = limit_w = None
    has_counter = False
    try:
        instrument = str(driver.power(device, INSTRUMENTS).instrument)
    except DriverError as error:
        problem = f"{type(error).__name__}: {error}"
    try:
        has_counter = driver.energy_j(device) >= 0
        limit_w = driver.power_limits(device).enforced_w
    except DriverError as error:
        problem = problem or f"{type(error).__name__}: {error}"
    return GpuFindings(
        device.index,
        device.name,
        device.uuid,
        len(device.mig_uuids),
        instrument,
        has_counter,
        limit_w,
        problem,
    )


def _cards() -> tuple[tuple[CardFindings, ...], str | None]:
    driver = XrtDriver()
    found = []
    try:
        driver.open()
        for card in driver.cards():
            problem: str | None = None
            try:
                if driver.power_w(card) is None:
                    problem = "its electrical report holds no board power"
            except DriverError as error:
                problem = f"{type(error).__name__}: {error}"
            found.append(CardFindings(card.index, card.name, card.bdf, problem is None, problem))
    except DriverError as error:
        return (), f"{type(error).__name__}: {error}"
    finally:
        driver.close()
    return tuple(found), None


def _rapl() -> tuple[tuple[str, ...], str | None]:
    try:
        return tuple(zone.label for zone in rapl.distinct(rapl.find_zones())), None
    except DriverError as error:
        return (), f"{type(error).__name__}: {error}"


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


# ---------------------------------------------------------------- judging


def _gpu_energy(gpus: Sequence[GpuFindings], reason: str | None) -> Capability:
    name = "measure GPU energy"
    readable = [gpu for gpu in gpus if gpu.instrument is not None]
    if not readable:
        return Capability(name, False, reason or str(gpus[0].problem))
    counted = sum(gpu.has_counter for gpu in readable)
    why = f"{len(readable)} of {len(gpus)} GPUs answer, {counted} with an energy counter"
    return Capability(name, True, why)


def _cpu_energy(zones: Sequence[str], reason: str | None) -> Capability:
    name = "measure CPU energy"
    if not zones:
        return Capability(name, False, f"{reason}; the power of CPU runs is modelled")
    return Capability(name, True, f"RAPL counters {', '.join(zones)}")


def _card_power(cards: Sequence[CardFindings], reason: str | None) -> Capability:
    name = "measure card power"
    readable = [card for card in cards if card.has_power]
    if not readable:
        return Capability(name, False, reason or str(cards[0].problem))
    return Capability(name, True, f"{len(readable)} of {len(cards)} cards answer")


def _card_scoring(cards: Sequence[CardFindings], reason: str | None) -> Capability:
    name = "score on a card"
    if not cards:
        return Capability(name, False, f"{reason}; kernels run in C-simulation")
    # Said plainly: the tests drive XRT's noop driver and stand-ins, and no card so far.
    why = "with engine.offload.bitstream, from make bitstream TARGET=hw; not yet tried on a card"
    return Capability(name, True, f"{len(cards)} cards are here, {why}")


def _xrt_emulation() -> Capability:
    name = "XRT without a card"
    xrt = installed_xrt()
    if xrt is None:
        why = "XRT's headers and noop driver are not here (Debian: apt install libxrt-dev uuid-dev)"
        return Capability(name, False, why)
    if not can_emulate():
        return Capability(name, False, 'no pybind11: pip install "ecorl[xrt]"')
    return Capability(name, True, f"noop driver of {xrt.lib}, computing by C-simulation")


def _fast_build() -> Capability:
    name = "C-simulation, fast build"
    try:
        compiler = find_compiler()
    except (MissingToolError, BuildError) as error:
        return Capability(name, False, str(error))
    return Capability(name, True, " ".join(compiler.command))


def _strict_build() -> Capability:
    name, fast = "C-simulation, strict build", _fast_build()
    if not fast.possible:
        return Capability(name, False, fast.why)
    # find_spec of a top-level package runs none of its code.
    spec = importlib.util.find_spec("hls4ml")
    folders = spec.submodule_search_locations if spec is not None else None
    for folder in folders or ():
        header = Path(folder) / "templates" / "vivado" / "ap_types" / "ap_int.h"
        if header.is_file():
            return Capability(name, True, f"{fast.why}, ap_int headers from hls4ml")
    why = 'no ap_int headers: pip install "ecorl[strict]"'
    return Capability(name, False, why)


def _trl_training() -> Capability:
    return _needs_packages("TRL training", TRL_PACKAGES, '"ecorl[trl]"')


def _needs_packages(name: str, packages: Sequence[str], install: str) -> Capability:
    versions = {package: _version(package) for package in packages}
    absent = [package for package, version in versions.items() if version is None]
    if absent:
        why = f"without {', '.join(absent)}: pip install {install}"
        return Capability(name, False, why)
    return Capability(name, True, ", ".join(f"{p} {v}" for p, v in versions.items()))


def _needs_tool(name: str, tools: dict[str, str | None], tool: str) -> Capability:
    path = tools[tool]
    return Capability(name, path is not None, path or f"{tool} is not on PATH")

"""Finds what this machine can do with ecorl, with a reason for each thing that it cannot.

`examine` never raises on a bare machine and imports nothing heavy: package versions come from
their metadata. Drivers are opened, read once and closed.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import platform
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ecorl import __version__
from ecorl.devices.host import read_host_cpu
from ecorl.drivers import nvml, rapl
from ecorl.drivers.xrt.power import XrtDriver
from ecorl.engines.fpga.card.emulation import can_emulate, installed_xrt
from ecorl.engines.fpga.csim.compiler import find_compiler
from ecorl.errors import BuildError, DriverError, MissingToolError

if TYPE_CHECKING:
    from rich.console import Console

TOOLS = ("g++", "make", "v++", "xbutil", "verilator", "yosys")
PACKAGES = ("torch", "trl", "transformers", "datasets", "onnxruntime", "onnx", "hls4ml")
TRL_PACKAGES = ("torch", "trl", "transformers", "datasets", "accelerate")
VECTOR_FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx_vnni")


@dataclass(frozen=True, slots=True)
class HostFindings:
    """The host: CPU, cores that this process may use, memory (bytes), vector extensions."""

    system: str
    python: str
    ecorl: str
    cpu: str
    n_cores: int
    memory_bytes: int
    vector: dict[str, bool]


@dataclass(frozen=True, slots=True)
class GpuFindings:
    """An NVIDIA GPU.

    Attributes:
        instrument: how its power is read, or None.
        has_counter: whether it counts energy.
        problem: why its power cannot be read, or None.
        limit_w: power limit that is enforced, W, or None.
    """

    index: int
    name: str
    uuid: str
    n_mig_instances: int
    instrument: str | None
    has_counter: bool
    limit_w: float | None
    problem: str | None


@dataclass(frozen=True, slots=True)
class CardFindings:
    """An Alveo card: shell name, PCIe address, and whether its power can be read or why not."""

    index: int
    name: str
    bdf: str
    has_power: bool
    problem: str | None


@dataclass(frozen=True, slots=True)
class Capability:
    """A use of ecorl, whether it is possible on this machine, and the reason."""

    name: str
    possible: bool
    why: str


@dataclass(frozen=True, slots=True)
class Findings:
    """The findings of `examine`.

    Attributes:
        gpus_reason: why there is no GPU, or None.
        cards_reason: why there is no card, or None.
        rapl: names of readable CPU energy counters.
        rapl_reason: why there is none, or None.
        tools: path of each tool, or None.
        packages: version of each Python package, or None.
        possible: the capabilities.
    """

    host: HostFindings
    gpus: tuple[GpuFindings, ...]
    gpus_reason: str | None
    cards: tuple[CardFindings, ...]
    cards_reason: str | None
    rapl: tuple[str, ...]
    rapl_reason: str | None
    tools: dict[str, str | None]
    packages: dict[str, str | None]
    possible: tuple[Capability, ...]


def examine() -> Findings:
    """Look at this machine; never raises for what it lacks."""
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
    )


def to_json(findings: Findings) -> str:
    """Write the findings as indented JSON text."""
    return json.dumps(asdict(findings), indent=2)


def render(findings: Findings, console: Console) -> None:
    """Print the findings: a coloured table on a terminal, one plain line each elsewhere.

    Args:
        findings: what `examine` found.
        console: where to.
    """
    if console.is_terminal:
        _render_table(findings, console)
        return
    for topic, text in _rows(findings):
        console.print(f"{topic}: {text}", markup=False, highlight=False, soft_wrap=True)
    for item in findings.possible:
        line = f"{'yes' if item.possible else 'no '}  {item.name}: {item.why}"
        console.print(line, markup=False, highlight=False, soft_wrap=True)


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
        found = tuple(_gpu(driver, device) for device in driver.devices())
    except DriverError as error:
        return (), f"{type(error).__name__}: {error}"
    finally:
        driver.close()
    return found, None if found else "NVML sees no GPU"


def _gpu(driver: nvml.NvmlDriver, device: nvml.NvmlDevice) -> GpuFindings:
    instrument = problem = limit_w = None
    has_counter = False
    try:
        instrument = str(driver.power(device, nvml.instruments()).instrument)
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
        return tuple(zone.name for zone in rapl.find_zones()), None
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
    return _needs_packages("TRL training", TRL_PACKAGES, "trl datasets")


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


# ---------------------------------------------------------------- showing


def _rows(findings: Findings) -> list[tuple[str, str]]:
    host = findings.host
    vector = ", ".join(flag for flag, there in host.vector.items() if there) or "none of note"
    rows = [
        ("system", f"{host.system}, Python {host.python}, ecorl {host.ecorl}"),
        ("CPU", f"{host.cpu}, {host.n_cores} cores, {host.memory_bytes / 2**30:.1f} GiB"),
        ("vector", vector),
    ]
    for gpu in findings.gpus:
        rows.append((f"gpu{gpu.index}", _gpu_line(gpu)))
    if findings.gpus_reason:
        rows.append(("GPUs", f"none ({findings.gpus_reason})"))
    for card in findings.cards:
        power = "power readable" if card.has_power else f"no power ({card.problem})"
        rows.append((f"fpga{card.index}", f"{card.name} {card.bdf}, {power}"))
    if findings.cards_reason:
        rows.append(("cards", f"none ({findings.cards_reason})"))
    rows.append(("RAPL", ", ".join(findings.rapl) or f"none ({findings.rapl_reason})"))
    rows += [("tools", _named(findings.tools)), ("packages", _named(findings.packages))]
    return rows


def _gpu_line(gpu: GpuFindings) -> str:
    parts = [gpu.name, gpu.instrument or "no power reading"]
    parts.append("energy counter" if gpu.has_counter else "no energy counter")
    if gpu.limit_w is not None:
        parts.append(f"limit {gpu.limit_w:.0f} W")
    if gpu.n_mig_instances:
        parts.append(f"{gpu.n_mig_instances} MIG instances: power is that of the whole GPU")
    if gpu.problem:
        parts.append(gpu.problem)
    return ", ".join(parts)


def _named(items: dict[str, str | None]) -> str:
    there = ", ".join(f"{k} {v}" for k, v in items.items() if v is not None)
    absent = ", ".join(k for k, v in items.items() if v is None)
    return "; absent: ".join(part for part in (there or "none", absent) if part)


def _render_table(findings: Findings, console: Console) -> None:
    from rich.table import Table
    from rich.text import Text

    machine = Table(show_header=False, box=None, pad_edge=False)
    for topic, text in _rows(findings):
        machine.add_row(Text(topic, style="bold"), Text(text))
    abilities = Table(show_header=False, box=None, pad_edge=False)
    for item in findings.possible:
        mark = Text("yes", style="green") if item.possible else Text("no", style="red")
        abilities.add_row(mark, Text(item.name), Text(item.why, style="dim"))
    console.print(machine)
    console.print()
    console.print(abilities)

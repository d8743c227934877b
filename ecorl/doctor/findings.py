"""What the doctor finds: host, GPUs, cards, tools, packages, and what they make possible."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text


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
class FeedFindings:
    """A type of feed of carbon intensities.

    Attributes:
        type: as a config names it.
        possible: whether it can be used as things are here.
        why: the reason.
        packages: version of each Python package that it takes, or None.
        keys: variables of the environment that hold its key, and whether each is set; what they
            hold is not looked at.
    """

    type: str
    possible: bool
    why: str
    packages: dict[str, str | None]
    keys: dict[str, bool]


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
        feeds: the types of feeds of carbon intensities.
        configured_feeds: whether each feed of the config can be built; None without a config.
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
    feeds: tuple[FeedFindings, ...]
    configured_feeds: tuple[Capability, ...] | None


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
    for item in _judged(findings):
        line = f"{'yes' if item.possible else 'no '}  {item.name}: {item.why}"
        console.print(line, markup=False, highlight=False, soft_wrap=True)


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
    rows.append(("feeds", "no network was asked; this does: ecorl carbon now --config FILE"))
    if findings.configured_feeds == ():
        rows.append(("config", "no feed: accounting.intensity_g_per_kwh counts"))
    return rows


def _judged(findings: Findings) -> list[Capability]:
    """All that is answered by yes or no."""
    feeds = [Capability(f"carbon feed {f.type}", f.possible, f.why) for f in findings.feeds]
    return [*findings.possible, *feeds, *(findings.configured_feeds or ())]


def _gpu_line(gpu: GpuFindings) -> str:
    parts = [gpu.name or "no name", gpu.instrument or "no power reading"]
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
    machine = Table(show_header=False, box=None, pad_edge=False)
    for topic, text in _rows(findings):
        machine.add_row(Text(topic, style="bold"), Text(text))
    abilities = Table(show_header=False, box=None, pad_edge=False)
    for item in _judged(findings):
        mark = Text("yes", style="green") if item.possible else Text("no", style="red")
        abilities.add_row(mark, Text(item.name), Text(item.why, style="dim"))
    console.print(machine)
    console.print()
    console.print(abilities)

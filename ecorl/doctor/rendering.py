"""The findings on a terminal: a coloured table, or plain lines."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ecorl.doctor.findings import Capability, Findings, GpuFindings


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

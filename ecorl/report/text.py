"""The report on the terminal: rich tables there, plain aligned text elsewhere."""

from __future__ import annotations

from typing import Literal

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from ecorl.report.layout import Section, Table
from ecorl.report.model import Report
from ecorl.report.tables import sections

_PIPED_WIDTH = 180


def print_report(report: Report, console: Console) -> None:
    """Print verdict and tables; folded tables and plots are on the page alone.

    Args:
        report: what to print.
        console: where to; styles vanish by themselves when it is no terminal.
    """
    head = report.head
    console.rule(f"[bold]{escape(head.run_id)}[/bold]")
    facts = [head.algorithm, head.policy and f"policy {head.policy}"]
    facts += [None if head.seed is None else f"seed {head.seed}", ", ".join(head.devices)]
    console.print(escape(" | ".join(f for f in facts if f)), style="dim")
    for sentence in report.verdict:
        console.print(f"- {escape(sentence)}")
    for section in sections(report):
        _print_section(section, console)
    if report.missing:
        console.print("\n[bold]Missing[/bold]")
        for sentence in report.missing:
            console.print(f"- {escape(sentence)}")


def _print_section(section: Section, console: Console) -> None:
    console.print(f"\n[bold]{escape(section.title)}[/bold]")
    if section.lead:
        console.print(escape(section.lead), style="dim")
    # Piped text has no edge to keep to: a table is worth more unbroken.
    width = None if console.is_terminal else max(console.width, _PIPED_WIDTH)
    for table in section.tables:
        if not table.folded:
            console.print(_rich(table, ascii_only=not console.is_terminal), width=width)


def _rich(table: Table, *, ascii_only: bool) -> RichTable:
    made = RichTable(
        box=box.ASCII2 if ascii_only else box.SIMPLE_HEAD,
        title=escape(table.caption) or None,
        title_justify="left",
        title_style="italic",
    )
    for name, numeric in zip(table.columns, table.numeric, strict=True):
        justify: Literal["left", "right"] = "right" if numeric else "left"
        made.add_column(escape(name), justify=justify, overflow="fold")
    for row in table.rows:
        made.add_row(*(escape(cell) for cell in row))
    return made

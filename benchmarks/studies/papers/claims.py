"""Claims of papers as data: what they print, what follows from it, and both in figures and tables.

The claims lie in TOML files beside this, one table each, whose keys are the fields of `Claim`.
"""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, Literal, NamedTuple

from rich.console import Console
from rich.table import Table

from benchmarks.harness import Figure, FigureTable
from benchmarks.harness.command import default_path
from ecorl.bench.machine import describe_machine
from ecorl.errors import ConfigError
from ecorl.files import write_whole

FIGURES = FigureTable("papers")

Training = Literal["", "accumulation", "gears"]

_FUNCTIONS = {"abs": abs, "max": max, "sum": sum}
"""What a derivation may call beside what its source's module names."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One claim of a source.

    Attributes:
        id: of its figures: ``<benchmark>.<id>.printed`` and so on.
        text: what is claimed, with the place.
        unit: of the figures; ``1`` for a ratio or share.
        why: what the other figures are, and why they differ.
        printed: as printed; a pair for a range; None where no figure is printed.
        not_printed: what stands there in place of a figure.
        derived: what follows from the source's other printed figures; None where nothing does.
        simulated: the expression of what a simulator gives, over its systems; empty for those that
            take more than an expression, or that nothing simulates.
        source: whose it is, where a file has several sources.
        needs_training: what has to be trained to say anything of it: with gradient accumulation,
            or with gears; empty where nothing has.
        only_grids: recordings that it is about; empty: all.
        not_tested: why nothing of ecorl stands beside it; empty where something does.
    """

    id: str
    text: str
    unit: str
    why: str
    printed: float | tuple[float, float] | None = None
    not_printed: str = ""
    derived: float | None = None
    simulated: str = ""
    source: str = ""
    needs_training: Training = ""
    only_grids: tuple[str, ...] = ()
    not_tested: str = ""


def read_file(name: str) -> dict[str, Any]:
    """The tables of a TOML file of this folder."""
    return tomllib.loads((resources.files(__package__) / name).read_text("utf-8"))


def claim_of(
    entry: Mapping[str, Any], names: Mapping[str, Any], reasons: Mapping[str, str]
) -> Claim:
    """Make a claim of a table of a file.

    Args:
        entry: the table: fields of `Claim`, but ``derived`` is an expression, ``place`` goes behind
            the text, and ``printed_ratio`` holds both figures of a printed value.
        names: what the expression may name: the source's printed figures, and constants.
        reasons: what ``why`` may name in braces.
    """
    fields = {**entry, "why": entry["why"].format(**reasons)}
    if place := fields.pop("place", None):
        fields["text"] += f" ({place})"
    if ratio := fields.pop("printed_ratio", None):
        fields["printed"] = ratio[0] / ratio[1]
    for name, value in fields.items():
        if isinstance(value, list):
            fields[name] = tuple(value)
    if expression := fields.get("derived"):
        fields["derived"] = float(evaluate(expression, names))
    return Claim(**fields)


def evaluate(expression: str, names: Mapping[str, Any]) -> Any:
    """The value of an expression of a claim, which may name these and nothing else."""
    return eval(expression, {"__builtins__": _FUNCTIONS, **names})


def published(benchmark: str, claim: Claim, source: str) -> list[Figure]:
    """What a source prints for a claim, one figure or both ends of a range, and what follows.

    Args:
        benchmark: what the figures' ids begin with.
        claim: the claim.
        source: what to call the source.
    """
    printed: dict[str, float | None]
    words = {"benchmark": benchmark, "claim": claim, "source": source}
    if isinstance(claim.printed, tuple):
        printed = dict(zip(("printed_low", "printed_high"), claim.printed, strict=True))
    else:
        printed = {"printed": claim.printed}
    key = "{benchmark}.{claim.id}.{printed}"
    made = [FIGURES.figure(key, value, words=words, printed=end) for end, value in printed.items()]
    if claim.derived is not None:
        key = "{benchmark}.{claim.id}.derived"
        made.append(FIGURES.figure(key, claim.derived, words=words))
    return made


def with_unit(number: str, unit: str) -> str:
    """A number as a table shows it."""
    return number if unit == "1" else f"{number} {unit}"


def printed_words(claim: Claim, number: Callable[[float], str]) -> str:
    """The printed figure as a table shows it.

    Args:
        claim: the claim.
        number: writes a figure.
    """
    if claim.printed is None:
        return "no figure"
    if isinstance(claim.printed, tuple):
        return "{:g} to {:g}".format(*claim.printed)
    return with_unit(number(claim.printed), claim.unit)


class ClaimTable(NamedTuple):
    """A table of claims, for a terminal and as Markdown."""

    title: str
    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]

    def markdown(self) -> str:
        """The table as Markdown, without its title."""
        lines = (self.head, ["---"] * len(self.head), *self.rows)
        safe = [[cell.replace("|", "\\|") for cell in line] for line in lines]
        return "\n".join(f"| {' | '.join(line)} |" for line in safe)

    def terminal(self) -> Table:
        """The table for a terminal."""
        table = Table(*self.head, title=self.title, show_lines=True)
        for row in self.rows:
            table.add_row(*row)
        return table


def markdown(document: Sequence[str | ClaimTable]) -> str:
    """Paragraphs and tables as Markdown."""
    parts = [part if isinstance(part, str) else part.markdown() for part in document]
    return "\n\n".join(parts) + "\n"


def publish(
    name: str, document: Sequence[str | ClaimTable], options: argparse.Namespace, width: int
) -> None:
    """Print the tables of a document, and write all of it as Markdown beside the result.

    Args:
        name: of the benchmark.
        document: paragraphs and tables.
        options: those of the benchmark.
        width: of the tables on a terminal, characters.

    Raises:
        ConfigError: when the folder cannot be written.
    """
    console = Console(width=width)
    for part in document:
        if isinstance(part, ClaimTable):
            console.print(part.terminal())
    json = options.json or (None if options.quick else default_path(name, describe_machine().slug))
    if json is None:
        return
    path = json.with_suffix(".md")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, markdown(document))
    except OSError as error:
        raise ConfigError("--json", str(path), f"a place to write to ({error})") from error
    print(f"written: {path}")

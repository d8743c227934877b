"""Words and figures that the planning commands share."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console

from ecorl.cli.output import say
from ecorl.controllers.problem.table import GearTable
from ecorl.grid import Gas
from ecorl.report.render.lines import aligned
from ecorl.report.render.numbers import MISSING, figure, grams, share


def gas_text(gas: Gas) -> str:
    """What the grams are of, e.g. ``CO2e``.

    Args:
        gas: of the intensities.
    """
    return str(gas).removeprefix("g").partition("/")[0]


def emitted(value: float | None, gas: Gas) -> str:
    """Emissions with a unit of fitting size.

    Args:
        value: g; None: missing.
        gas: what the grams are of.
    """
    return grams(value, gas_text(gas))


def mass_scale(values: Iterable[float]) -> tuple[float, str]:
    """One unit for emissions that are shown together: its number in a gram, and its name.

    Args:
        values: g.
    """
    largest = max((abs(value) for value in values), default=0.0)
    for limit, factor, unit in ((1e4, 1.0, "g"), (1e7, 1e-3, "kg")):
        if largest < limit:
            return factor, unit
    return 1e-6, "t"


def percent(value: float | None) -> str:
    """A fraction in per cent, without a sign before what rounds to nothing.

    Args:
        value: the fraction; None: missing.
    """
    if value is None:
        return MISSING
    text = share(value)
    return text.removeprefix("-") if text == "-0.0 %" else text


def percents(ends: tuple[float, float] | None) -> str:
    """An interval in per cent.

    Args:
        ends: fractions; None: missing.
    """
    if ends is None:
        return MISSING
    return f"{percent(ends[0]).removesuffix(' %')} to {percent(ends[1])}"


def budget_text(tokens: float) -> str:
    """A number of tokens in words, e.g. ``4.62 billion tokens``.

    Args:
        tokens: their number.
    """
    for factor, word in ((1e12, "trillion "), (1e9, "billion "), (1e6, "million ")):
        if tokens >= factor:
            return f"{figure(tokens / factor)} {word}tokens"
    return f"{figure(tokens)} tokens"


def capped_note(low_share: float) -> str:
    """Says what static FP8 is under a cap on low precision.

    Args:
        low_share: largest share of the tokens in low precision, below 1.
    """
    return (
        f"Static FP8 trains {percent(low_share)} of the tokens in FP8, as many as "
        "carbon.control.low_share allows, and the rest in the fastest other gear."
    )


def counted(n: float) -> str:
    """A number of events, which a mean over starts need not make whole.

    Args:
        n: their number.
    """
    return f"{n:,.0f}" if n == round(n) else figure(n)


def workers_text(table: GearTable) -> str:
    """Widths, gears and provenance of a table, in one sentence.

    Args:
        table: of the training stage.
    """
    first, last = table.widths[0], table.widths[-1]
    n = f"{first}" if first == last else f"{first} to {last}"
    noun = "worker" if last == 1 else "workers"
    gears = " and ".join(table.gears) if len(table.gears) < 3 else ", ".join(table.gears)
    return f"Training stage: {n} {noun} in {gears} ({table.provenance}): {table.source}."


def show_table(
    rows: list[list[str]], console: Console, n_text: int = 1, more: str | None = None
) -> None:
    """Print a table with a blank line after it.

    Args:
        rows: cells, the heading first.
        console: where to.
        n_text: how many columns hold text.
        more: a line below the table.
    """
    for line in aligned(rows, text_columns=range(n_text)):
        say(line, console)
    if more is not None:
        say(more, console)
    console.print()

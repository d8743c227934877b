"""Words and figures that the planning commands share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike
from rich.console import Console

from ecorl.carbon.series import Series
from ecorl.cli.output import say
from ecorl.control import Gear
from ecorl.controllers.problem.table import FloatArray, GearTable, TrainingAction
from ecorl.grid import Gas
from ecorl.report.render.lines import aligned
from ecorl.report.render.numbers import MISSING, figure, grams, share

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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


_DAY_S = 86400.0

_DPI, _SIZE_IN = 120, (10.0, 5.6)
_COLOURS = {Gear.FP32: "#7a5195", Gear.FP16: "#ef8a62", Gear.BF16: "#4477aa", Gear.FP8: "#228833"}
_PAST, _AHEAD = "#888888", "#222222"
_ROOM = 1.22
"""Height of the axes over what they show, for the legend."""


@dataclass(frozen=True, slots=True, eq=False)
class ActionsOverTime:
    """What is drawn.

    Attributes:
        title: above both axes.
        unit: of the intensities.
        told: intensities that were told or recorded; None: nothing.
        expected: intensities that are expected; None: nothing.
        actions: begin of each epoch, s since 1970, and what is done in it, in the order of time.
        end_s: when training is over, s since 1970.
        deadline_s: the hard deadline, s since 1970.
        widest: number of workers that there are.
    """

    title: str
    unit: str
    told: Series | None
    expected: Series | None
    actions: Sequence[tuple[float, TrainingAction]]
    end_s: float
    deadline_s: float
    widest: int


def draw_actions(shown: ActionsOverTime, path: Path) -> None:
    """Write the picture; times are in UTC.

    Args:
        shown: what is drawn.
        path: the PNG.

    Raises:
        OSError: when it cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
    from matplotlib.figure import Figure

    figure = Figure(figsize=_SIZE_IN, layout="constrained")
    FigureCanvasAgg(figure)
    grid, work = figure.subplots(2, 1, sharex=True)
    figure.suptitle(shown.title, fontsize=10)
    told = (_AHEAD, "recorded") if shown.expected is None else (_PAST, "past")
    for series, colour, label in (
        (shown.told, *told),
        (shown.expected, _AHEAD, "expected (modelled)"),
    ):
        if series is not None:
            edges_s = np.linspace(series.start_s, series.end_s, len(series.values) + 1)
            values = np.append(series.values, series.values[-1:])
            grid.step(_dates(edges_s), values, where="post", color=colour, lw=1.0, label=label)
    grid.set_ylabel(shown.unit)
    grid.set_ylim(0.0, _ROOM * grid.get_ylim()[1])
    _draw_widths(work, shown)
    work.set_ylabel("workers")
    work.set_ylim(0.0, _ROOM * shown.widest)
    for axes in (grid, work):
        axes.axvline(_dates([shown.deadline_s])[0], color="#bb3333", lw=1.0, ls="--")
        axes.grid(visible=True, alpha=0.25)
    work.plot([], [], color="#bb3333", lw=1.0, ls="--", label="deadline")
    for axes in (grid, work):
        axes.legend(loc="upper right", fontsize=8, ncols=3)
    locator = AutoDateLocator(tz=UTC)  # type: ignore[no-untyped-call]
    work.xaxis.set_major_locator(locator)
    named = ConciseDateFormatter(locator, tz=UTC)  # type: ignore[no-untyped-call]
    work.xaxis.set_major_formatter(named)
    work.set_xlabel("UTC")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png", dpi=_DPI, metadata={"Software": None})


def _draw_widths(axes: Axes, shown: ActionsOverTime) -> None:
    """One filled step line a gear."""
    edges_s = [start_s for start_s, _ in shown.actions] + [shown.end_s]
    for gear in Gear:
        widths = [action.width if action.gear is gear else 0 for _, action in shown.actions]
        if any(widths):
            heights = np.array([*widths, 0], dtype=np.float64)
            axes.fill_between(
                _dates(edges_s), heights, step="post", color=_COLOURS[gear], alpha=0.75, lw=0.0,
                label=str(gear),
            )  # fmt: skip


def _dates(times_s: ArrayLike) -> FloatArray:
    """Times in days, as the axis counts them."""
    found: FloatArray = np.asarray(times_s, dtype=np.float64) / _DAY_S
    return found

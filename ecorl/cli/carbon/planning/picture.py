"""Draws the intensity, and below it width and gear over time, as a PNG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from ecorl.carbon.series import Series
from ecorl.control import Gear
from ecorl.controllers.problem.table import FloatArray, TrainingAction

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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

"""The picture of a run's decisions: lanes above the grid's intensity and the running energy."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from ecorl.control import SIMULATED, Gear
from ecorl.html.pages import COLOURS, INK, MUTED, PAPER, draw
from ecorl.records import Action
from ecorl.report.decisions.model import DecisionKind, RunCourse
from ecorl.report.render.lines import visible
from ecorl.report.training_stage.model import TrainingStageFacts
from ecorl.report.training_stage.words import OWN_GEAR
from ecorl.scheduler.words import action_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_GEARS_ALTERNATIVE = (
    "In which gear and with how many workers the training stage ran over the run time, when it was "
    "paused, and the intensity of the grid that decisions went by, in g/kWh."
)
_COLOURS = {
    str(Gear.FP32): COLOURS["reward"],
    str(Gear.FP16): COLOURS["reference"],
    str(Gear.BF16): COLOURS["training"],
    str(Gear.FP8): COLOURS["generation"],
}
_PAUSED = "paused"
_STRIP = 0.16
"""Height of the strip of gears as a share of the plot's."""


def gear_plot(facts: TrainingStageFacts | None) -> str | None:
    """Draw the bands at the foot of the intensity's line; None where there is too little to see.

    A band is as high as the training stage was wide.

    Args:
        facts: of the run; None where nobody told of a gear or a width.
    """
    if facts is None or len({(b.gear, b.width) for b in facts.course.bands}) < 2:
        return None
    course = facts.course
    known = [(t_s, g) for t_s, g in course.intensities if g is not None]
    widest = max((b.width or 1 for b in course.bands), default=1)

    def paint(figure: Figure, axes: list[Axes]) -> None:
        (ax,) = axes
        legend = _Legend()
        across = ax.get_xaxis_transform()
        for band in course.bands:
            height = _STRIP if band.is_pause else _STRIP * (band.width or 1) / widest
            ax.broken_barh(
                [(band.start_s, max(band.end_s - band.start_s, 0.0))],
                (0.0, height),
                transform=across,
                facecolor=COLOURS["idle"] if band.is_pause else gear_colour(band.gear),
                edgecolor=PAPER,
                linewidth=0.4,
                label=legend(_PAUSED if band.is_pause else band.gear or OWN_GEAR),
            )
        if known:
            end_s = max(course.bands[-1].end_s, known[-1][0])
            times_s, values = zip(*known, strict=True)
            ax.step(
                [*times_s, end_s], [*values, values[-1]], where="post", color=INK, linewidth=1.2
            )
            ax.set_ylabel(f"g/kWh ({course.provenance})")
            low, high = min(values), max(values)
            room = (high - low) or high or 1.0
            # Above the strip, which lies at the foot of the plot.
            ax.set_ylim(low - 0.35 * room, high + 0.08 * room)
            # No grid is below 0; the strip may lie there.
            ax.set_yticks([tick for tick in ax.get_yticks() if 0.0 <= tick <= high + 0.08 * room])
        else:
            ax.set_yticks([])
        ax.grid(visible=False, axis="x")
        wide = f"; height of a band: workers, up to {widest}" if widest > 1 else ""
        ax.set_xlabel(f"s since the run began{wide}")
        figure.legend(loc="outside upper left", ncols=6, handlelength=1, columnspacing=1.2)

    return draw("gears", _GEARS_ALTERNATIVE, 2.3, 1, paint)


def gear_colour(gear: str | None) -> str:
    """The colour of a gear.

    Args:
        gear: its name in the record; None: as the framework has it.
    """
    return _COLOURS.get((gear or "").removesuffix(SIMULATED), COLOURS["training"])


_ALTERNATIVE = (
    "Over the time of the run: where each role was placed, in which gear and with how many workers "
    "the training stage ran, when it was paused, the intensity of the grid, and the energy so far."
)
_PLACES = {
    Action.GPU: COLOURS["beside"],
    Action.CONCURRENT: COLOURS["reward"],
    Action.FPGA: COLOURS["critic"],
}
_LANE = 0.62
"""Height of a bar as a share of its lane's."""

_LANE_IN, _CURVE_IN = 0.36, 1.1
"""Heights of a lane and of a curve, inches."""

_NARROWEST = 0.025
"""Share of the axis from which a bar is wide enough for the number in it."""


class _Legend:
    """Names each colour once."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def __call__(self, name: str) -> str | None:
        if name in self._seen:
            return None
        self._seen.add(name)
        return visible(name)


def course_plot(course: RunCourse | None, path: str) -> str | None:
    """Draw the lanes, and below them what is known of the grid and of the energy.

    Args:
        course: of the run; None where fewer than two kinds of decisions changed anything.
        path: what the report calls the framework's devices.
    """
    if course is None:
        return None
    heights = [_LANE_IN * len(_lanes(course)) + 0.1]
    has_grid = any(g is not None for _, g in course.intensities)
    heights += [_CURVE_IN] * (has_grid + bool(course.energy))

    def paint(figure: Figure, axes: list[Axes]) -> None:
        legend = _Legend()
        lower = iter(axes[1:])
        _paint_lanes(axes[0], course, path, legend)
        if has_grid:
            _paint_intensity(next(lower), course)
        if course.energy:
            _paint_energy(next(lower), course, legend)
        for ax in axes:
            _paint_gaps(ax, course, legend)
            ax.set_xlim(0.0, course.end_s)
        axes[-1].set_xlabel("wall clock since the run began, s")
        figure.legend(loc="outside upper left", ncols=6, handlelength=1, columnspacing=1.2)

    return draw("course", _ALTERNATIVE, 0.85 + sum(heights), len(heights), paint, heights=heights)


def _lanes(course: RunCourse) -> list[str]:
    """Names of the lanes, from top to bottom."""
    named = list(course.roles)
    named += ["gear"] * (DecisionKind.GEAR in course.kinds)
    named += ["workers"] * (DecisionKind.WIDTH in course.kinds)
    return named


def _paint_lanes(ax: Axes, course: RunCourse, path: str, legend: _Legend) -> None:
    lanes = _lanes(course)
    bars: dict[tuple[str, str, str], list[tuple[float, float]]] = defaultdict(list)
    for placed in course.placements:
        if placed.action is None:
            key = (placed.role, "in turn", MUTED)
        else:
            key = (placed.role, action_name(placed.action, path), _PLACES[placed.action])
        bars[key].append((placed.start_s, placed.end_s - placed.start_s))
    for band in course.bands:
        if not band.is_pause and "gear" in lanes:
            key = ("gear", band.gear or OWN_GEAR, gear_colour(band.gear))
            bars[key].append((band.start_s, band.end_s - band.start_s))
    for (lane, name, colour), spans in bars.items():
        low = lanes.index(lane) - _LANE / 2
        label = legend(name)
        ax.broken_barh(spans, (low, _LANE), facecolor=colour, linewidth=0, label=label)
    if "workers" in lanes:
        _paint_workers(ax, course, lanes.index("workers"))
    ax.set_yticks(range(len(lanes)), [visible(lane) for lane in lanes])
    ax.set_ylim(len(lanes) - 0.5, -0.5)
    ax.grid(visible=False, axis="y")


def _paint_workers(ax: Axes, course: RunCourse, lane: int) -> None:
    """A bar for each time with one number of workers, as high as there were many."""
    known = [band for band in course.bands if band.width]
    widest = max(band.width or 1 for band in known)
    spans: list[tuple[float, float, int]] = []
    for band in known:
        width = band.width or 1
        if spans and spans[-1][2] == width and not _is_apart(course, spans[-1][1], band.start_s):
            spans[-1] = (spans[-1][0], band.end_s, width)
        else:
            spans.append((band.start_s, band.end_s, width))
    for start_s, end_s, width in spans:
        height = _LANE * (0.4 + 0.6 * width / widest)
        ax.broken_barh(
            [(start_s, end_s - start_s)],
            (lane + _LANE / 2 - height, height),
            facecolor=COLOURS["reference"],
            linewidth=0,
        )
        if end_s - start_s >= _NARROWEST * course.end_s:
            middle = (start_s + end_s) / 2
            centre = lane + _LANE / 2 - height / 2
            ax.text(middle, centre, str(width), color=PAPER, ha="center", va="center", fontsize=8)


def _is_apart(course: RunCourse, end_s: float, start_s: float) -> bool:
    """Whether a pause, or the end of an attempt, lies between two times."""
    paused = any(b.is_pause and end_s <= b.start_s < start_s for b in course.bands)
    return paused or any(end_s <= ended_s <= start_s for _, ended_s in course.attempts)


def _paint_intensity(ax: Axes, course: RunCourse) -> None:
    times_s = [t_s for t_s, _ in course.intensities]
    values = [float("nan") if g is None else g for _, g in course.intensities]
    ends_s = [*times_s[1:], course.end_s]
    # An unknown value breaks the line instead of touching the axis.
    ax.stairs(values, [*times_s, ends_s[-1]], baseline=None, color=INK, linewidth=1.2)
    ax.set_ylim(bottom=0.0)
    ax.set_ylabel(f"g{course.gas}/kWh\n({course.intensity_provenance})")
    ax.locator_params(axis="y", nbins=4)


def _paint_energy(ax: Axes, course: RunCourse, legend: _Legend) -> None:
    curves = (COLOURS["training"], COLOURS["generation"], COLOURS["evaluation"], COLOURS["critic"])
    several = len(course.energy) > 1
    for own, colour in zip(course.energy, curves, strict=False):
        times_s, joules = zip(*own.points, strict=True)
        name = f"energy so far, {own.provenance}"
        label = legend(name) if several else None
        ax.plot(times_s, joules, color=colour, linewidth=1.4, label=label)
    told = ["at least"] * any(own.at_least for own in course.energy)
    told += [] if several else [str(course.energy[0].provenance)]
    ax.set_ylim(bottom=0.0)
    ax.set_ylabel("energy so far, J" + (f"\n({', '.join(told)})" if told else ""))
    ax.locator_params(axis="y", nbins=4)


def _paint_gaps(ax: Axes, course: RunCourse, legend: _Legend) -> None:
    """Shade the pauses, and the time between two attempts."""
    for band in course.bands:
        if band.is_pause:
            ax.axvspan(
                band.start_s, band.end_s, facecolor=COLOURS["idle"], alpha=0.35, linewidth=0,
                label=legend("paused"),
            )  # fmt: skip
    for (_, end_s), (start_s, _) in zip(course.attempts, course.attempts[1:], strict=False):
        if start_s > end_s:
            ax.axvspan(
                end_s, start_s, facecolor="none", edgecolor=MUTED, alpha=0.5, hatch="....",
                linewidth=0, label=legend("between attempts"),
            )  # fmt: skip

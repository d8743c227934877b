"""The plots of the page, as inline SVG whose colours are CSS variables of the page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ecorl.html.pages import COLOURS, INK, PAPER, draw
from ecorl.report.energy.causes import CAUSES
from ecorl.report.energy.model import Cause, EnergyTotals
from ecorl.report.model import WAIT, Bar, BarrierSummary, PowerTrace, Report, Timeline
from ecorl.report.render.course_plots import course_plot, gear_plot
from ecorl.report.render.lines import visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS: dict[str, str] = COLOURS | {
    Cause.SCORING: COLOURS["reward"],
    Cause.BARRIER_WAIT: COLOURS["wait"],
    Cause.BESIDE_STAGES: COLOURS["beside"],
    # No other cause has the colour of that stage.
    Cause.PAUSED: COLOURS["critic"],
}
_CURVES = tuple(_COLOURS[k] for k in ("generation", "training", "reference", "critic"))
_MAX_TRACES = 6
_FIRST_METRICS = ("reward", "kl", "correct", "accuracy", "loss")
_ALTERNATIVES = {
    "energy": "Energy by cause in joules, one stacked bar per column of the table below.",
    "timeline": "When each device ran which stage in some iterations, in seconds.",
    "curves": "Metrics of the trainer by iteration, one panel each; the table below has the ends.",
    "waits": "How often the training thread waited how long at the completion barrier.",
    "power": "Power of the devices over the run time in watts, one panel per provenance.",
}
"""What each plot shows, for who cannot see it."""


def plots(report: Report) -> dict[str, str]:
    """Inline SVG by name; a plot without data is left out."""
    drawn = {
        "energy": _energy(report.spending.shown),
        "timeline": _timeline(report.timeline),
        "curves": _curves(report),
        "waits": _waits(report.barriers),
        "power": _power(report.power),
        "gears": gear_plot(report.training_stage),
        "course": course_plot(report.course, report.head.path),
    }
    return {name: svg for name, svg in drawn.items() if svg is not None}


def _draw(
    name: str, height_in: float, n_axes: int, paint: Callable[[Figure, list[Axes]], None]
) -> str:
    return draw(name, _ALTERNATIVES[name], height_in, n_axes, paint)


def _bar_style(simulated: bool) -> dict[str, Any]:
    style: dict[str, Any] = {"linewidth": 0.6, "edgecolor": PAPER}
    return style | {"hatch": "////"} if simulated else style


def _energy(columns: Sequence[EnergyTotals]) -> str | None:
    """Draw a stacked bar per column; a simulated card has a separate one."""
    shown = [c for c in columns if c.energy_j > 0]
    if not shown:
        return None

    def paint(figure: Figure, axes: list[Axes]) -> None:
        (ax,) = axes
        names = [_column_name(c) for c in shown]
        left = [0.0] * len(shown)
        for cause in CAUSES:
            values = [c.by_cause.get(cause, 0.0) for c in shown]
            if not any(values):
                continue
            ax.barh(
                names,
                values,
                left=left,
                height=0.62,
                color=_COLOURS[cause],
                label=cause,
                edgecolor=PAPER,
                linewidth=1,
            )
            left = [a + b for a, b in zip(left, values, strict=True)]
        ax.invert_yaxis()
        ax.grid(visible=False, axis="y")
        ax.set_xlabel("energy, J")
        figure.legend(loc="outside upper left", ncols=7, handlelength=1, columnspacing=1.2)

    return _draw("energy", 0.95 + 0.42 * len(shown), 1, paint)


def _column_name(c: EnergyTotals) -> str:
    return f"{c.heading}, at least" if c.at_least else c.heading


def _timeline(timeline: Timeline) -> str | None:
    if not timeline.bars:
        return None
    lanes = list(dict.fromkeys(b.lane for b in timeline.bars))
    rows = {lane: _rows_of([b for b in timeline.bars if b.lane == lane]) for lane in lanes}

    def paint(figure: Figure, axes: list[Axes]) -> None:
        (ax,) = axes
        seen: set[str] = set()
        for lane, (n_rows, placed) in rows.items():
            height = 0.7 / n_rows
            for bar, row in placed:
                name = "wait at the barrier" if bar.kind == WAIT else bar.label
                ax.barh(
                    lanes.index(lane) - 0.35 + (row + 0.5) * height,
                    bar.end_s - bar.start_s,
                    left=bar.start_s,
                    height=height,
                    color=_COLOURS[bar.kind],
                    label=None if bar.kind in seen else name,
                    **_bar_style(bar.simulated),
                )
                seen.add(bar.kind)
        ax.set_yticks(range(len(lanes)), list(map(visible, lanes)))
        ax.invert_yaxis()
        ax.grid(visible=False, axis="y")
        simulated = any(b.simulated for b in timeline.bars)
        hatch = "; hatched: a simulated card, by the simulation's time" if simulated else ""
        ax.set_xlabel(f"time, s{hatch}\n{_which(timeline)}")
        figure.legend(loc="outside upper left", ncols=6, handlelength=1, columnspacing=1.2)

    return _draw("timeline", 1.2 + 0.42 * len(lanes), 1, paint)


def _which(timeline: Timeline) -> str:
    """Say which iterations are drawn, and why."""
    first, last = timeline.iterations[0], timeline.iterations[-1]
    told = f"iteration {last}" if first == last else f"iterations {first} to {last}"
    worked = ", ".join(map(str, timeline.offloaded)) or "none"
    if timeline.are_last:
        return f"{told}, the last of the run; the card worked in {worked}"
    why = f"the last of the run in which the card worked is {timeline.offloaded[-1]}"
    return f"{told} of attempt {timeline.attempt}: {why}"


def _rows_of(bars: Sequence[Bar]) -> tuple[int, list[tuple[Bar, int]]]:
    """Bars of one lane with a row each, so that none hides another; and the number of rows."""
    ends: list[float] = []
    placed = []
    for bar in sorted(bars, key=lambda b: b.start_s):
        row = next((i for i, end in enumerate(ends) if end <= bar.start_s + 1e-9), len(ends))
        if row == len(ends):
            ends.append(bar.end_s)
        ends[row] = bar.end_s
        placed.append((bar, row))
    return len(ends), placed


def _curves(report: Report) -> str | None:
    """Reward, KL, correctness and loss by iteration, one small panel each."""
    named = [
        n for n in _FIRST_METRICS if any(r.value is not None for r in report.metrics.get(n, ()))
    ]
    named = named[:4]
    if not named:
        return None

    def paint(figure: Figure, axes: list[Axes]) -> None:
        for ax, name, colour in zip(axes, named, _CURVES, strict=False):
            rows = report.metrics[name]
            x = [r.iteration for r in rows]
            # A missing value breaks the line instead of touching the axis.
            y = [float("nan") if r.value is None else r.value for r in rows]
            ax.plot(x, y, color=colour, linewidth=1.5, marker="o" if len(x) < 12 else None, ms=3)
            ax.set_title(name)
            ax.set_xlabel("iteration")
            ax.locator_params(axis="x", integer=True, nbins=4)

    return _draw("curves", 2.1, len(named), paint)


def _waits(barriers: BarrierSummary) -> str | None:
    waits = barriers.waits_s
    if len(waits) < 2 or max(waits) <= 0:
        return None

    def paint(figure: Figure, axes: list[Axes]) -> None:
        (ax,) = axes
        bins = min(30, max(8, len(waits) // 4))
        ax.hist(waits, bins=bins, color=_COLOURS[WAIT], edgecolor=PAPER, linewidth=0.8)
        for value, name in ((barriers.p50_s, "p50"), (barriers.p95_s, "p95")):
            if value is not None:
                ax.axvline(value, color=INK, linewidth=1, linestyle="--")
                ax.annotate(
                    name,
                    (value, 1),
                    xycoords=("data", "axes fraction"),
                    va="top",
                    fontsize=8,
                    xytext=(4, 0),
                    textcoords="offset points",
                )
        ax.grid(visible=False, axis="x")
        ax.set_xlabel("wait at the completion barrier, s")
        ax.set_ylabel("waits")

    return _draw("waits", 1.9, 1, paint)


def _power(traces: Sequence[PowerTrace]) -> str | None:
    """Power over the run, one panel per provenance so that none share an axis."""
    provenances = list(dict.fromkeys(t.provenance for t in traces if len(t.points) > 1))
    if not provenances:
        return None

    def paint(figure: Figure, axes: list[Axes]) -> None:
        for ax, provenance in zip(axes, provenances, strict=True):
            own = [t for t in traces if t.provenance is provenance and len(t.points) > 1]
            for trace, colour in zip(own[:_MAX_TRACES], _CURVES * 2, strict=False):
                t, mean, low, high = zip(*trace.points, strict=True)
                ax.fill_between(t, low, high, color=colour, alpha=0.18, linewidth=0)
                ax.plot(t, mean, color=colour, linewidth=1.3, label=visible(trace.device_id))
            more = len(own) - _MAX_TRACES
            ax.set_title(
                f"{provenance}: mean, min to max"
                + (f" ({more} more devices not drawn)" if more > 0 else "")
            )
            ax.set_ylim(bottom=0)
            ax.set_xlabel("run time, s")
            ax.set_ylabel("power, W")
            ax.legend(loc="lower right", ncols=3, handlelength=1)

    return _draw("power", 2.2, len(provenances), paint)

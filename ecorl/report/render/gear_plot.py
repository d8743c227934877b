"""The intensity over a run, and beside it the gear and width in which the training stage ran."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ecorl.control import SIMULATED, Gear
from ecorl.html.pages import COLOURS, INK, PAPER, draw
from ecorl.report.render.lines import visible
from ecorl.report.training_stage.model import StageBand, TrainingStageFacts
from ecorl.report.training_stage.words import OWN_GEAR

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ALTERNATIVE = (
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
        seen: set[str] = set()
        across = ax.get_xaxis_transform()
        for band in course.bands:
            name = _name(band)
            height = _STRIP if band.is_pause else _STRIP * (band.width or 1) / widest
            ax.broken_barh(
                [(band.start_s, max(band.end_s - band.start_s, 0.0))],
                (0.0, height),
                transform=across,
                facecolor=COLOURS["idle"] if band.is_pause else gear_colour(band.gear),
                edgecolor=PAPER,
                linewidth=0.4,
                label=None if name in seen else visible(name),
            )
            seen.add(name)
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

    return draw("gears", _ALTERNATIVE, 2.3, 1, paint)


def _name(band: StageBand) -> str:
    return _PAUSED if band.is_pause else band.gear or OWN_GEAR


def gear_colour(gear: str | None) -> str:
    """The colour of a gear.

    Args:
        gear: its name in the record; None: as the framework has it.
    """
    return _COLOURS.get((gear or "").removesuffix(SIMULATED), COLOURS["training"])

"""Templates, style and plots that all pages share; plots are inline SVG in the page's colours.

Each plot is drawn with stand-in colours that no palette uses, which are then replaced by
``var(--...)``: so one drawing serves the light and the dark scheme.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from importlib import resources
from typing import TYPE_CHECKING, Any

import jinja2

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_TEMPLATES = "templates"
"""Folder of a package's templates; what all pages share lies in that of this one."""

INK, MUTED, GRID, PAPER = "#010101", "#020202", "#030303", "#040404"
COLOURS = {
    "generation": "#010001",
    "reward": "#010002",
    "reference": "#010003",
    "critic": "#010004",
    "training": "#010005",
    "superseded": "#010006",
    "wait": "#010007",
    "idle": "#010008",
    "beside": "#010009",
    "evaluation": "#01000a",
}
"""Stand-ins by the name of the style's variable."""

_VARIABLES = {INK: "ink", MUTED: "muted", GRID: "line", PAPER: "paper"} | {
    colour: name for name, colour in COLOURS.items()
}
_WIDTH_IN = 7.8
_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "ecorl",
    "font.family": "sans-serif",
    "font.size": 8.5,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.edgecolor": GRID,
    "axes.labelcolor": MUTED,
    "axes.titlecolor": INK,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": INK,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "text.color": INK,
    "text.parse_math": False,
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
    "legend.frameon": False,
    "legend.fontsize": 8,
    "hatch.linewidth": 0.7,
}


def render(
    package: str, template: str, *, finalize: Callable[[Any], Any] | None = None, **values: Any
) -> str:
    """Render a whole page as text: no script, no font, no picture from elsewhere.

    Args:
        package: the package in whose folder ``templates`` the template lies.
        template: name of its file.
        finalize: what every value passes on its way into the page.
        values: what the template names, besides the style.
    """
    own, shared = (resources.files(name) / _TEMPLATES for name in (package, "ecorl.html"))

    def read(name: str) -> str:
        place = own if (own / name).is_file() else shared
        return (place / name).read_text(encoding="utf-8")

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(read),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(style=read("style.css"), **values)


def draw(
    name: str,
    label: str,
    height_in: float,
    n_axes: int,
    paint: Callable[[Figure, list[Axes]], None],
    *,
    heights: Sequence[float] = (),
) -> str:
    """Run ``paint`` on fresh axes side by side and return the SVG, ready to stand in a page.

    Args:
        name: of the plot, unique on its page.
        label: what it shows, for who cannot see it.
        height_in: its height, inches.
        n_axes: how many axes.
        paint: draws, in the stand-in colours.
        heights: of axes that stand above each other instead, in proportion; they share their x.
    """
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure as NewFigure

    with mpl.rc_context(_STYLE):
        figure = NewFigure(figsize=(_WIDTH_IN, height_in), layout="constrained")
        FigureCanvasSVG(figure)
        if heights:
            rows = figure.subplots(n_axes, 1, squeeze=False, sharex=True, height_ratios=heights)
            axes = list(rows[:, 0])
        else:
            axes = list(figure.subplots(1, n_axes, squeeze=False)[0])
        paint(figure, axes)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None})
    return _inline(name, label, out.getvalue())


def _inline(name: str, label: str, svg: str) -> str:
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    svg = re.sub(r'\s+xmlns(:\w+)?="[^"]*"', "", svg).replace("xlink:href", "href")
    # Ids are unique within a plot only.
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', svg)
    svg = re.sub(r'href="#', f'href="#{name}-', svg)
    svg = re.sub(r"url\(#", f"url(#{name}-", svg)
    for size in ("width", "height"):
        svg = re.sub(rf'(<svg[^>]*?) {size}="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r"'DejaVu Sans'[^;\"]*sans-serif", "inherit", svg)
    for colour, variable in _VARIABLES.items():
        svg = svg.replace(colour, f"var(--{variable})")
    return svg.replace("<svg", f'<svg class="plot" role="img" aria-label="{label}"', 1)

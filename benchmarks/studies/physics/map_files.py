"""The break-even map as files: all of it as JSON, and as a picture of the ratios of one row."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from benchmarks.studies.physics.map import SIDES, Joules, Side, params_m, params_words
from benchmarks.studies.physics.passes import (
    ACCOUNTINGS,
    ALWAYS,
    ANYWAY,
    BF16,
    HUNDREDTH,
    PRECISIONS,
    TENTH,
    ChargingRule,
)
from benchmarks.studies.physics.ranges import Ends, RangedMap
from benchmarks.studies.physics.tables import WORDS, short, short_range
from ecorl.devices import DeviceProfile, cheapest, dearest
from ecorl.devices.gpu_pass import streaming_w
from ecorl.files import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import QuadMesh

PANELS: tuple[tuple[ChargingRule, float], ...] = (
    (ANYWAY, 0.5),
    (ALWAYS, 0.1),
    (TENTH, 0.5),
    (HUNDREDTH, 0.5),
)
"""Accounting and MFU of each column."""

_TITLES: dict[Side, str] = {
    "ours": "our kernels, cycle model",
    "ideal": "ideal HLS design, 300 MHz",
    "bound": "bound of the silicon, 775 MHz",
}
LEVELS = (1e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 1e3)
"""Where a colour ends: five below 1 and five above."""

_DPI = 100
_COLOURS = "PuOr"
"""Orange: the GPU wins; purple: the card. Told apart with every kind of colour blindness; the
numbers stand in the cells as well, with their intervals, and a frame around those above 1: whole
where both ends of the interval are, dashed where one end is."""


def draw(ranged: RangedMap, gpu: DeviceProfile, path: Path) -> None:
    """Write the picture as PNG.

    Args:
        ranged: the map with its intervals; columns whose MFU it does not span are left out.
        gpu: profile of the H100 that it was computed with.
        path: where to.

    Raises:
        OSError: when it cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    found = ranged.found
    panels = [(a, mfu) for a, mfu in PANELS if mfu in found.axes.mfus]
    figure = Figure(figsize=(4.6 * len(panels) + 1.2, 12.4), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(len(SIDES), len(panels), squeeze=False, sharex=True, sharey=True)
    image = None
    for side, line in zip(SIDES, grid, strict=True):
        for (accounting, mfu), axes in zip(panels, line, strict=True):
            image = _panel(axes, *ranged.one_row(side, accounting, BF16, mfu))
            who = accounting.title.replace("dedicated", "GPU dedicated")
            at = f"{100 * mfu:.0f} % MFU{_scoring(ranged, mfu)}"
            axes.set_title(f"{_TITLES[side]}\n{who}, {at}", fontsize=10)
        line[0].set_ylabel("parameters of the reward model")
        line[0].set_yticks(range(len(found.axes.sizes)), map(params_words, found.axes.sizes))
    for axes in grid[-1]:
        axes.set_xlabel("tokens of the row")
        axes.set_xticks(range(len(found.axes.tokens)), [f"{t:,}" for t in found.axes.tokens],
                        rotation=45, fontsize=8)  # fmt: skip
    assert image is not None  # there is a panel
    bar = figure.colorbar(image, ax=grid, fraction=0.02, ticks=LEVELS[1:-1], spacing="uniform")
    bar.ax.set_yticklabels([f"{level:g}" for level in LEVELS[1:-1]])
    figure.suptitle(_title(gpu), fontsize=13)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png", dpi=_DPI, metadata={"Software": None},
                   pil_kwargs={"optimize": True})  # fmt: skip


def _title(gpu: DeviceProfile) -> str:
    low, high = cheapest(gpu), dearest(gpu)
    title: str = WORDS["picture_title"]
    return title.format(
        full_w=gpu.value("active_w"),
        memory_w=streaming_w(gpu),
        memory_from_w=streaming_w(low),
        memory_to_w=streaming_w(high),
        idle_w=gpu.value("idle_w"),
        idle_from_w=low.value("idle_w"),
        idle_to_w=high.value("idle_w"),
    )


def _scoring(ranged: RangedMap, mfu: float) -> str:
    """The MFUs that the panel's stands for, where it is that of scoring."""
    mfus = ranged.scoring_mfus
    if mfu not in mfus or len(mfus) == 1:
        return ""
    return f" ({100 * mfus[0]:.0f} to {100 * mfus[-1]:.0f} %)"


def _panel(
    axes: Axes,
    ratios: npt.NDArray[np.float64],
    lows: npt.NDArray[np.float64],
    highs: npt.NDArray[np.float64],
) -> QuadMesh:
    import matplotlib as mpl
    from matplotlib.colors import BoundaryNorm
    from matplotlib.patches import Rectangle

    colours = mpl.colormaps[_COLOURS]
    edges = [np.arange(n + 1) - 0.5 for n in (ratios.shape[1], ratios.shape[0])]
    image = axes.pcolormesh(*edges, ratios, cmap=colours, norm=BoundaryNorm(LEVELS, colours.N))
    for (i, j), ratio in np.ndenumerate(ratios):
        low, high = float(lows[i, j]), float(highs[i, j])
        wins, always = high > 1.0, low > 1.0
        colour = "white" if ratio < LEVELS[2] or ratio > LEVELS[-3] else "black"
        weight = "bold" if ratio > 1.0 else "normal"
        axes.text(j, i + 0.02, short(float(ratio)), ha="center", va="bottom", fontsize=8.5,
                  color=colour, weight=weight)  # fmt: skip
        axes.text(j, i - 0.06, short_range(Ends(low, high)), ha="center", va="top", fontsize=6,
                  color=colour)  # fmt: skip
        if wins:
            frame = Rectangle((j - 0.46, i - 0.46), 0.92, 0.92, fill=False, linewidth=1.3,
                              linestyle="solid" if always else (0, (2, 2)))  # fmt: skip
            axes.add_patch(frame)
    axes.tick_params(length=0)
    return image


# ---------------------------------------------------------------- JSON

_MJ = 1e3


def as_data(ranged: RangedMap) -> dict[str, object]:
    """Convert the map to plain data for JSON: axes, then nested lists; an unknown cell is null.

    Args:
        ranged: the map with its intervals.
    """
    found = ranged.found
    a, ends = found.axes, {side: ranged.ratio_ends(side) for side in SIDES}
    return {
        "provenance": "modelled",
        "unit": "mJ/token; ratio: tokens/J of the card over tokens/J of the GPU; ratio_low and "
        "ratio_high: the least and the most by the ends of the GPU's figures, the MFU aside",
        "order": ["size", "rows", "tokens", "precision", "mfu", "accounting"],
        "axes": {
            "size": list(a.sizes),
            "params_m": [round(params_m(size), 1) for size in a.sizes],
            "rows": list(a.rows),
            "tokens": list(a.tokens),
            "precision": [p.name for p in PRECISIONS],
            "mfu": list(a.mfus),
            "accounting": [one.key for one in ACCOUNTINGS],
        },
        "gpu_mj_per_token": _nested(found.gpu_j * _MJ),
        "card_mj_per_token": {s: _nested(found.card_j[s] * _MJ) for s in SIDES},
        "ratio": {s: _nested(found.ratio(s)) for s in SIDES},
        "ratio_low": {s: _nested(ends[s][0]) for s in SIDES},
        "ratio_high": {s: _nested(ends[s][1]) for s in SIDES},
        "gpu_rules": found.gpu_rules.tolist(),
        "card_rules": {s: found.card_rules[s].tolist() for s in SIDES},
        "card_parts": found.card_parts.tolist(),
    }


def write_map(ranged: RangedMap, path: Path) -> None:
    """Write the map as compact JSON; the file is whole or not there.

    Args:
        ranged: the map with its intervals.
        path: the file; its folder is made if need be.

    Raises:
        OSError: when the folder cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(as_data(ranged), allow_nan=False, separators=(",", ":"))
    write_whole(path, text.replace("]],[[", "]],\n[[") + "\n")


def _nested(values: Joules) -> object:
    """Nested lists of three significant digits; None for NaN."""
    if values.ndim == 0:
        return None if np.isnan(values) else float(f"{float(values):.3g}")
    parts: Iterable[Joules] = values
    return [_nested(np.asarray(part)) for part in parts]

"""The plots of the page: tokens per joule, where the joules went, and quality over joules.

Panels side by side keep figures of two provenances apart: this machine's alone, and those with a
simulated card, which are modelled throughout.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ecorl.bench.tokens_per_joule.reading.model import RunFigures
from ecorl.bench.tokens_per_joule.result import ArmEntry, BenchResult
from ecorl.bench.tokens_per_joule.summary import (
    TOKENS_PER_J,
    WITH_CARD,
    Getter,
    arms_with_card,
    energy_provenance,
    figure_of,
    grouped_arms,
    has_card,
    is_simulating,
    over_seeds,
)
from ecorl.html.pages import COLOURS, INK, MUTED, PAPER, draw

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ARM_COLOURS = tuple(
    COLOURS[name]
    for name in ("generation", "reward", "training", "reference", "critic", "evaluation", "wait")
)
_CAUSES = {
    "generation": "generation",
    "scoring": "reward",
    "training": "training",
    "beside stages": "beside",
    "barrier wait": "wait",
    "idle": "idle",
}
"""Causes in the order in which they are stacked, with their colours."""

_WITH_CARD = "with the card (modelled)"
_HATCHED = "hatched: this host computed the simulation of the card"
_LEGEND_IN = 0.55
"""Height that a legend of two rows takes below its axes, inches."""

_LABELS = {
    "tokens": "Output tokens per joule of each arm, the median over seeds, its interval and each "
    "run as a dot; the table below has the figures.",
    "energy": "Millijoules for each output token by what they were drawn for, one bar an arm.",
    "quality": "Held-out reward over the joules drawn up to each evaluation, one line an arm.",
}
"""What each plot shows, for who cannot see it."""


def plots(result: BenchResult) -> dict[str, str]:
    """Draw what there is to draw, as inline SVG by name.

    Args:
        result: of the benchmark.
    """
    drawn = {"tokens": _tokens(result), "energy": _energy(result), "quality": _quality(result)}
    return {name: svg for name, svg in drawn.items() if svg is not None}


class _Panel:
    """One pair of axes: a title, its arms, and what to take from a run of them."""

    def __init__(self, title: str, arms: Sequence[ArmEntry], take: Getter) -> None:
        self.title, self.arms, self.take = title, list(arms), take


def _panels(result: BenchResult, machine: Getter, with_card: Getter) -> list[_Panel]:
    """A panel for each provenance of the machine's joules, then one with the simulated card."""
    panels = []
    for provenance, arms in grouped_arms(result):
        known = [a for a in arms if over_seeds(result, a.name, machine) is not None]
        if known and provenance is not None:
            panels.append(_Panel(f"this machine ({provenance})", known, machine))
    own = [a for a in arms_with_card(result) if over_seeds(result, a.name, with_card) is not None]
    if own:
        panels.append(_Panel(_WITH_CARD, own, with_card))
    return panels


def _is_hatched(result: BenchResult, arm: ArmEntry, panel: _Panel) -> bool:
    return panel.take is TOKENS_PER_J and is_simulating(result, arm)


def _colour(result: BenchResult, arm: ArmEntry) -> str:
    placements = list(dict.fromkeys(a.placement for a in result.arms))
    return _ARM_COLOURS[placements.index(arm.placement) % len(_ARM_COLOURS)]


def _height(panels: Sequence[_Panel]) -> float:
    return 1.0 + 0.3 * max(len(panel.arms) for panel in panels)


# ---------------------------------------------------------------- tokens per joule


def _tokens(result: BenchResult) -> str | None:
    panels = _panels(result, TOKENS_PER_J, WITH_CARD)
    if not panels:
        return None

    def paint(figure: Figure, axes: list[Axes]) -> None:
        for ax, panel in zip(axes, panels, strict=True):
            for i, arm in enumerate(panel.arms):
                found = over_seeds(result, arm.name, panel.take)
                if found is None:
                    continue
                hatch = "////" if _is_hatched(result, arm, panel) else None
                ax.barh(
                    i, found.median, height=0.66, color=_colour(result, arm), alpha=0.85,
                    hatch=hatch, edgecolor=PAPER, linewidth=0.6,
                )  # fmt: skip
                if found.interval is not None:
                    ax.hlines(i, *found.interval, color=INK, linewidth=1.1)
                ax.scatter(found.values, [i] * found.n, s=9, color=INK, zorder=3)
            _name_rows(ax, panel)
            ax.set_xlabel("output tokens for a joule")
        figure.supxlabel(_told_of_hatches(result, panels), fontsize=8, color=MUTED)

    return draw("tokens", _LABELS["tokens"], _height(panels), len(panels), paint)


def _name_rows(ax: Axes, panel: _Panel) -> None:
    ax.set_yticks(range(len(panel.arms)), [arm.name for arm in panel.arms])
    ax.invert_yaxis()
    ax.set_xlim(left=0)
    ax.grid(visible=False, axis="y")
    ax.set_title(panel.title)


def _told_of_hatches(result: BenchResult, panels: Sequence[_Panel]) -> str:
    told = "bar: median; line: spread over the seeds; dot: a run"
    hatched = any(_is_hatched(result, arm, panel) for panel in panels for arm in panel.arms)
    return f"{told}; {_HATCHED}" if hatched else told


# ---------------------------------------------------------------- joules


def _energy(result: BenchResult) -> str | None:
    machine = figure_of("machine.energy_j")
    panels = _panels(result, machine, figure_of("card.both_j"))
    if not panels:
        return None

    height_in = _height(panels) + _LEGEND_IN

    def paint(figure: Figure, axes: list[Axes]) -> None:
        for ax, panel in zip(axes, panels, strict=True):
            parts = _machine_parts() if panel.take is machine else _card_parts()
            left = [0.0] * len(panel.arms)
            for name, (colour, take) in parts.items():
                values = [_milli_per_token(result, arm, take) for arm in panel.arms]
                if any(values):
                    ax.barh(
                        range(len(values)), values, left=left, height=0.66, color=colour,
                        label=name, edgecolor=PAPER, linewidth=0.8,
                    )  # fmt: skip
                left = [a + b for a, b in zip(left, values, strict=True)]
            _name_rows(ax, panel)
            ax.set_xlabel("mJ for each output token")
            below = -_LEGEND_IN / (height_in - 2 * _LEGEND_IN)
            ax.legend(loc="upper center", bbox_to_anchor=(0.4, below), ncols=3, handlelength=1)

    return draw("energy", _LABELS["energy"], height_in, len(panels), paint)


_Parts = dict[str, tuple[str, Getter]]


def _machine_parts() -> _Parts:
    def by_cause(cause: str) -> Getter:
        return lambda run: None if run.machine is None else run.machine.by_cause.get(cause)

    return {cause: (COLOURS[name], by_cause(cause)) for cause, name in _CAUSES.items()}


def _card_parts() -> _Parts:
    return {
        "this machine": (COLOURS["generation"], figure_of("card.machine_j")),
        "card at work": (COLOURS["reward"], figure_of("card.work_j")),
        "card idle": (COLOURS["idle"], figure_of("card.idle_j")),
    }


def _milli_per_token(result: BenchResult, arm: ArmEntry, take: Getter) -> float:
    """The median over seeds, mJ; 0 where nothing was drawn for it."""

    def per_token(run: RunFigures) -> float | None:
        drawn_j = take(run)
        return None if drawn_j is None or not run.n_tokens else 1e3 * drawn_j / run.n_tokens

    found = over_seeds(result, arm.name, per_token)
    return 0.0 if found is None else found.median


# ---------------------------------------------------------------- quality


_Courses = list[tuple[str, list[tuple[ArmEntry, list[tuple[float, float]]]]]]
"""Panels by title: the course of each of their arms."""


def _quality(result: BenchResult) -> str | None:
    """Held-out reward over joules; drawn from two evaluations on."""
    courses = _courses(result)
    if not courses:
        return None
    target = result.target("reward")

    def paint(figure: Figure, axes: list[Axes]) -> None:
        for ax, (title, own) in zip(axes, courses, strict=True):
            for arm, course in own:
                x, y = zip(*course, strict=True)
                style = "--" if arm.extra else "-"
                ax.plot(
                    x, y, style, color=_colour(result, arm), marker="o", markersize=3,
                    linewidth=1.5, label=arm.name,
                )  # fmt: skip
            if target is not None and target.value is not None:
                ax.axhline(target.value, color=MUTED, linewidth=1, linestyle=":")
            ax.set_title(title)
            ax.set_xlabel("J from the first step on, evaluations left out")
            ax.set_ylabel("held-out reward")
        lines = {
            str(line.get_label()): line
            for ax in axes
            for line in ax.lines
            if not str(line.get_label()).startswith("_")
        }
        figure.legend(
            list(lines.values()), list(lines), loc="outside lower center", ncols=4, handlelength=1.4
        )

    n_lines = len({arm.name for _, own in courses for arm, _ in own})
    height_in = 2.7 + 0.18 * -(-n_lines // 4)
    return draw("quality", _LABELS["quality"], height_in, len(courses), paint)


def _courses(result: BenchResult) -> _Courses:
    """The courses of arms without a simulated card, and of those with one."""
    alone = [a for a in result.arms if result.of(a.name) and not has_card(result, a)]
    provenance = energy_provenance([run for a in alone for run in result.of(a.name)])
    found = []
    for title, arms, name in (
        (f"this machine ({provenance})", alone, "energy_j"),
        (_WITH_CARD, arms_with_card(result), "with_card_j"),
    ):
        own = [(arm, _course(result, arm, name)) for arm in arms]
        drawn = [(arm, course) for arm, course in own if len(course) > 1]
        found += [(title, drawn)] if drawn else []
    return found


def _course(result: BenchResult, arm: ArmEntry, name: str) -> list[tuple[float, float]]:
    """Joules, by their name, and reward at each evaluation; medians over the seeds with both."""
    by_step: dict[int, list[tuple[float, float]]] = {}
    for run in result.of(arm.name):
        for point in run.quality:
            drawn_j = 0.0 if point.step == 0 else getattr(point, name)
            if drawn_j is not None and point.reward is not None:
                by_step.setdefault(point.step, []).append((drawn_j, point.reward))
    return [
        (statistics.median(x for x, _ in own), statistics.median(y for _, y in own))
        for _, own in sorted(by_step.items())
    ]

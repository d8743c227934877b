"""Prints what a plan goes by and its table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ecorl.operate.levers.choice import Lever
from ecorl.operate.levers.study import SavedShare
from ecorl.operate.plan.answer import PlanAnswer, WhatIf
from ecorl.operate.plan.job import PlannedJob
from ecorl.operate.plan.offload import PricedPlacement
from ecorl.records import Action, Algorithm, DeviceKind
from ecorl.report.render.lines import aligned
from ecorl.report.render.numbers import MISSING, duration, figure, joules, share
from ecorl.sim.scenario import Scenario

if TYPE_CHECKING:
    from matplotlib.axes import Axes


LEVER_NAMES = {
    Lever.PLACEMENT: "the best placement",
    Lever.CLOCKS: "lower clocks (priced, not set)",
    Lever.OVERLAP: "scoring beside generation",
    Lever.GEARS: "FP8 in training",
}
"""What each lever does, for the table."""

_WHERE = {Action.FPGA: "GPUs wait", Action.CONCURRENT: "beside"}


def used(job: PlannedJob, names: str, scenario: Scenario, answer: PlanAnswer | None) -> list[str]:
    """Write the values that a plan goes by, one line each.

    Args:
        job: as it was asked about.
        names: of the algorithms.
        scenario: the job in the simulator.
        answer: to the job; None under the paper's costs.
    """
    gpu, card = scenario.setting.gpu, scenario.setting.card
    same = " (the same stages at the same costs)" if " and " in names else ""
    alone = job.calibration == "paper"
    others = ["reward model", *(["reference"] if alone else [])]
    others += ["critic"] if names == Algorithm.PPO else []
    actor = "actor" if alone else "actor and reference"
    told = None if answer is None else answer.own
    rows = [
        ("algorithm", f"{names}{same}"),
        ("GPUs" if gpu.kind is DeviceKind.GPU else "hosts",
         f"{job.n_gpus} x {gpu.title} ({job.gpu})"),
        ("cards", f"{job.n_cards} x {card.title} ({job.card}), {share(job.load, 0)} of their "
                  "time taken by other jobs"),
        ("models", f"{job.policy_model}: {actor}; {job.inference_model}: {' and '.join(others)}"),
        ("iteration", f"{job.rows:,} completions; mean prompt {job.prompt:,g}, completion "
                      f"{job.length:,g} tokens"),
        ("costs", f"{job.calibration}, which is {scenario.table.provenance}; abilities of the "
                  f"framework: {job.abilities}"),
    ]  # fmt: skip
    if told is not None:
        rows.append(("stages", told.told))
    return ["Values used:", *aligned(rows, text_columns=(0, 1), indent="  ")]


def answer_table(answer: PlanAnswer) -> list[str]:
    """Write the table of a plan: the step as it is, with second devices, and with levers.

    Args:
        answer: to a job.
    """
    step = answer.step
    heads = ("a step (modelled)", "time", "energy", "tokens/J", "energy saved", "interval")
    alone = _figures(step.time_s, step.energy_j, step.n_tokens)
    rows: list[tuple[str, ...]] = [("the GPUs alone", *alone, MISSING, "")]
    for one in answer.offload.placements:
        saved = share(1.0 - one.energy_j / step.energy_j)
        name = f"{answer.offload.n} x {answer.offload.device}: {placement_name(one)}"
        rows.append((name, *_figures(one.time_s, one.energy_j, step.n_tokens), saved, ""))
    narrow = answer.narrower
    if narrow is not None:
        time_s = step.time_s * (1.0 + narrow.slowdown)
        energy_j = step.energy_j * (1.0 - narrow.saved_share)
        figures = _figures(time_s, energy_j, step.n_tokens)
        rows.append((f"on {narrow.n_gpus} GPUs", *figures, share(narrow.saved_share), ""))
    rows += _lever_rows(answer)
    return aligned([heads, *rows])


def _lever_rows(answer: PlanAnswer) -> list[tuple[str, ...]]:
    step, study = answer.step, answer.study
    rows: list[tuple[str, ...]] = []
    for lever, saved in study.alone.items():
        if lever is Lever.PLACEMENT:
            continue  # each placement has a row
        found = study.settings[frozenset({lever})]
        figures = _figures(found.time_s, found.energy_j, step.n_tokens)
        rows.append((LEVER_NAMES[lever], *figures, *_saved(saved)))
    for name, saved in study.beyond.items():
        energy_j = step.energy_j * (1.0 - saved.value)
        figures = (MISSING, joules(energy_j), figure(step.n_tokens / energy_j))
        rows.append((name, *figures, *_saved(saved)))
    everything = study.all
    figures = _figures(everything.time_s, everything.energy_j, step.n_tokens)
    if study.alone:
        rows.append(("all levers together", *figures, *_saved(study.together)))
    return rows


def _figures(time_s: float, energy_j: float, n_tokens: float) -> tuple[str, str, str]:
    return duration(time_s), joules(energy_j), figure(n_tokens / energy_j)


def _saved(saved: SavedShare) -> tuple[str, str]:
    return share(saved.value), ends(saved.low, saved.high)


def ends(low: float, high: float) -> str:
    """Write the interval of a share in per cent.

    Args:
        low: its lower end.
        high: its upper end.
    """
    return f"{100 * low:.1f} to {100 * high:.1f} %"


def placement_name(row: PricedPlacement) -> str:
    """Name a placement by what leaves the GPUs, and whether these wait for it.

    Args:
        row: the placement.
    """
    return ", ".join(f"{stage} ({_WHERE[action]})" for stage, action in row.actions.items())


def what_if_table(found: Sequence[WhatIf]) -> list[str]:
    """Write the rows of a grid.

    Args:
        found: its jobs, in their order.
    """
    keys = list(dict.fromkeys(key for row in found for key in row.values))
    heads = (*keys, "algorithm", "time", "energy", "tokens/J", "devices save", "levers save")
    rows = [
        (
            *(str(row.values.get(key, MISSING)) for key in keys),
            row.algorithm or MISSING,
            duration(row.time_s),
            joules(row.energy_j),
            figure(row.tokens_per_joule),
            share(row.offload_saved_share),
            share(row.levers_saved_share),
        )
        for row in found
    ]
    whys = list(dict.fromkeys(row.why for row in found if row.why))
    lines = aligned([heads, *rows], text_columns=())
    return [*lines, *(["", "missing figures:", *(f"- {why}" for why in whys)] if whys else [])]


_DPI, _SIZE_IN = 120, (10.0, 4.6)
_SAVES, _COSTS, _OWN, _ENDS = "#228833", "#bb3333", "#222222", "#222222"


def draw_answer(answer: PlanAnswer, job: PlannedJob, path: Path) -> None:
    """Write the picture.

    Args:
        answer: to a job.
        job: as it was asked about.
        path: the PNG.

    Raises:
        OSError: when it cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=_SIZE_IN, layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, width_ratios=(1.25, 1.0))
    figure.suptitle(
        f"{job.policy_model} policy, {job.inference_model} reward model on {job.n_gpus} x "
        f"{answer.step.gpu.title}: energy of a step (modelled)",
        fontsize=10,
    )
    _draw_levers(left, answer)
    _draw_scan(right, answer, job)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png", dpi=_DPI, metadata={"Software": None})


def _draw_levers(axes: Axes, answer: PlanAnswer) -> None:
    """One bar a way to save energy."""
    offload, study = answer.offload, answer.study
    bars: list[tuple[str, SavedShare]] = []
    if offload.saved_share is not None:
        low, high = offload.low, offload.high
        ends = (
            (offload.saved_share, offload.saved_share)
            if low is None or high is None
            else (low, high)
        )
        bars.append((f"{offload.n} x {offload.device}", SavedShare(offload.saved_share, *ends)))
    bars += [(LEVER_NAMES[k], v) for k, v in study.alone.items() if k is not Lever.PLACEMENT]
    bars += list(study.beyond.items())
    if study.alone:
        bars.append(("all levers together", study.together))
    least = -0.25  # devices that cost many times the energy would hide all else
    names = [_clipped_name(name, saved.value, least) for name, saved in bars]
    values = [100 * max(saved.value, least) for _, saved in bars]
    colours = [_SAVES if saved.value >= 0 else _COSTS for _, saved in bars]
    axes.barh(names, values, color=colours, alpha=0.8, height=0.6)
    for i, (_, saved) in enumerate(bars):
        if saved.value >= least:
            axes.plot(
                [100 * max(saved.low, least), 100 * saved.high], [i, i], color=_ENDS, lw=1.4,
                marker="|", ms=7,
            )  # fmt: skip
    axes.invert_yaxis()
    axes.axvline(0.0, color=_OWN, lw=0.8)
    axes.set_xlabel("energy saved, % (line: interval)")
    axes.grid(visible=True, axis="x", alpha=0.25)


def _clipped_name(name: str, value: float, least: float) -> str:
    return name if value >= least else f"{name}: {100 * value:,.0f} %"


def _draw_scan(axes: Axes, answer: PlanAnswer, job: PlannedJob) -> None:
    """The devices' saving over the mean completion."""
    scan = next((s for s in answer.offload.scans if s.what == "length"), None)
    if scan is None or not scan.saved:
        axes.text(
            0.5, 0.5, f"{answer.offload.device} cannot run this job\n{answer.offload.why_not}",
            ha="center", va="center", fontsize=8, wrap=True, transform=axes.transAxes,
        )  # fmt: skip
        axes.set_axis_off()
        return
    lengths = [float(value.replace(",", "")) for value in scan.saved]
    axes.set_xscale("log")
    axes.set_xticks(lengths, [f"{length:,g}" for length in lengths], fontsize=8)
    axes.minorticks_off()
    axes.plot(lengths, [100 * v for v in scan.saved.values()], marker="o", color=_OWN, lw=1.2)
    axes.axhline(0.0, color=_SAVES, lw=1.0, ls="--", label="the GPUs alone")
    axes.axvline(job.length, color="#888888", lw=0.8, ls=":", label="this job")
    axes.set_xlabel("mean completion, tokens")
    axes.set_ylabel(f"energy saved by {answer.offload.n} x {answer.offload.device}, %")
    axes.grid(visible=True, alpha=0.25)
    axes.legend(fontsize=8)

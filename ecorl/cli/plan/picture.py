"""Draws a plan: what each lever saves with its interval, and where the second devices pay."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ecorl.cli.plan.table import LEVER_NAMES
from ecorl.operate.levers.choice import Lever
from ecorl.operate.levers.study import SavedShare
from ecorl.operate.plan.answer import PlanAnswer
from ecorl.operate.plan.job import PlannedJob

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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

"""The plots of the policy's page, as inline SVG in the colours of the page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ecorl.html.pages import COLOURS, GRID, MUTED, draw
from ecorl.policy.evaluation.choices import REFUSED, Choices

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BLUE, _ORANGE, _GREEN = (COLOURS[name] for name in ("generation", "reward", "training"))

_ACTIONS = (
    (REFUSED, "the limits forbid offloading", GRID),
    (0, "GPU", _BLUE),
    (1, "card, GPU waits", _ORANGE),
    (2, "card beside GPU", _GREEN),
)


def curves(record: dict[str, Any]) -> str | None:
    """Mean regret over the epochs of imitation, Eq. 7 over the steps of PPO; None without any."""
    found = record.get("curves", {})
    imitation, ppo = found.get("imitation") or [], found.get("ppo") or []
    if not imitation and not ppo:
        return None

    def paint(_: Figure, axes: list[Axes]) -> None:
        left = list(axes)
        if imitation:
            _imitation(left.pop(0), imitation, record.get("plan", {}))
        if ppo:
            _ppo(left.pop(0), ppo)

    n_axes = bool(imitation) + bool(ppo)
    label = "Learning curves: lost score over epochs of imitation, score over steps of PPO."
    return draw("curves", label, 2.5, n_axes, paint)


def _imitation(axes: Axes, regrets: Sequence[float], plan: dict[str, Any]) -> None:
    epochs = np.arange(1, len(regrets) + 1)
    axes.plot(epochs, regrets, color=_BLUE, linewidth=1.6, marker="o", markersize=2.5)
    if min(regrets) > 0:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(_log_tick)
        axes.yaxis.set_minor_formatter(_log_tick)
    each = int(plan.get("n_epochs") or 0)
    for i in range(1, int(plan.get("n_rounds") or 0) if each else 0):
        axes.axvline(i * each + 0.5, color=MUTED, linewidth=0.8, linestyle=(0, (3, 3)))
    axes.set_title("Imitation: mean score lost")
    axes.set_xlabel("epoch; a dashed line begins a round")
    axes.set_ylabel("score lost against the planner")


def _log_tick(value: float, _: float) -> str:
    """1, 2 and 5 of each decade: more would stand upon one another."""
    return f"{value:g}" if f"{value:e}"[0] in "125" else ""


def _ppo(axes: Axes, curve: Sequence[Sequence[float]]) -> None:
    steps, scores = zip(*curve, strict=True)
    axes.plot(np.array(steps) / 1e3, scores, color=_GREEN, linewidth=1.6)
    axes.set_title("PPO: score")
    axes.set_xlabel("decisions, thousands")
    axes.set_ylabel("sum over an episode")


def choice_map(found: Choices) -> str:
    """Which action where: row length to the right, queue upwards."""

    def paint(_: Figure, axes: list[Axes]) -> None:
        (one,) = axes
        across, up = _edges(np.log(found.row_length)), _edges(found.queue)
        across = np.exp(across)
        for code, title, colour in _ACTIONS:
            first: str | None = title
            for i, row in enumerate(found.codes):
                runs = [(across[a], across[b] - across[a]) for a, b in _runs(row == code)]
                if not runs:
                    continue
                low = max(0.0, up[i])
                one.broken_barh(
                    runs,
                    (low, up[i + 1] - low),
                    facecolor=colour,
                    edgecolor=colour,
                    linewidth=0.3,
                    label=first,
                )
                first = None
        one.set_xscale("log")
        one.set_xlim(across[0], across[-1])
        one.set_ylim(0.0, up[-1])
        ticks = [t for t in _TICKS if across[0] <= t <= across[-1]]
        one.set_xticks(ticks, [f"{t:,}" for t in ticks])
        one.minorticks_off()
        one.set_xlabel("mean row, prompt and completion, tokens")
        one.set_ylabel("batches waiting on the cards")
        one.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=4)

    label = "Which action the policy takes for the reward stage, by row length and queue."
    return draw("choices", label, 3.4, 1, paint)


_TICKS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


def _edges(middles: Any) -> Any:
    """Ends of the cells around rising middles."""
    between = 0.5 * (middles[1:] + middles[:-1])
    first, last = 2 * middles[0] - between[0], 2 * middles[-1] - between[-1]
    return np.concatenate([[first], between, [last]])


def _runs(flags: Any) -> list[tuple[int, int]]:
    """Begin and end of each run of True."""
    steps = np.flatnonzero(np.diff(np.concatenate([[0], flags.astype(int), [0]])))
    return [(int(a), int(b)) for a, b in zip(steps[::2], steps[1::2], strict=True)]

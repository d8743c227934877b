"""The report on a policy as one self-contained page: curves, comparison, where it offloads.

No script, no font, no picture from elsewhere. The style is that of the energy report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ecorl.errors import ConfigError
from ecorl.files import write_whole
from ecorl.html.pages import COLOURS, GRID, MUTED, draw, render
from ecorl.policy.evaluation.comparison import PolicyComparison
from ecorl.policy.evaluation.summary import COLUMNS, MISSING, rows, sentences
from ecorl.policy.training.network import permitted_codes
from ecorl.records import Algorithm, Stage
from ecorl.scheduler.policy_file import PolicyFile
from ecorl.scheduler.tables import Float64
from ecorl.sim.batched import observe
from ecorl.sim.scenario import Limits, Scenario
from ecorl.sim.simulation import Simulation
from ecorl.sim.trace import draw_trace, select
from ecorl.stages.figures import GPU

Int64 = npt.NDArray[np.int64]

REFUSED = -1
"""Code where the guards leave a1 alone, whatever the policy says."""

N_LENGTHS, N_QUEUES = 44, 25
MOST_QUEUE = 9.5
"""Batches; the guard's default stops offloading at 8, which must not be one of the points."""

_STEADY = 1e7
"""Concentration of the tasks at which every batch is the mix."""


@dataclass(frozen=True, eq=False)
class Choices:
    """A map of actions.

    Attributes:
        scenario: where.
        row_length: ``[n_lengths] float64``: mean tokens of a row, prompt and completion.
        queue: ``[n_queues] float64``: batches like this one that the cards have before it.
        codes: ``[n_queues, n_lengths] int64``: 0, 1, 2 for a1, a2, a3, or `REFUSED`.
    """

    scenario: Scenario
    row_length: Float64
    queue: Float64
    codes: Int64


def reference_scenario(family: str) -> Scenario:
    """The scenario of the picture: long rows pass its length guard up to 2,048 tokens."""
    base = Scenario(
        "reference", max_length=4096.0, prompt_length=128.0, limits=Limits(8.0, 2048.0, None)
    )
    if family == "paper":
        return replace(base, calibration="paper", sizes={Stage.GENERATION: "70b"})
    # A small policy with a large reward model, and a second device that is worth a decision.
    sizes = dict.fromkeys(Stage, "1b") | {Stage.REWARD: "8b"}
    return replace(
        base, algorithm=Algorithm.GRPO, sizes=sizes, gpu="a100_sxm", n_gpus=4, card="l4",
        n_cards=8, n_rows=512,
    )  # fmt: skip


def choices(file: PolicyFile, scenario: Scenario) -> Choices:
    """Ask a policy at every length and queue.

    Each column is an episode whose batches are all of one length, without drift, noise or other
    jobs; generation stays on the GPUs, and what the cards already have is set.

    Args:
        file: the policy.
        scenario: costs, devices, guards.
    """
    # Longer than the limit a completion cannot be; shorter than 8 tokens it says nothing.
    shortest, longest = max(8.0, scenario.max_length / 64), 0.98 * scenario.max_length
    lengths = np.geomspace(shortest, longest, N_LENGTHS)
    per_unit = scenario.nominal_length / scenario.length_scale
    steady = [_steady(scenario, float(length / per_unit)) for length in lengths]
    trace = draw_trace(steady, np.random.default_rng(0))
    queue = np.linspace(0.0, MOST_QUEUE, N_QUEUES)
    columns = np.tile(np.arange(N_LENGTHS), N_QUEUES)
    simulation = Simulation(select(trace, columns))
    simulation.step(np.full(len(columns), GPU))
    _fill(simulation, np.repeat(queue, N_LENGTHS))
    seen, may = observe(simulation)
    codes = permitted_codes(file.batch(seen), may)
    alone = np.maximum(*np.broadcast_arrays(*may)) <= 0.0
    codes = np.where(alone, REFUSED, codes).reshape(N_QUEUES, N_LENGTHS)
    row_length = np.asarray(trace.row_length[0], dtype=np.float64)
    order = np.argsort(row_length, kind="stable")
    return Choices(scenario, row_length[order], queue, codes[:, order])


def _steady(scenario: Scenario, length_scale: float) -> Scenario:
    made = replace(
        scenario,
        group_size=1,
        length_scale=length_scale,
        concentration=_STEADY,
        drift_std=0.0,
        noise_std=0.0,
        load=0.0,
        failure_rate=0.0,
        adaptive_batch=False,
        off_policy=False,
        replay=None,
        n_iterations=1,
    )
    # One table for all of them: it holds for any length.
    return replace(made, calibration="fitted", fitted=scenario.table)


def _fill(simulation: Simulation, queue: Float64) -> None:
    """Give the cards `queue` batches like the next to do first."""
    carry: Any = simulation.carry
    own_s = simulation.known_work().card_s[0] / carry.speed
    free_s = carry.t_s + queue * own_s
    simulation.carry = carry._replace(card_s=free_s, base_s=free_s)


def render_page(
    record: Mapping[str, Any],
    comparison: PolicyComparison | None = None,
    picture: Choices | None = None,
    *,
    ours: str = "learned",
    title: str = "scheduler policy",
) -> str:
    """The whole page as text.

    Args:
        record: how the policy was made, from its file or its training.
        comparison: on kept-out scenarios; None: the page says that there was none.
        picture: where the policy chooses what; None leaves it out.
        ours: name of the policy in the comparison.
        title: heading.
    """
    return render(
        __package__,
        "policy.html",
        title=title,
        facts=_facts(record),
        curves=curves(dict(record)),
        kept=_kept(record),
        columns=COLUMNS,
        rows=[] if comparison is None else [r.cells() for r in rows(comparison, ours)],
        ours=ours,
        remarks=[] if comparison is None else sentences(comparison, ours),
        picture=None if picture is None else choice_map(picture),
        where="" if picture is None else _where(picture),
    )


def write_page(path: Path, text: str) -> None:
    """Write the page; it is whole or not there.

    Args:
        path: of the file; folders are made.
        text: the page.

    Raises:
        ConfigError: when it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text)
    except OSError as error:
        allowed = f"a file that can be written ({error.strerror})"
        raise ConfigError("report", str(path), allowed) from error


def _facts(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    plan = record.get("plan") or {}
    train_s = record.get("train_s")
    facts = {
        "scenarios": plan.get("family"),
        "in the pool": plan.get("n_scenarios"),
        "iterations of an episode": plan.get("n_iterations"),
        "rounds of imitation": plan.get("n_rounds") if plan.get("imitate", True) else 0,
        "labelled states": record.get("n_labels"),
        "decisions of PPO": plan.get("ppo_steps"),
        "seed": plan.get("seed"),
        "training took": None if train_s is None else f"{train_s:,.0f} s (measured)",
        "state": record.get("schema"),
        "ecorl": record.get("ecorl"),
    }
    return [
        (name, MISSING if value is None else f"{value:,}" if isinstance(value, int) else str(value))
        for name, value in facts.items()
    ]


def _kept(record: Mapping[str, Any]) -> str:
    """Which of the two networks stayed, in a sentence."""
    found = (record.get("curves") or {}).get("validation")
    if not found:
        return ""
    before, after = found["imitation"], found["ppo"]
    kept = "PPO's network" if after > before else "the imitated network"
    return (
        f"On fresh episodes of the pool the network scored {before:.4g} after imitation and "
        f"{after:.4g} after PPO (sum over an episode): {kept} stayed."
    )


def _where(picture: Choices) -> str:
    s = picture.scenario
    setting = s.setting
    return (
        f"Scenario {s.name}: {s.algorithm}, {s.n_rows} rows, {setting.n_gpus} x "
        f"{setting.gpu.title}, {setting.n_cards} x {setting.card.title}, guards q_max "
        f"{s.limits.q_max:g} and l_max {s.limits.l_max:g}. Costs are {s.table.provenance}."
    )


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

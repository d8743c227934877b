"""The report on a policy as one self-contained page: curves, comparison, where it offloads.

No script, no font, no picture from elsewhere. The style is that of the energy report.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ecorl.errors import ConfigError
from ecorl.files import write_whole
from ecorl.html.pages import render
from ecorl.policy.evaluation.choices import Choices
from ecorl.policy.evaluation.comparison import PolicyComparison
from ecorl.policy.evaluation.page_plots import choice_map, curves
from ecorl.policy.evaluation.summary import COLUMNS, MISSING, rows, sentences


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

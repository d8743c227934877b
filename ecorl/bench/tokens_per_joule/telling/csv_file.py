"""The runs as CSV, a row each.

A missing figure is an empty cell, and no column has figures of two provenances.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

from ecorl.bench.tokens_per_joule.reading.model import RunFigures
from ecorl.bench.tokens_per_joule.reading.quality import first_reached
from ecorl.bench.tokens_per_joule.result import BenchResult

_CARD = "with_card_modelled"
"""Ends the names of figures of machine and simulated card together."""


def result_csv(result: BenchResult) -> str:
    """Write the runs, supervised training among them.

    Names of columns end with the provenance of what is in them; figures of another one stand in
    columns of their own.

    Args:
        result: of the benchmark.
    """
    text = io.StringIO()
    rows = [_row(result, run) for run in (*result.runs, *result.supervised)]
    heads = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(text, heads, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _row(result: BenchResult, run: RunFigures) -> dict[str, object]:
    found: dict[str, object] = {"arm": run.arm, "seed": run.seed, "missing": run.missing}
    if run.missing:
        return found
    found |= {
        "steps": run.n_steps,
        "output_tokens": run.n_tokens,
        "all_tokens": run.n_all_tokens,
        "samples": run.n_samples,
        "faults": run.n_faults,
        "time_s_measured": run.time_s,
        "samples_per_s_measured": run.samples_per_s,
        "bubble_measured": run.bubble,
        "reward_left": run.offloaded.get("reward"),
        "reference_left": run.offloaded.get("reference"),
        "final_reward_measured": None if run.final is None else run.final.reward,
        "final_correct_measured": None if run.final is None else run.final.correct,
    }
    return found | _of_machine(run) | _of_card(run) | dict(_targets(result, run))


def _of_machine(run: RunFigures) -> dict[str, object]:
    m = run.machine
    if m is None:
        return {}
    figures = {
        "energy_j": m.energy_j,
        "useful_j": m.useful_j,
        "wasted_j": m.wasted_j,
        "beside_j": m.beside_j,
        "idle_share": run.idle_share,
        "tokens_per_j": run.tokens_per_j,
        "j_per_sample": run.j_per_sample,
    }
    found: dict[str, object] = {f"{name}_{m.provenance}": value for name, value in figures.items()}
    found["energy_is_at_least"] = m.at_least
    if m.carbon_g is not None:
        found[f"carbon_g_{m.carbon_provenance}"] = m.carbon_g
    return found


def _of_card(run: RunFigures) -> dict[str, object]:
    c = run.card
    if c is None:
        return {}
    return {
        "card_work_j_modelled": c.work_j,
        "card_idle_j_modelled": c.idle_j,
        f"energy_j_{_CARD}": c.both_j,
        f"time_s_{_CARD}": c.time_s,
        f"tokens_per_j_{_CARD}": run.tokens_per_j_with_card,
        f"j_per_sample_{_CARD}": run.j_per_sample_with_card,
        f"samples_per_s_{_CARD}": run.samples_per_s_with_card,
        f"bubble_{_CARD}": run.bubble_with_card,
    }


def _targets(result: BenchResult, run: RunFigures) -> Iterator[tuple[str, object]]:
    for target in result.targets:
        point = first_reached(run, target)
        name = target.measure
        yield f"{name}_target", target.value
        if point is None:
            continue
        yield f"{name}_target_s_measured", point.time_s
        if point.provenance is not None:
            yield f"{name}_target_j_{point.provenance}", point.energy_j
        yield f"{name}_target_s_{_CARD}", point.with_card_s
        yield f"{name}_target_j_{_CARD}", point.with_card_j

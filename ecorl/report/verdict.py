"""The verdict in plain words: what the run spent, where, and whether offloading paid."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ecorl.records import weakest
from ecorl.report.model import Comparison, Expectation, Head, Spending, StageRow, Totals
from ecorl.report.numbers import duration, figure, joules, share
from ecorl.report.stage_table import present


def verdict(
    head: Head,
    spending: Spending,
    comparisons: Sequence[Comparison],
    expectation: Expectation | None,
) -> tuple[str, ...]:
    """A few sentences; each figure in them names its provenance."""
    sentences = [_course(head)]
    sentences += _spent(spending)
    sentences += _offloading(spending, comparisons)
    if expectation is not None:
        sentences.append(_expected(expectation))
    return tuple(sentences)


def _course(head: Head) -> str:
    done = f"did {head.n_steps_done or 'no'}"
    planned = f" of {head.n_steps_planned} steps" if head.n_steps_planned is not None else " steps"
    ending = {
        "finished": "and finished",
        "stopped": "and was stopped",
    }.get(head.state, "and has no recorded end: it is still running, or was killed")
    attempts = f" in {head.n_attempts} attempts" if head.n_attempts > 1 else ""
    return f"The run {done}{planned}{attempts}, took {duration(head.run_time_s)} {ending}."


def _spent(spending: Spending) -> list[str]:
    if not spending.columns:
        return ["No energy figure was recorded, so nothing can be said of what the run spent."]
    sentences = [_spent_of(c) for c in spending.columns if c.title == str(c.provenance)]
    last = spending.columns[-1]
    if len(spending.columns) > 1:
        known = "at least " if last.at_least else ""
        sentences.append(
            f"Together that is {known}{joules(last.energy_j)}; as a sum it is only as good as its "
            f"weakest part, {last.provenance}."
        )
    if spending.covered_share is not None and spending.covered_share < 1:
        sentences.append(
            f"Only {share(spending.covered_share)} of the stage calls have an energy figure"
            + ("; the true total is higher." if last.at_least else " of their own.")
        )
    return sentences


def _spent_of(column: Totals) -> str:
    known = "at least " if column.at_least else ""
    if not column.energy_j:
        return f"It spent {known}0 J ({column.provenance})."
    causes = sorted(column.by_cause.items(), key=lambda item: -item[1])
    told = ", ".join(
        f"{cause} {share(j / column.energy_j, 0)}"
        for cause, j in causes
        if j >= 0.005 * column.energy_j
    )
    return (
        f"It spent {known}{joules(column.energy_j)} ({column.provenance}): {told}. "
        f"{share(column.wasted_j / column.energy_j, 0)} of that bought nothing."
    )


def _offloading(spending: Spending, comparisons: Sequence[Comparison]) -> list[str]:
    cards = [c for c in comparisons if c.card is not None]
    if not cards:
        return [
            "No stage left the GPU path: no comparison, only one kind of device ran each stage."
        ]
    sentences = [_compared(c) for c in cards]
    judged = [c for c in cards if c.saved_j is not None]
    if judged:
        sentences.append(_net(spending, judged))
    return sentences


def _compared(c: Comparison) -> str:
    if c.gpu is None or c.card is None or c.ratio is None:
        return f"{c.stage}: {c.sentence}."
    change = f"{share(abs(1 - c.ratio), 0)} {'less' if c.ratio < 1 else 'more'}"
    return (
        f"{c.stage}: {_edi(c.card)} against {_edi(c.gpu)}; by that arithmetic the card used "
        f"{change} energy per token ({c.ratio_provenance})."
    )


def _edi(row: StageRow) -> str:
    return f"{figure(row.edi_j_per_token)} J/token on {row.device} ({row.energy_provenance})"


def _net(spending: Spending, judged: Sequence[Comparison]) -> str:
    """Saved on the offloaded tokens, less what the cards drew while they stood idle."""
    saved_j = math.fsum(present(c.saved_j for c in judged))
    cards = {i for c in judged if c.card is not None for i in c.card.device_ids}
    idle = [p for p in spending.parts if p.cause == "idle" and p.device_id in cards]
    known = [c.ratio_provenance for c in judged if c.ratio_provenance is not None]
    known += [p.provenance for p in idle if p.provenance is not None]
    weight = f"({weakest(*known)})"
    verb = "saved" if saved_j >= 0 else "cost"
    start = f"On the offloaded tokens the card {verb} {joules(abs(saved_j))}"
    if not idle or any(p.energy_j is None for p in idle):
        return f"{start} {weight}; its idle draw is unknown, so whether that paid cannot be said."
    idle_j = math.fsum(present(p.energy_j for p in idle))
    net_j = saved_j - idle_j
    result = (
        f"offloading paid by {joules(net_j)}" if net_j > 0
        else f"offloading did not pay: {joules(-net_j)} more than without the card"
    )  # fmt: skip
    return f"{start} and drew {joules(idle_j)} while idle: {result} {weight}."


def _expected(e: Expectation) -> str:
    change = e.gpu_j - e.chosen_j
    if e.n and abs(change) <= 1e-9 * max(abs(e.gpu_j), abs(e.chosen_j)):
        outcome = "no difference"
    else:
        outcome = f"{joules(abs(change))} {'less' if change > 0 else 'more'}"
    return (
        f"Before the fact, over {e.n} decisions, the cost model expected {joules(e.gpu_j)} on the "
        f"GPU path alone and {joules(e.chosen_j)} for the actions taken: {outcome} "
        f"({e.provenance})."
    )

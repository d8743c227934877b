"""The verdict in plain words: what the run spent, where, and whether offloading paid."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ecorl.records import weakest
from ecorl.report.card import card_idle
from ecorl.report.energy import WASTED_CAUSES
from ecorl.report.model import (
    Balance,
    CardTimeline,
    Comparison,
    Expectation,
    Head,
    Spending,
    Totals,
)
from ecorl.report.numbers import (
    count,
    duration,
    edi_unit,
    joules,
    scaled,
    share,
    with_spread,
)
from ecorl.report.stage_table import present


def verdict(head: Head, spending: Spending) -> tuple[str, ...]:
    """How the run went and what it spent; each figure names its provenance."""
    return (*_course(head), *_spent(spending))


def offloading(
    spending: Spending,
    comparisons: Sequence[Comparison],
    balance: Balance | None,
    timeline: CardTimeline | None,
    expectation: Expectation | None,
) -> tuple[str, ...]:
    """Whether offloading paid, with the arithmetic."""
    cards = [c for c in comparisons if c.card is not None]
    if not cards:
        sentences = ["No stage left the GPU path: there is nothing to compare."] * bool(comparisons)
    else:
        sentences = [_compared(c) for c in cards]
        sentences.append(_unjudged(spending, cards) if balance is None else _net(balance))
    if timeline is not None:
        sentences.append(_had_it_been_real(timeline))
    if expectation is not None:
        sentences.append(_expected(expectation))
    return tuple(sentences)


def _course(head: Head) -> list[str]:
    done = f"did {head.n_steps_done or 'no'}"
    planned = f" of {head.n_steps_planned} steps" if head.n_steps_planned is not None else " steps"
    attempts = f" over {head.n_attempts} attempts" if head.n_attempts > 1 else ""
    ending = {
        "finished": "and finished",
        "stopped": "and was stopped",
    }.get(head.state, "and has no recorded end: it is still running, or was killed")
    sentences = [f"The run {done}{planned} in {duration(head.run_time_s)}{attempts} {ending}."]
    if head.state != "finished":
        sentences.append(
            "No checkpoint was recorded."
            if head.checkpoint_step is None
            else f"Its newest checkpoint holds step {head.checkpoint_step}; "
            "'ecorl run --resume' goes on from there."
        )
    return sentences


def _spent(spending: Spending) -> list[str]:
    if not spending.columns:
        return ["No energy figure was recorded, so nothing can be said of what the run spent."]
    lacking = spending.unknown_causes
    single = [c for c in spending.columns if c.title == str(c.provenance)]
    sentences = [_spent_of(c, with_shares=not lacking) for c in single]
    last = spending.columns[-1]
    if len(spending.columns) > 1:
        known = "at least " if last.at_least else ""
        sentences.append(
            f"Together that is {known}{joules(last.energy_j)}; as a sum it is only as good as its "
            f"weakest part, {last.provenance}."
        )
    if lacking:
        covered = spending.covered_share
        calls = (
            f" ({share(covered)} of the stage calls have an energy figure)"
            if covered is not None and covered < 1
            else ""
        )
        sentences.append(
            f"Energy is missing for {_listed(lacking)}{calls}"
            + ("; the true total is higher." if last.at_least else ".")
        )
    return sentences


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _spent_of(column: Totals, *, with_shares: bool) -> str:
    known = "at least " if column.at_least else ""
    if not column.energy_j:
        return f"It spent {known}0 J ({column.provenance})."
    causes = sorted(column.by_cause.items(), key=lambda item: -item[1])
    if not with_shares:
        told = ", ".join(f"{cause} {joules(j)}" for cause, j in causes)
        return f"Known of its energy are {joules(column.energy_j)} ({column.provenance}): {told}."
    told = ", ".join(
        f"{cause} {share(j / column.energy_j, 0)}"
        for cause, j in causes
        if j >= 0.005 * column.energy_j
    )
    spent = f"It spent {known}{joules(column.energy_j)} ({column.provenance}): {told}."
    if not column.wasted_j:
        return spent
    wasted = _listed([c for c in WASTED_CAUSES if c in column.by_cause])
    return (
        f"{spent} {share(column.wasted_j / column.energy_j, 0)} of that bought nothing ({wasted})."
    )


# ---------------------------------------------------------------- the card


def _compared(c: Comparison) -> str:
    if c.gpu is None or c.card is None or c.ratio is None:
        return f"{c.stage}: {c.sentence}."
    a, b = c.gpu, c.card
    factor, unit = edi_unit([a.edi_j_per_token, b.edi_j_per_token])
    prices = [
        f"{with_spread(scaled(r.edi_j_per_token, factor), scaled(r.edi_spread, factor))} {unit} "
        f"over {count(r.n_edi)} calls ({r.energy_provenance})"
        for r in (b, a)
    ]
    change = f"{share(abs(1 - c.ratio), 0)} {'less' if c.ratio < 1 else 'more'}"
    return (
        f"{c.stage}: per token {b.device} used {change} energy than {a.device} "
        f"({c.ratio_provenance}): {' against '.join(prices)}."
    )


def _unjudged(spending: Spending, cards: Sequence[Comparison]) -> str:
    idle = [p for p in card_idle(cards, spending.parts) if p.energy_j is not None]
    known = [p.provenance for p in idle if p.provenance is not None]
    drew = ""
    if known:
        idle_j = math.fsum(present(p.energy_j for p in idle))
        drew = f" The card drew {joules(idle_j)} while idle ({weakest(*known)})."
    return f"Whether offloading paid cannot be said: no stage has energy on both paths.{drew}"


def _net(b: Balance) -> str:
    """Saved on the offloaded tokens, less what the cards drew while they stood idle."""
    verb = "saved" if b.saved_j >= 0 else "cost"
    bound = ("at most " if b.saved_j >= 0 else "at least ") if b.at_most else ""
    start = f"On the calls that it took the card {verb} {bound}{joules(abs(b.saved_j))}"
    if b.idle_j is None or b.net_j is None:
        return f"{start} ({b.provenance}); its idle draw is unknown, so whether that paid is open."
    when = "" if b.idle_share is None else f" for {share(b.idle_share)} of the run"
    result = (
        f"offloading paid, by {'at most ' * b.at_most}{joules(b.net_j)}" if b.net_j > 0
        else f"offloading did not pay: {'at least ' * b.at_most}{joules(-b.net_j)} more than "
        "without the card"
    )  # fmt: skip
    return (
        f"{start}, and it stood idle{when}, drawing {joules(b.idle_j)}: {result} ({b.provenance})."
    )


def _had_it_been_real(t: CardTimeline) -> str:
    idle = "" if t.idle_j is None else f", and the card would have drawn {joules(t.idle_j)} idle"
    kept = f"; {t.n_kept} waits without a modelled time are kept as they were" if t.n_kept else ""
    return (
        "The card was simulated. Had it answered in its modelled time, the run would have taken "
        f"{duration(t.modelled_run_time_s)} (modelled) instead of {duration(t.run_time_s)} "
        f"(measured): waits of {duration(t.modelled_waits_s)} instead of "
        f"{duration(t.waits_s)}{idle}{kept}."
    )


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

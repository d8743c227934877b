"""The verdict in plain words: what was learned, what that took, and whether offloading paid."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ecorl.ledger import RunEnding
from ecorl.records import weakest
from ecorl.report.energy.card import card_parts
from ecorl.report.energy.causes import WASTED_CAUSES
from ecorl.report.energy.model import (
    Balance,
    CardTimeline,
    Cause,
    EnergyTotals,
    Expectation,
    PathComparison,
    Spending,
    StageRow,
)
from ecorl.report.energy.stages import present
from ecorl.report.model import Head, PairedGain
from ecorl.report.render.numbers import (
    bound,
    count,
    duration,
    edi_unit,
    figure,
    joules,
    scaled,
    share,
    with_spread,
)
from ecorl.report.training import is_correctness, is_reward
from ecorl.runtime.runs.found import BY_SCRIPT, GO_ON

SIGNIFICANT_SE = 2.0
"""Standard errors from which a gain is no chance: 95 % of a normal distribution, rounded up."""


def verdict(head: Head, gains: Sequence[PairedGain], spending: Spending) -> tuple[str, ...]:
    """Say how the run went, whether it learned the wrong thing, and what it spent.

    Args:
        head: what ran and how it ended.
        gains: of the held-out evaluations.
        spending: the energy of the run; each figure names its provenance.

    Returns:
        Whole sentences.
    """
    return (*_course(head), *_reward_without_right_answers(gains), *_spent(spending))


def offloading(
    path: str,
    spending: Spending,
    comparisons: Sequence[PathComparison],
    balance: Balance | None,
    timeline: CardTimeline | None,
    expectation: Expectation | None,
) -> tuple[str, ...]:
    """Say whether offloading paid, with the arithmetic.

    Args:
        path: what the report calls the framework's devices.
        spending: where the joules went.
        comparisons: both paths, by stage.
        balance: all offloaded calls against the GPU path; None when that is not known.
        timeline: the run without the simulation's time; None without a simulated card.
        expectation: what the cost model expected; None when no decision asked it.
    """
    cards = [c for c in comparisons if c.card is not None]
    if not cards:
        nothing = f"All stages ran on the {path}: nothing was offloaded, so nothing is compared."
        sentences = [nothing] * bool(comparisons)
    else:
        sentences = [_compared(c, path) for c in cards]
        sentences.append(
            _unjudged(spending, cards, path) if balance is None else _net(balance, path)
        )
    if timeline is not None:
        sentences.append(_had_it_been_real(timeline))
    if expectation is not None:
        sentences.append(_expected(expectation, path))
    return tuple(sentences)


def _course(head: Head) -> list[str]:
    attempts = f" over {head.n_attempts} attempts" if head.n_attempts > 1 else ""
    took = f"{duration(head.run_time_s)}{attempts}"
    did = f"The run did {_steps(head)} in {took}"
    by = head.ended_by
    sentence = {
        RunEnding.FINISHED: f"{did} and finished",
        RunEnding.STOPPED: f"{did} and was stopped",
        RunEnding.FAILED: f"The run ended {_after(head)} ({took}) with {by or 'an exception'}",
        RunEnding.RUNNING: f"The run is running now: {_steps(head)} in {took}",
        RunEnding.KILLED: f"The run was killed {_after(head)} ({took})",
        RunEnding.NO_END: f"{did} and has no recorded end" + (f": {by}" if by else ""),
    }[head.state]
    sentences = [sentence if sentence.endswith((".", "…")) else f"{sentence}."]
    if head.state is RunEnding.FINISHED:
        return sentences
    if head.checkpoint_step is None:
        nothing = "" if head.state in _MAY_GO_ON else ": there is nothing to go on from"
        return [*sentences, f"No checkpoint was recorded{nothing}."]
    newest = f"Its newest checkpoint holds step {head.checkpoint_step}"
    go_on = "" if head.state is RunEnding.RUNNING else f"; {_how_to_go_on(head)}"
    return [*sentences, f"{newest}{go_on}."]


_MAY_GO_ON = (RunEnding.RUNNING, RunEnding.NO_END)
"""How a run stands that may save a checkpoint yet."""


def _steps(head: Head) -> str:
    """How many steps were done, of how many, as ``3 of 20 steps``."""
    done, planned = head.n_steps_done, head.n_steps_planned
    if planned is None:
        return "1 step" if done == 1 else f"{done or 'no'} steps"
    if done:
        return f"{done} of {planned} steps"
    return "nothing of its 1 step" if planned == 1 else f"none of its {planned} steps"


def _after(head: Head) -> str:
    return f"after {_steps(head)}" if head.n_steps_done else "before its first step was done"


def _how_to_go_on(head: Head) -> str:
    if head.attached:
        return f"to go on from there {head.meta.get(GO_ON, BY_SCRIPT)}"
    return "'ecorl run --resume' goes on from there"


def _reward_without_right_answers(gains: Sequence[PairedGain]) -> list[str]:
    """A sentence for each evaluation of right answers that fell while the reward rose."""
    risen = [g for g in gains if is_reward(g.name) and _clearly(g.gain, g.standard_error)]
    fallen = [g for g in gains if is_correctness(g.name) and g.gain is not None and g.gain < 0]
    return [
        f"The {r.name} rose by {figure(r.gain)} ({_errors(r)}) while {_fell(c)} ({_errors(c)}): "
        f"{_meaning(c)}."
        for r in risen
        for c in fallen
        if r.after == c.after
    ]


def _clearly(rise: float | None, error: float | None) -> bool:
    """Whether a rise is more than chance; without a standard error nobody can say."""
    return rise is not None and error is not None and rise > 0 and rise >= SIGNIFICANT_SE * error


def _errors(gain: PairedGain) -> str:
    """The size of a change in its standard errors, as ``9.2 SE``."""
    if gain.gain is None or gain.standard_error is None:
        return "standard error unknown"
    if gain.standard_error == 0:
        return "the same for every item"
    return f"{figure(abs(gain.gain) / gain.standard_error, 2)} SE"


def _fell(gain: PairedGain) -> str:
    what = "right answers" if gain.name == "correct" else gain.name
    before, after = gain.mean_before, gain.mean_after
    if before is None or after is None:
        return f"{what} fell"
    if not (0 <= before <= 1 and 0 <= after <= 1):
        return f"{what} fell from {figure(before)} to {figure(after)}"
    # One more digit where whole per cents would show no fall.
    digits = 0 if share(before, 0) != share(after, 0) else 1
    return f"{what} fell from {share(before, digits)} to {share(after, digits)}"


def _meaning(fall: PairedGain) -> str:
    learned = "learned to please the reward model"
    if fall.gain is not None and _clearly(-fall.gain, fall.standard_error):
        return f"the policy has {learned}, not to do the task"
    return f"the policy may have {learned} rather than to do the task; the fall may be chance"


def _spent(spending: Spending) -> list[str]:
    beside = [] if spending.card is None else [_beside(spending.card, spending.owner)]
    if not spending.columns:
        whose = f"of {spending.owner} " if beside else ""
        unsaid = f"No energy figure {whose}was recorded, so nothing can be said of what the run"
        return [f"{unsaid} spent.", *beside]
    lacking = spending.unknown_causes
    single = [c for c in spending.columns if c.title == str(c.provenance)]
    sentences = [_spent_of(c, spending.owner, with_shares=not lacking) for c in single]
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
    return [*sentences, *beside]


def _beside(card: EnergyTotals, owner: str) -> str:
    """Say what a simulated card would have drawn; it is no part of what was spent."""
    idle_j = card.by_cause.get(Cause.IDLE)
    unused = (Cause.IDLE, Cause.PAUSED)
    work_j = math.fsum(j for cause, j in card.by_cause.items() if cause not in unused)
    worked = any(cause not in unused for cause in card.by_cause) or card.at_least
    at_work = f"{'at least ' * card.at_least}{joules(work_j)} at work" if worked else "got no work"
    if idle_j is None:
        drawn = f"{at_work} beside it ({card.provenance}), and idle an unknown amount"
    elif worked:
        drawn = f"{joules(idle_j)} idle and {at_work} beside it ({card.provenance})"
    else:
        drawn = f"{joules(idle_j)} idle beside it ({card.provenance}) and {at_work}"
    if card.paused_j:
        drawn += f", and {joules(card.paused_j)} while the run was paused"
    return (
        f"The simulated card would have drawn {drawn}, over the time that the run took with its "
        f"simulation; that is in none of the figures of {owner}."
    )


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _spent_of(column: EnergyTotals, owner: str, *, with_shares: bool) -> str:
    whose = f"{owner[0].upper()}{owner[1:]}"
    known = "at least " if column.at_least else ""
    if not column.energy_j:
        return f"{whose} spent {known}0 J ({column.provenance})."
    causes = sorted(column.by_cause.items(), key=lambda item: -item[1])
    if not with_shares:
        told = ", ".join(f"{cause} {joules(j)}" for cause, j in causes)
        spent = f"{joules(column.energy_j)} ({column.provenance})"
        energy = "this machine's energy" if owner == "this machine" else f"the energy of {owner}"
        return f"Known of {energy} are {spent}: {told}."
    told = ", ".join(
        f"{cause} {share(j / column.energy_j, 0)}"
        for cause, j in causes
        if j >= 0.005 * column.energy_j
    )
    spent = f"{whose} spent {known}{joules(column.energy_j)} ({column.provenance}): {told}."
    if not column.wasted_j:
        return spent
    wasted = _listed([c for c in WASTED_CAUSES if c in column.by_cause])
    return (
        f"{spent} {_rounded(column.wasted_j / column.energy_j)} of that bought nothing ({wasted})."
    )


def _rounded(part: float) -> str:
    return share(part, 0) if part >= 0.005 else "Less than 1 %"


# ---------------------------------------------------------------- the card


def _compared(c: PathComparison, path: str) -> str:
    if c.gpu is None or c.card is None or c.ratio is None:
        return f"{c.role}: {c.sentence}."
    a, b = c.gpu, c.card
    factor, unit = edi_unit([a.edi_j_per_token, b.edi_j_per_token])
    prices = [_price(r, factor, unit) for r in (b, a)]
    change = f"{share(abs(1 - c.ratio), 0)} {'less' if c.ratio < 1 else 'more'}"
    return (
        f"{c.role}: per token the card ({b.device}) used {change} energy than the {path} "
        f"({a.device}; "
        f"{c.ratio_provenance}): {' against '.join(prices)}."
    )


def _price(r: StageRow, factor: float, unit: str) -> str:
    per_token = with_spread(scaled(r.edi_j_per_token, factor), scaled(r.edi_spread, factor), "SD")
    return f"{per_token} {unit} over {count(r.n_edi)} calls ({r.energy_provenance})"


def _unjudged(spending: Spending, cards: Sequence[PathComparison], path: str) -> str:
    # What a simulated one would have drawn stands with what the machine spent.
    idle = [
        p
        for p in card_parts(cards, spending.parts, Cause.IDLE)
        if p.energy_j is not None and not p.simulated
    ]
    known = [p.provenance for p in idle if p.provenance is not None]
    drew = ""
    if known:
        idle_j = math.fsum(present(p.energy_j for p in idle))
        drew = f" The card drew {joules(idle_j)} while idle ({weakest(*known)})."
    return (
        "Whether offloading paid cannot be said: no stage has energy both on the card and on the "
        f"{path}.{drew}"
    )


def _net(b: Balance, path: str) -> str:
    """Say gross and net of the offloaded tokens, and what the cards drew beside their calls."""
    gross = f"{'at least ' * b.at_most}{joules(b.card_j)}"
    change = "less" if b.saved_j > 0 else "more"
    start = (
        f"On the calls that it took {card_name(b)} drew {gross} (gross) in place of "
        f"{joules(b.gpu_would_j)} on the {path}: {bound(b.saved_j, at_most=b.at_most)}"
        f"{joules(abs(b.saved_j))} {change} (net)"
    )
    without = f"without {_listed(b.left_out)} " if b.left_out else ""
    open_ = f"; {left_out(b)}, so of the whole it cannot be said" if b.left_out else ""
    if b.net_j is None:
        return (
            f"{start} ({b.provenance}); {unknown_beside(b)}, so whether that paid is open{open_}."
        )
    whole = "of the run" if b.whole_run else "of its attempts"
    when = "" if b.idle_share is None else f" for {share(b.idle_share)} {whole}"
    when += " in the card's modelled time" * b.in_modelled_time
    paused = f", and {joules(b.paused_j)} while the run was paused" if b.paused_j else ""
    bounded = f"{bound(b.net_j, at_most=b.net_at_most)}{joules(abs(b.net_j))}"
    result = (
        f"{without}offloading paid, by {bounded}" if b.net_j > 0
        else f"{without}offloading did not pay: {bounded} more than without the card"
    )  # fmt: skip
    return (
        f"{start}, and it stood idle{when}, drawing {joules(b.idle_j)}{paused}: {result} "
        f"({b.provenance}){open_}."
    )


def card_name(b: Balance) -> str:
    """What to call the cards, in words that tell whether there is any hardware.

    Args:
        b: of the run.
    """
    return "the simulated card" if b.is_simulated else "the card"


def unknown_beside(b: Balance) -> str:
    """Which draw of the cards beside their calls is unknown.

    Args:
        b: of the run, without a net.
    """
    draws = [("idle draw", b.idle_j), ("draw in the pauses", b.paused_j)]
    lacking = [name for name, energy_j in draws if energy_j is None]
    return f"its {_listed(lacking)} {'is' if len(lacking) == 1 else 'are'} unknown"


def left_out(b: Balance) -> str:
    """Which stages were offloaded and have no energy on one of the paths.

    Args:
        b: of the run, with such stages.
    """
    return (
        f"{_listed(b.left_out)} {'have' if len(b.left_out) > 1 else 'has'} no energy on both sides"
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


def _expected(e: Expectation, path: str) -> str:
    change = e.gpu_j - e.chosen_j
    if e.n and abs(change) <= 1e-9 * max(abs(e.gpu_j), abs(e.chosen_j)):
        outcome = "no difference"
    else:
        outcome = f"{joules(abs(change))} {'less' if change > 0 else 'more'}"
    return (
        f"Expected before the stages of {e.n} decisions ran: {joules(e.gpu_j)} with all of them on "
        f"the {path}, {joules(e.chosen_j)} where they were placed: {outcome} ({e.provenance})."
    )

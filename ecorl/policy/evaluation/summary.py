"""A comparison of policies in rows and sentences, for the terminal and the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ecorl.policy.evaluation.comparison import (
    HARD_RULE,
    LITTLE,
    RULES,
    UNTUNED,
    MeanEstimate,
    PolicyComparison,
    ScenarioResult,
)
from ecorl.records import Provenance
from ecorl.scheduler.features import SCORE_WORDS

TITLES = {
    "always_gpu": "always GPU",
    "edi": "EDI greedy",
    "edi_queue": "EDI with queue",
    "algorithm1": "Algorithm 1",
    "static": "best static",
    "threshold": "tuned threshold",
    "always_a3": "always a3",
    "gain_greedy": "greatest gain",
    "lookahead": "look-ahead",
    "lookahead_defer": "look-ahead, deferring",
    "lookahead_measured": "look-ahead, measured",
    "lookahead_probing": "look-ahead, probing",
    "planner_nominal": "planner by the tables",
    "planner": "causal planner",
    "dp": "clairvoyant DP",
}
"""How policies are called in tables, where not by their own name."""

COLUMNS = ("policy", "share of DP", "share of planner", "energy", "worst loss", "p")
MISSING = "-"


@dataclass(frozen=True, slots=True)
class PolicyRow:
    """One policy in the comparison.

    Attributes:
        policy: title.
        dp_share, causal_share: of the dynamic programme's and the planner's Eq. 7, with the
            standard error over seeds; None where no scenario has something to share.
        energy: over that of always-GPU, mean over scenarios and seeds.
        worst_loss: most energy above always-GPU's in any scenario and seed, share of it.
        p_value: of the paired t-test against our policy; None where it was not made.
        significant: whether it holds after Bonferroni's correction.
    """

    policy: str
    dp_share: MeanEstimate | None
    causal_share: MeanEstimate | None
    energy: float
    worst_loss: float
    p_value: float | None = None
    significant: bool = False

    def cells(self) -> tuple[str, ...]:
        """The row as text, in the order of `COLUMNS`."""
        p = MISSING
        if self.p_value is not None:
            p = "< 1e-4" if self.p_value < 1e-4 else f"{self.p_value:.2g}"
        return (
            self.policy,
            _spread(self.dp_share),
            _spread(self.causal_share),
            f"{100 * self.energy:.2f} %",
            f"{100 * self.worst_loss:.3f} %",
            p + (" *" if self.significant else ""),
        )


def _spread(share: MeanEstimate | None) -> str:
    if share is None:
        return MISSING
    # Adding 0 makes a rounded -0.0 a 0.0.
    return f"{round(100 * share.mean, 1) + 0.0:.1f} ± {100 * share.error:.1f} %"


def counted(comparison: PolicyComparison) -> tuple[ScenarioResult, ...]:
    """Scenarios whose shares the table shows: the hard ones, else all with something to share."""
    return comparison.hard() or comparison.valued()


def rows(comparison: PolicyComparison, ours: str) -> list[PolicyRow]:
    """The table, a row a policy.

    Args:
        comparison: that has been played.
        ours: name of the policy that the others are tested against.
    """
    chosen, differences = counted(comparison), comparison.differences(ours)
    found = []
    for name in comparison.policies:
        energy = np.mean([r.scores[name].energy.mean() for r in comparison.results])
        difference = differences.get(name)
        found.append(
            PolicyRow(
                policy=TITLES.get(name, name),
                dp_share=comparison.mean_share(name, "dp", chosen),
                causal_share=comparison.mean_share(name, "planner", chosen),
                energy=float(energy),
                worst_loss=max(r.worst_loss(name) for r in comparison.results),
                p_value=None if difference is None else difference.p_value,
                significant=difference is not None and difference.significant,
            )
        )
    return found


def sentences(comparison: PolicyComparison, ours: str) -> list[str]:
    """Sentences below the table: which scenarios count, and the loss where shares mean nothing.

    Args:
        comparison: that has been played.
        ours: name of the policy that the sentences are about.
    """
    n, n_hard = len(comparison.results), len(comparison.hard())
    n_valued, are = len(comparison.valued()), "is" if n_hard == 1 else "are"
    seeds = len(comparison.results[0].scores[ours].score)
    said = [
        SCORE_WORDS,
        "a share is a policy's score over that of the clairvoyant DP, which knows all that comes, "
        "or of the causal planner, the best that knows no future; 0 % is offloading nothing",
        f"{n_hard} of {n} scenarios {are} hard enough for a share to count (on other "
        f"episodes the best rule reaches at most {HARD_RULE:.0%} of the planner); {seeds} seeds "
        "each",
    ]
    said += _gained(comparison, ours)
    if n_hard == 0 and n_valued:
        said.append(
            f"the shares are of the {n_valued} in which the DP gains {100 * LITTLE:g} % or more; "
            "simple rules do well there, so they say little"
        )
    said += _little(comparison, ours)
    worst = max(r.worst_loss(ours) for r in comparison.results)
    said.append(f"most energy that {ours} lost against offloading nothing: {100 * worst:.3f} %")
    return [*said, *_origin(comparison)]


def _origin(comparison: PolicyComparison) -> list[str]:
    """Where the figures come from."""
    runs = [r.scenario.replay for r in comparison.results if r.scenario.replay is not None]
    said = "all figures are modelled: the simulator's, not those of machines"
    if not runs:
        return [said]
    names = ", ".join(dict.fromkeys(f"{one.run_id} (its readings: {one.readings})" for one in runs))
    return [
        f"lengths, times and powers of {len(runs)} of {len(comparison.results)} scenarios are "
        f"{Provenance.REPLAYED} batch by batch from the record of {names}; where a stage did not "
        "run on a path, the last factor measured there stands in",
        "other jobs' queues, overlaps and all scores are modelled: the simulator's, not those of "
        "machines",
    ]


def _gained(comparison: PolicyComparison, ours: str) -> list[str]:
    """What there is to gain at all, and our policy against the best rule."""
    energy, time = (100.0 * float(saved.mean()) for saved in comparison.value())
    said = [
        f"the clairvoyant DP saves {energy:.2f} % of the energy and {time:.2f} % of the time of "
        "the same GPUs in a machine without cards, mean over scenarios"
    ]
    if "lookahead" in comparison.policies and len(comparison.results) > 1:
        for rules, what in ((RULES, "rule here"), (UNTUNED, "rule that is not tuned to the job")):
            best = comparison.best_rule(rules)
            gain = comparison.gain(ours, best)
            said.append(
                f"{ours} against {TITLES.get(best, best)}, the best {what}: {gain.mean:+.4f} of "
                f"the score an iteration (95 % interval over scenarios {gain.low:+.4f} to "
                f"{gain.high:+.4f})"
            )
    return said


def _little(comparison: PolicyComparison, ours: str) -> list[str]:
    """The scenarios in which a share means nothing, with the loss in its place."""
    little: Sequence[ScenarioResult] = [r for r in comparison.results if not r.has_value]
    if not little:
        return []
    losses = ", ".join(
        f"{r.scenario.name} {100 * r.worst_loss(ours):.3f} %"
        for r in sorted(little, key=lambda r: -r.worst_loss(ours))[:4]
    )
    more = f" and {len(little) - 4} more, none worse" if len(little) > 4 else ""
    return [
        f"in {len(little)} of {len(comparison.results)} the DP gains less than "
        f"{100 * LITTLE:g} %: there what {ours} loses in energy counts, against offloading "
        f"nothing: {losses}{more}"
    ]

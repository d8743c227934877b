"""What offloading would change in a job, an iteration, under several policies in the simulator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ecorl.devices import cheapest, dearest
from ecorl.policy.evaluation.comparison import LITTLE
from ecorl.policy.evaluation.evaluate import FilePolicy, SimPolicy
from ecorl.policy.planners.heuristics import StaticBaseline, always_gpu, best_static
from ecorl.policy.planners.planner import Planner
from ecorl.policy.planners.search import lookahead
from ecorl.scheduler.policy_file import PolicyFile
from ecorl.sim.scenario import Scenario
from ecorl.sim.simulation import Simulation, play
from ecorl.sim.trace import Trace, draw_trace

_TUNING_SEED, _SEED = 11, 12


@dataclass(frozen=True, slots=True)
class PlanRow:
    """One way to run the job, a mean over iterations and episodes.

    Attributes:
        policy: title.
        score: Eq. 7 an iteration, 0 for GPU-only.
        time_s, energy_j, bubble_s: an iteration; energy of GPUs and cards, idle ones included.
        tokens_per_j: completion tokens over that energy.
    """

    policy: str
    score: float
    time_s: float
    energy_j: float
    bubble_s: float
    tokens_per_j: float


NO_CARDS = "GPU-only, no cards"
GPU_ONLY, PLANNER, LEARNED = "GPU-only, cards idle", "causal planner", "learned policy"


def planned(
    scenario: Scenario,
    file: PolicyFile | None,
    *,
    n_seeds: int = 4,
    tell: Callable[[str, float], None] | None = None,
) -> list[PlanRow]:
    """Play the job under each policy on the same episodes.

    Args:
        scenario: the job.
        file: the learned policy; None leaves it out.
        n_seeds: episodes.
        tell: told how far it is.
    """
    tell = tell or (lambda step, share: None)
    trace = draw_trace([scenario] * n_seeds, np.random.default_rng(_SEED))
    tell("best static sequence", 0.0)
    tuning = draw_trace([scenario], np.random.default_rng(_TUNING_SEED))
    policies: dict[str, SimPolicy] = {
        GPU_ONLY: always_gpu,
        "best static": StaticBaseline(best_static(tuning)[0]),
        "look-ahead": lookahead,
    }
    tell("causal planner", 0.6)
    policies[PLANNER] = Planner(trace.scenarios)
    if file is not None:
        policies[LEARNED] = FilePolicy(file)
    rows = [_row(name, trace, policy) for name, policy in policies.items()]
    tell("done", 1.0)
    return [_without_cards(rows[0], scenario), *rows]


@dataclass(frozen=True, slots=True)
class PlanRange:
    """An iteration with the devices' figures at the ends of their intervals, all at once.

    Where work costs least on the GPUs it costs most on the cards, and the other way round: the
    gain of offloading lies between.

    Attributes:
        cheap, dear: the iteration on the GPUs alone, without cards.
        cheap_gain, dear_gain: what the causal planner gains there, Eq. 7 an iteration.
    """

    cheap: PlanRow
    dear: PlanRow
    cheap_gain: float
    dear_gain: float

    @property
    def pays(self) -> tuple[bool, bool]:
        """Whether offloading pays by the score at the cheap end and at the dear one."""
        return self.cheap_gain >= LITTLE, self.dear_gain >= LITTLE


def plan_range(scenario: Scenario, *, n_seeds: int = 4) -> PlanRange | None:
    """What the intervals of the devices' figures leave open; None where they have none.

    Args:
        scenario: the job.
        n_seeds: episodes.
    """
    gpu, card = scenario.setting.gpu, scenario.setting.card
    ends = (cheapest(gpu), dearest(card)), (dearest(gpu), cheapest(card))
    if scenario.calibration != "roofline" or ends[0] == (gpu, card) == ends[1]:
        return None
    found = []
    for gpu_end, card_end in ends:
        moved = replace(scenario, gpu=gpu_end, card=card_end)
        trace = draw_trace([moved] * n_seeds, np.random.default_rng(_SEED))
        idle, planner = (
            _row(name, trace, policy)
            for name, policy in ((GPU_ONLY, always_gpu), (PLANNER, Planner(trace.scenarios)))
        )
        found.append((_without_cards(idle, moved), planner.score))
    (cheap, cheap_gain), (dear, dear_gain) = found
    return PlanRange(cheap, dear, cheap_gain, dear_gain)


def _without_cards(idle: PlanRow, scenario: Scenario) -> PlanRow:
    """The same iteration in a machine that has no cards to idle."""
    tokens = idle.tokens_per_j * idle.energy_j
    energy_j = idle.energy_j - scenario.table.card_idle_w * idle.time_s
    return PlanRow(NO_CARDS, 0.0, idle.time_s, energy_j, 0.0, tokens / energy_j)


def _row(name: str, trace: Trace, policy: SimPolicy) -> PlanRow:
    score, energy_j, time_s, bubble_s, _ = play(Simulation(trace), policy)
    n = trace.n_iterations
    tokens = float((trace.n_rows * trace.length).sum(axis=0).mean())
    mean_j = float(energy_j.mean())
    return PlanRow(
        name,
        float(score.mean()) / n,
        float(time_s.mean()) / n,
        mean_j / n,
        float(bubble_s.mean()) / n,
        tokens / mean_j,
    )


def verdict(rows: list[PlanRow], scenario: Scenario) -> str:
    """Whether offloading pays, and how much, in one sentence."""
    by_name = {row.policy: row for row in rows}
    base, best, bare = by_name[GPU_ONLY], by_name[PLANNER], by_name[NO_CARDS]
    table = scenario.table
    if not any(table.card_usable):
        why = "; ".join(table.notes) or "there is none that can run them"
        return f"Offloading is not possible: the cards cannot run these stages ({why})."
    if best.score < LITTLE:
        gain = 100 * max(best.score, 0.0)
        return (
            "Offloading does not pay: the causal planner, the best plan that knows no "
            f"future, gains {gain:.2f} % by the score over leaving the cards idle, less than "
            f"{100 * LITTLE:g} % ({table.provenance})."
        )
    against_bare = _change(best.energy_j, bare.energy_j)
    return (
        f"Offloading pays by the score (+{best.score:.3f}): the causal planner, the best plan "
        f"that knows no future, changes energy by {_change(best.energy_j, base.energy_j)} and time "
        f"by {_change(best.time_s, base.time_s)} against idle cards; against the same GPUs without "
        f"cards it changes energy by {against_bare} ({table.provenance})."
    )


def _change(value: float, base: float) -> str:
    return f"{100 * (value / base - 1.0):+.1f} %"

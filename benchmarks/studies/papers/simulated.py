"""What our simulator gives for each scheduler claim of the EcoRL-Sched paper.

`simulate` answers all of them under one calibration. Setting: the paper's Table 4 (70 B policy,
8 B reward, reference and critic, 32 H100, 4 U55C, PPO), 256 rows an iteration, its task mix.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from benchmarks.studies.frameworks.stage_orders import RLHFUSE, ecorl_schedule
from benchmarks.studies.papers.claims import evaluate
from benchmarks.studies.papers.scheduler_claims import CLAIMS, FIGURES
from benchmarks.studies.papers.systems import (
    BF16_BYTES,
    BLOCKING,
    GPUS_PER_NODE,
    LINK_BYTES_PER_S,
    Case,
    Passes,
    Played,
    PolicyMaker,
)
from ecorl.policy.planners.heuristics import StaticBaseline, algorithm1, best_static
from ecorl.policy.planners.planner import Clairvoyant
from ecorl.records import Algorithm, Stage
from ecorl.scheduler.paper_table import LENGTH, LONGEST_RATIO, all_reduce_s, paper_table
from ecorl.scheduler.tables import COLUMN, LONG, SHORT, CostTable, Float64, roofline_table
from ecorl.sim.scenario import Scenario, SimCalibration

SATURATED = 0.99
"""A count of cards is enough when it reaches this share of the best of the sweep; assumed."""

SHARED_LOAD = 0.3
"""Other jobs' share of a shared array's time; assumed. The paper's array is its job's alone."""

ALL_REDUCE_CUT: float = FIGURES["message_cut"]
"""The paper, section 4.3: frozen models on cards make the all-reduce message this much smaller."""

BIG_GPUS = 96
"""GPUs that hold a 405 B policy in training (16 B a parameter): more than the paper's 32."""

MIN_GAIN = 1e-3
"""Where the optimum gains less than this over always-GPU a share of it says nothing."""


class Outcome(NamedTuple):
    """What the simulator gives for one claim.

    Attributes:
        value: the figure; None when there is none.
        values: of the episodes, for the spread; empty for a figure without chance.
        note: what to know; with the value None, why.
        in_table: whether the note belongs in the table too; that of a gap always does.
    """

    value: float | None
    values: tuple[float, ...] = ()
    note: str = ""
    in_table: bool = False


Outcomes = Mapping[str, Outcome]

_AROUND = LENGTH * np.array([0.5, 1.0, 2.0])
_SIZES: Mapping[Stage, str] = MappingProxyType({Stage.GENERATION: "70b"})


def simulate(
    calibration: SimCalibration, passes: Passes, make_policy: PolicyMaker
) -> dict[str, Outcome]:
    """Simulate all claims under one calibration.

    Args:
        calibration: where the costs come from.
        passes: how much is played.
        make_policy: makes the policy under test for the episodes of a trace.

    Returns:
        Outcomes by the claims' ids.
    """
    s = _Simulated(calibration, passes, make_policy)
    found = s.by_expression() | s.oracle() | s.table_5() | s.cards()
    return found | s.lengths() | s.algorithms() | s.scaling()


def _mean(values: Float64, note: str = "") -> Outcome:
    return Outcome(float(values.mean()), tuple(float(v) for v in values), note, bool(note))


class _Simulated:
    def __init__(
        self, calibration: SimCalibration, passes: Passes, make_policy: PolicyMaker
    ) -> None:
        self.calibration, self.passes, self.make_policy = calibration, passes, make_policy
        self.base = Scenario(
            f"paper setting, {calibration}",
            calibration,
            sizes=_SIZES,
            n_iterations=passes.n_iterations,
        )
        self.case = Case(self.base, passes.n_episodes, passes.seed)
        self._cases: list[Case] = []

        self.played = self.case.played(make_policy)

    def by_expression(self) -> dict[str, Outcome]:
        """Claims whose expression is over what systems do on the same lengths.

        EcoRL-Sched with all of its components has an adaptive batch. The policy under test and
        Algorithm 1 are in the placement simulator, on DeepSpeed-Chat's order.
        """
        case, adaptive = self.case, replace(self.base, adaptive_batch=True)
        cheapest, fastest = Case(adaptive, self.passes.n_episodes, self.passes.seed).fused
        systems = {
            "sequential": case.sequential,
            "rlhfuse": case.framework(RLHFUSE),
            "blocking": case.framework(ecorl_schedule(BLOCKING)),
            "fixed_batch": case.fused[0],
            "cheapest": cheapest,
            "fastest": fastest,
            "policy": self.played.rates,
            "algorithm1": case.played(lambda trace: algorithm1),
            "n_gpus": self.base.n_gpus,
            "n_iterations": self.base.n_iterations,
        }
        did = f"it put {self.played.offloaded:.0%} of reward and reference on the cards"
        return {
            c.id: _mean(evaluate(c.simulated, systems), did if "policy" in c.simulated else "")
            for c in CLAIMS
            if c.simulated
        }

    def oracle(self) -> dict[str, Outcome]:
        shared = replace(self.base, load=SHARED_LOAD)
        other = Case(shared, self.passes.n_episodes, self.passes.seed)
        own = _oracle_shares(self.case, self.played)
        there = _oracle_shares(other, other.played(self.make_policy))
        return {
            "oracle_share": own[0],
            "oracle_share_fixed": own[1],
            "oracle_share_shared": there[0],
        }

    def _case(self, scenario: Scenario) -> Case:
        """A point of a sweep; several sweeps pass through the same one."""
        for case in self._cases:
            if case.scenario == scenario:
                return case
        self._cases.append(Case(scenario, self.passes.n_sweep, self.passes.seed))
        return self._cases[-1]

    def table_5(self) -> dict[str, Outcome]:
        points = {
            f"reward_{name}": self._with_reward(size)
            for name, size in (("1b", "1b"), ("7b", "8b"), ("13b", "13b"))
        }
        points |= {f"batch_{n}": replace(self.base, n_rows=n) for n in (128, 256, 1024)}
        found = {}
        for name, scenario in points.items():
            case = self._case(scenario)
            (least_j, least_s), base = case.fused, case.sequential
            found[f"{name}_speedup"] = _mean(least_s.rows_per_s / base.rows_per_s)
            found[f"{name}_gain"] = _mean(least_j.tokens_per_j - base.tokens_per_j)
        return found | {f"card_advantage_{n}": self._card_advantage(n) for n in ("1b", "13b")}

    def _with_reward(self, size: str) -> Scenario:
        return replace(self.base, sizes=MappingProxyType({**_SIZES, Stage.REWARD: size}))

    def _card_advantage(self, size: str) -> Outcome:
        """Joules a token of the reward model on the GPUs over those on the cards."""
        table = _costs(self._with_reward(size))
        if not table.card_usable[0]:
            return Outcome(None, note="; ".join(table.notes) or "the cards cannot run it")
        row = table.values[1]
        card_j = table.card_active_w * row[COLUMN["reward_card_s"]]
        return Outcome(float(row[COLUMN["reward_j"]] / card_j))

    def cards(self) -> dict[str, Outcome]:
        """By counts of cards: on RLHFuse's fusion, and of the policy."""
        found = {}
        for name in ("70b", "405b"):
            sizes = MappingProxyType({Stage.GENERATION: name})
            big = name == "405b" and self.calibration == "roofline"
            n_gpus = BIG_GPUS if big else self.base.n_gpus
            scenario = replace(self.base, sizes=sizes, n_gpus=n_gpus)
            reached = defaultdict[str, list[float]](list)
            for n_cards in self.passes.card_counts:
                case = self._case(replace(scenario, n_cards=n_cards))
                least_j, least_s = case.fused
                rates = case.played(self.make_policy).rates
                for id, values in (
                    (f"cards_throughput_{name}", least_s.rows_per_s),
                    (f"cards_energy_{name}", least_j.tokens_per_j),
                    (f"cards_throughput_{name}_policy", rates.rows_per_s),
                    (f"cards_energy_{name}_policy", rates.tokens_per_j),
                ):
                    reached[id].append(float(values.mean()))
            note = f"on {n_gpus} GPUs" if big else ""
            for id, means in reached.items():
                found[id] = saturation(self.passes.card_counts, means, note)
        return found

    def lengths(self) -> dict[str, Outcome]:
        """Where reward and reference on the cards take as long as the actor's forward pass."""
        lengths = np.geomspace(64.0, 16384.0, self.passes.n_lengths)
        table = _costs(self.base, lengths)
        card_s = sum(table.values[:, COLUMN[f"{s}_card_s"]] for s in ("reward", "reference"))
        forward_s = table.forward_share * table.values[:, COLUMN["actor_train_s"]]
        ratio = np.asarray(card_s / forward_s)
        at_limit = float(np.interp(np.log(2048.0), np.log(lengths), ratio))
        fits = np.flatnonzero(ratio <= 1.0)
        l_max = Outcome(None, note="the cards are slower than the forward pass at every length")
        if len(fits) == len(lengths):
            l_max = Outcome(None, note="the cards are faster than the forward pass at every length")
        elif len(fits):
            k = int(fits[-1])
            share = (1.0 - ratio[k]) / (ratio[k + 1] - ratio[k])
            l_max = Outcome(float(lengths[k] * (lengths[k + 1] / lengths[k]) ** share))
        return {"l_max": l_max, "lemma_ratio": Outcome(at_limit)}

    def algorithms(self) -> dict[str, Outcome]:
        found = {}
        for name, algorithm in (
            ("ppo", Algorithm.PPO),
            ("grpo", Algorithm.GRPO),
            ("reinforce", Algorithm.REINFORCE_PP),
            ("dapo", Algorithm.DAPO),
        ):
            case = self._case(replace(self.base, algorithm=algorithm))
            cut = 1.0 - case.sequential.tokens_per_j / case.fused[0].tokens_per_j
            found[f"energy_cut_{name}"] = _mean(cut)
        cuts = [one.value or 0.0 for one in found.values()]
        return found | {"energy_cut_range": Outcome(max(cuts) - min(cuts))}

    def scaling(self) -> dict[str, Outcome]:
        base = _efficiency(lambda n: self._time_s(n, 1.0, offload=False))
        cut = _efficiency(lambda n: self._time_s(n, 1.0 - ALL_REDUCE_CUT, offload=True))
        return {"scaling_baseline": Outcome(base), "scaling_ecorl": Outcome(cut)}

    def _time_s(self, n_gpus: int, message: float, *, offload: bool) -> float:
        """Iteration at the paper's length, gradients' all-reduce included, s."""
        scenario = replace(self.base, n_gpus=n_gpus, n_cards=max(1, n_gpus // GPUS_PER_NODE))
        row = _costs(scenario).values[1]
        share = (LONGEST_RATIO - SHORT) / (LONG - SHORT)
        short_s, long_s = (row[COLUMN[f"generation_{x}_s"]] for x in ("short", "long"))
        stages = ["critic_s", "actor_train_s", "critic_train_s"]
        stages += [] if offload else ["reward_s", "reference_s"]
        time_s = short_s + (long_s - short_s) * share + sum(row[COLUMN[s]] for s in stages)
        reduce_s = _all_reduce_s(scenario)
        if self.calibration == "paper":
            return float(time_s - (1.0 - message) * reduce_s)
        return float(time_s + message * reduce_s)


def _costs(scenario: Scenario, lengths: Float64 = _AROUND) -> CostTable:
    """Costs at some lengths; by default with that of the paper's iteration in the middle."""
    make = paper_table if scenario.calibration == "paper" else roofline_table
    return make(scenario.setting, lengths, scenario.rows_at(lengths))


def _all_reduce_s(scenario: Scenario) -> float:
    """Ring all-reduce of the actor's BF16 gradients over nodes with a link a GPU, s."""
    if scenario.calibration == "paper":
        return all_reduce_s(scenario.n_gpus)
    n_nodes = scenario.n_gpus / GPUS_PER_NODE
    message = BF16_BYTES * scenario.models[Stage.ACTOR_TRAIN].n_params
    return 2.0 * (n_nodes - 1.0) / n_nodes * message / (GPUS_PER_NODE * LINK_BYTES_PER_S)


def _efficiency(time_s: Callable[[int], float]) -> float:
    return 16 * time_s(16) / (1024 * time_s(1024))


def saturation(counts: Sequence[int], values: Sequence[float], note: str = "") -> Outcome:
    """The fewest cards that reach `SATURATED` of the best.

    Args:
        counts: of cards, rising.
        values: what each count reaches, more is better.
        note: words that go before the values in the outcome's note.
    """
    best = max(values)
    count = next(c for c, v in zip(counts, values, strict=True) if v >= SATURATED * best)
    steps = ", ".join(f"{c}: {v:.4g}" for c, v in zip(counts, values, strict=True))
    return Outcome(float(count), note=f"{note}{'; ' if note else ''}by cards {steps}")


def _oracle_shares(case: Case, played: Played) -> tuple[Outcome, Outcome]:
    """The policy's share of the clairvoyant optimum, and of the best fixed sequence."""
    score = float(played.score.sum())
    shares = []
    best = case.played(Clairvoyant).score
    sequence = best_static(case.trace)
    fixed = case.played(lambda trace: StaticBaseline(sequence)).score
    for name, oracle in (("optimum", best), ("best fixed sequence", fixed)):
        worth = float(oracle.mean()) / case.scenario.n_iterations
        if worth < MIN_GAIN:
            note = f"the {name} gains {worth:.2g} of Eq. 7 an iteration over always-GPU"
            shares.append(Outcome(None, note=f"{note}: nothing to take a share of"))
        else:
            values = tuple(float(v) for v in played.score / np.maximum(oracle, 1e-12))
            shares.append(Outcome(score / float(oracle.sum()), values))
    return shares[0], shares[1]

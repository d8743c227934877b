"""The systems that the EcoRL-Sched paper compares, on our simulator.

A `Case` is a scenario with its episodes. On it run the baselines (stage orders by the list
scheduler), EcoRL-Sched on top of RLHFuse's fusion with the best placement of every iteration, and a
policy in the placement simulator, whose order is DeepSpeed-Chat's with cards beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from benchmarks.studies.frameworks.list_scheduler import Cluster, ScheduleTimeline, run_schedule
from benchmarks.studies.frameworks.stage_orders import DEEPSPEED_CHAT, Schedule, ecorl_schedule
from ecorl.errors import ConfigError
from ecorl.policy.evaluation.evaluate import FilePolicy
from ecorl.policy.planners.heuristics import algorithm1
from ecorl.policy.planners.planner import Planner
from ecorl.policy.planners.search import lookahead
from ecorl.records import Stage
from ecorl.scheduler.features import NAMES
from ecorl.scheduler.policy_file import PolicyFile
from ecorl.scheduler.tables import Float64
from ecorl.sim.scenario import Scenario
from ecorl.sim.simulation import Simulation
from ecorl.sim.trace import Trace, draw_trace, work_at
from ecorl.stages.figures import CONCURRENT, FPGA, GPU, Work

Policy = Callable[[Simulation], Any]
"""Called with a batched simulation; returns one action code an episode."""

PolicyMaker = Callable[[Trace], Policy]
"""Makes the policy for the episodes of a trace."""


def greedy(simulation: Simulation) -> Any:
    """The action with the best outlook if all that follows stays on the GPUs."""
    state, _ = simulation.observation()
    gain_a2, gain_a3 = (state[NAMES.index(name)] for name in ("gain_a2", "gain_a3"))
    best = np.where(gain_a3 >= gain_a2, CONCURRENT, FPGA)
    return np.where(np.maximum(gain_a2, gain_a3) > 0.0, best, GPU)


POLICIES: Mapping[str, PolicyMaker] = MappingProxyType(
    {
        "greedy": lambda trace: greedy,
        "lookahead": lambda trace: lookahead,
        "algorithm1": lambda trace: algorithm1,
        "planner": lambda trace: Planner(trace.scenarios),
    }
)
"""Policies that the benchmark knows by name, beside the learned one."""

LEARNED = "learned"


def policy_maker(name: str) -> PolicyMaker:
    """The policy of a name, the shipped one for ``learned``, or that of an ONNX file.

    Raises:
        ConfigError: for an unknown name, or a file that is no policy.
    """
    if name in POLICIES:
        return POLICIES[name]
    if name != LEARNED and not name.endswith(".onnx"):
        allowed = f"one of {[*sorted(POLICIES), LEARNED]}, or the path of an .onnx file"
        raise ConfigError("--policy", name, allowed)
    learned = FilePolicy(PolicyFile(None if name == LEARNED else Path(name)))
    return lambda trace: learned


GPUS_PER_NODE = 8
MICRO_ROWS = 32
"""The paper's Table A1: mini-batches of 32 rows; Table 4: nodes of 8 GPUs."""

LINK_BYTES_PER_S = 200e9 / 8
"""The paper's Table 4: IB HDR, 200 Gb/s; one a GPU is assumed."""

BF16_BYTES = 2.0


class Passes(NamedTuple):
    """How much is played.

    Attributes:
        n_episodes: of the headline claims.
        n_sweep: of each point of a sweep.
        n_iterations: of an episode.
        seed: of all chance.
        card_counts: of the sweeps over cards.
        n_lengths: of the search for l_max.
    """

    n_episodes: int = 10
    n_sweep: int = 5
    n_iterations: int = 60
    seed: int = 2025
    card_counts: tuple[int, ...] = (0, 1, 2, 4, 8, 16, 32)
    n_lengths: int = 81


class Rates(NamedTuple):
    """What a system did on the episodes of a case, ``[n] float64`` each.

    Attributes:
        tokens, rows: tokens and completions that were generated.
        time_s, energy_j: what that took.
        busy_s: time that all GPUs together had work for.
    """

    tokens: Float64
    rows: Float64
    time_s: Float64
    energy_j: Float64
    busy_s: Float64

    @property
    def tokens_per_j(self) -> Float64:
        """Tokens over the energy of GPUs and cards, idle power included."""
        return self.tokens / self.energy_j

    @property
    def rows_per_s(self) -> Float64:
        """Completions a second."""
        return self.rows / self.time_s

    @property
    def bubble(self) -> Float64:
        """Share of GPU time without work."""
        return 1.0 - self.busy_s / self.time_s


class Played(NamedTuple):
    """A policy in the placement simulator.

    Attributes:
        rates: what it did.
        score: Eq. 7 over the episode, ``[n] float64``.
        waited: share of iterations in which the barrier held the GPUs, ``[n] float64``.
        offloaded: share of reward and reference that ran on the cards, 0 to 1.
    """

    rates: Rates
    score: Float64
    waited: Float64
    offloaded: float


def cluster_of(scenario: Scenario) -> Cluster:
    """What the list scheduler must know of a scenario's cluster.

    Copies of the policy hold its BF16 weights. Training pipelines have a stage a node and fill and
    drain once a step, (p - 1) / (m + p - 1). The paper's shares of time add up to 100 % without
    moving weights, so under its calibration that takes no time.
    """
    policy = scenario.models[Stage.GENERATION]
    memory = scenario.setting.gpu.value("memory_bytes")
    weights = BF16_BYTES * policy.n_params
    n_stages = math.ceil(scenario.n_gpus / GPUS_PER_NODE)
    n_micro = max(1, scenario.n_rows // MICRO_ROWS)
    return Cluster(
        n_rows=float(scenario.n_rows),
        n_copies=float(max(1, scenario.n_gpus // math.ceil(weights / memory))),
        pipeline_bubble=(n_stages - 1) / (n_micro + n_stages - 1),
        reshard_s=0.0 if scenario.calibration == "paper" else weights / LINK_BYTES_PER_S,
    )


ON_GPUS = (GPU,) * 6
BLOCKING = (GPU, FPGA, FPGA, GPU, GPU, GPU)
"""The FPGA engine without a scheduler: both frozen stages on the cards, one after another."""


class Case:
    """A scenario and its episodes.

    Args:
        scenario: what runs.
        n: episodes.
        seed: of all chance; equal seeds give scenarios of one shape the same lengths.
    """

    def __init__(self, scenario: Scenario, n: int, seed: int) -> None:
        self.scenario = scenario
        self.trace = draw_trace([scenario] * n, np.random.default_rng(seed))
        self.cluster = cluster_of(scenario)
        # Costs are those of the rows at the length that came, so tokens are counted alike.
        rows = scenario.rows_at(self.trace.length)
        self.rows = rows.sum(axis=0)
        self.tokens = (rows * self.trace.length).sum(axis=0)

    @cached_property
    def works(self) -> list[list[Work]]:
        """Work by episode and iteration, in floats."""
        trace = self.trace
        return [
            [work_at(trace.actual, (k, i)) for k in range(trace.n_iterations)]
            for i in range(trace.n)
        ]

    def framework(self, schedule: Schedule) -> Rates:
        """A stage order on all episodes."""
        return self._rates([[run_schedule(schedule, w, self.cluster)] for w in self.works])

    @cached_property
    def sequential(self) -> Rates:
        """DeepSpeed-Chat, the paper's reference."""
        return self.framework(DEEPSPEED_CHAT)

    @cached_property
    def fused(self) -> tuple[Rates, Rates]:
        """EcoRL-Sched on RLHFuse's fusion: the placements of least energy, and of least time.

        Every iteration gets the best of all placements, with its lengths known and no guards: no
        scheduler with these actions does better on it. Iterations do not overlap, so each is
        evaluated alone.
        """
        least_j, least_s = [], []
        orders = [ecorl_schedule(c) for c in self._placements()]
        for works in self.works:
            found = [[run_schedule(o, [w], self.cluster) for o in orders] for w in works]
            least_j.append([min(one, key=lambda t: t.energy_j) for one in found])
            least_s.append([min(one, key=lambda t: t.time_s) for one in found])
        return self._rates(least_j), self._rates(least_s)

    def _placements(self) -> list[tuple[int, ...]]:
        """Placements that differ in the fused order; streaming costs nothing there."""
        usable = self.scenario.table.card_usable if self.scenario.n_cards else (False, False)
        places = [(GPU, CONCURRENT) if is_usable else (GPU,) for is_usable in usable[:2]]
        off = [pair for pair in product(*places) if any(pair)]
        codes = [
            (CONCURRENT, *pair, GPU, early, GPU) for pair in off for early in (GPU, CONCURRENT)
        ]
        return [ON_GPUS, *codes]

    def played(self, make_policy: PolicyMaker) -> Played:
        """A policy in the placement simulator."""
        simulation = Simulation(self.trace)
        policy = make_policy(self.trace)
        n, n_iter = self.trace.n, self.trace.n_iterations
        score, time_s, energy_j, on_cards_s, waited = (np.zeros(n) for _ in range(5))
        n_off, n_there = 0, 0
        while not simulation.done:
            may = simulation.permitted()
            work, place = simulation.actual, simulation.place
            action = np.asarray(policy(simulation))
            allowed = (action == FPGA) * may[0] + (action == CONCURRENT) * may[1]
            score += simulation.step(action, may)
            if 1 <= place <= 3:
                off = allowed > 0
                on_cards_s += off * work.gpu_s[place - 1]
                there = np.asarray(work.gpu_s[place - 1]) > 0
                n_off += int((off & there).sum()) if place < 3 else 0
                n_there += int(there.sum()) if place < 3 else 0
            if simulation.place == 0 and simulation.totals is not None:
                time_s += simulation.totals.time_s
                energy_j += simulation.totals.energy_j
                waited += simulation.totals.bubble_s > 1e-9
        # The order is DeepSpeed-Chat's, so as much weight moves, with GPUs and cards idle.
        moved_s = n_iter * DEEPSPEED_CHAT.reshard * self.cluster.reshard_s
        idle_w = self.trace.actual.gpu_idle_w[0] + self.trace.actual.card_idle_w[0]
        time_s, energy_j = time_s + moved_s, energy_j + moved_s * idle_w
        busy_s = self.sequential.busy_s - on_cards_s
        rates = Rates(self.tokens, self.rows, time_s, energy_j, busy_s)
        return Played(rates, score, waited / n_iter, n_off / max(n_there, 1))

    def _rates(self, episodes: Sequence[Sequence[ScheduleTimeline]]) -> Rates:
        def total(name: str) -> Float64:
            return np.array([sum(getattr(t, name) for t in one) for one in episodes])

        return Rates(self.tokens, self.rows, total("time_s"), total("energy_j"), total("busy_s"))

"""How long one placement decision takes, from the telemetry snapshot to the placement."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from ecorl.config import DeviceConfig, LearnedPolicyConfig, PlacementConfig
from ecorl.devices import load_profile
from ecorl.devices.llama import model_shape
from ecorl.records import Action, Algorithm, PathCost, Provenance, SchedulerState, Stage, StageWork
from ecorl.scheduler import Guards, build_policy, place
from ecorl.scheduler.policies import Policy

N_STATES = 256
"""Different states in turn, so that no cache of a single one is measured."""

CARD_S = 11.5e-3
"""Time of an 8 B model on the card for each output token, s: about what the cycle model says."""


@dataclass(slots=True)
class Deciding:
    """A policy with its guards and the states that it is asked about.

    Attributes:
        policy: the learned one, as a run builds it.
        guards: as a run has them.
        states: rewards and references of different lengths, queues and readings.
        tdp_w: of one GPU, W.
        batches: of the states, that of a reference the one of the reward before it.
    """

    policy: Policy
    guards: Guards
    states: tuple[SchedulerState, ...]
    tdp_w: float
    batches: list[StageWork] = field(init=False)

    def __post_init__(self) -> None:
        self.batches = [
            replace(self.states[i - i % 2].work, stage=s.stage, model=s.work.model)
            for i, s in enumerate(self.states)
        ]

    def decide(self, i: int) -> Action:
        """One decision: state, network, guards."""
        return place(self.states[i % len(self.states)], self.policy, self.guards).action

    def asks_the_network(self) -> bool:
        """Whether every decision goes as far as the network; else a guard ended it before."""
        placed = (place(state, self.policy, self.guards) for state in self.states)
        return all("the learned policy's choice" in placement.reason for placement in placed)


def deciding(n_gpus: int = 32, seed: int = 0) -> Deciding:
    """Set up the shipped policy in a run of GRPO with 8 B models.

    The GPU path's costs are as if it were many times as slow and dear as it is, so that the guards
    let an offload pass and the network is asked; otherwise a decision would end before it.

    Args:
        n_gpus: GPUs of the run.
        seed: of lengths, queues and readings.
    """
    config = PlacementConfig(
        policy=LearnedPolicyConfig(), l_max=131_072, energy_margin=None, profile_both_paths=False
    )
    models = {stage: model_shape("8b", scalar_head=stage is Stage.REWARD) for stage in
              (Stage.GENERATION, Stage.REWARD, Stage.REFERENCE, Stage.ACTOR_TRAIN)}  # fmt: skip
    gpu, card = load_profile("h100_sxm"), load_profile("u55c")
    policy = build_policy(config, gpu, card, DeviceConfig(n_gpus=n_gpus), models)
    rng = np.random.default_rng(seed)
    paths = tuple(
        _measured(stage, 1e-1, 400.0 * n_gpus / 32)
        for stage in (Stage.GENERATION, Stage.REWARD, Stage.REFERENCE, Stage.ACTOR_TRAIN)
    ) + tuple(
        _measured(stage, CARD_S, CARD_S * card.value("active_w"), Provenance.MODELLED)
        for stage in (Stage.REWARD, Stage.REFERENCE)
    )
    states = []
    for i in range(N_STATES):
        length = int(rng.integers(400, 900))
        stage = (Stage.REWARD, Stage.REFERENCE)[i % 2]
        work = StageWork(stage, 64, 64 * (length + 250), 64 * length, 2 * length, models[stage])
        power = tuple(float(x) for x in rng.uniform(0.1, 1.0, n_gpus))
        used = tuple(float(x) for x in rng.uniform(0.1, 1.0, n_gpus))
        queue = int(rng.integers(0, 3))
        states.append(
            SchedulerState(i, Algorithm.GRPO, stage, power, used, queue, True, work, i, paths=paths)
        )
    made = Deciding(policy, Guards.from_config(config), tuple(states), gpu.value("tdp_w"))
    for i in range(N_STATES):
        made.decide(i)  # tables are made when a size first comes
    return made


def _measured(
    stage: Stage, time_s: float, energy_j: float, provenance: Provenance = Provenance.MEASURED
) -> PathCost:
    """A cost for each output token as a run has it after 20 executions."""
    return PathCost(
        stage, time_s, energy_j, 20, provenance, recent_s_per_token=time_s,
        recent_j_per_token=energy_j, n_recent=19, spread=0.05, age=1, mean_length=600.0,
        on_card=provenance is Provenance.MODELLED,
    )  # fmt: skip


def timed(call: Callable[[int], object], n: int) -> np.ndarray:
    """Time each of n calls, s ``[n] float64``.

    Args:
        call: called with the number of the call.
        n: calls.
    """
    clock, times = time.perf_counter_ns, np.empty(n)
    for i in range(n):
        start = clock()
        call(i)
        times[i] = clock() - start
    return times * 1e-9

"""Placement decisions: how long one takes, from a snapshot, and with all that a run does.

`Deciding` asks the shipped policy about states that are there. `RunDecisions` decides as in a run:
each iteration has its generation, reward, reference and training accounted in the EDI matrix, and
begins with what the roles have cost so far. Reward and reference are then placed one after the
other: the scheduler's own `StateReader` collects the state from lanes, readings and the iteration,
and Algorithm 1 asks the learned policy. Readings come from memory, and the cards never answer.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import cast

import numpy as np

from ecorl.config import DeviceConfig, LearnedPolicyConfig, PlacementConfig
from ecorl.devices import load_profile
from ecorl.devices.llama import model_shape
from ecorl.edi import EdiMatrix
from ecorl.engines.lanes.threaded import AsyncEngine
from ecorl.engines.protocol import ScoreBatch
from ecorl.records import (
    Action,
    Algorithm,
    DeviceKind,
    EnergyMethod,
    PathCost,
    Placement,
    Provenance,
    Role,
    SchedulerState,
    SmoothedPower,
    Stage,
    StageEnergy,
    StageResult,
    StageWork,
)
from ecorl.runtime.energy.run_energy import RunEnergy
from ecorl.runtime.handles import Iteration
from ecorl.runtime.monitor import NodePower
from ecorl.runtime.scheduling.iterations import OpenIterations, StateReader, new_iteration
from ecorl.runtime.scheduling.offload import LanePlace, OffloadLane, PendingBatch
from ecorl.scheduler import Guards, build_policy, place
from ecorl.scheduler.policies import Policy
from ecorl.scheduler.tables import Float64
from ecorl.telemetry.sources.specs import DeviceInfo

N_STATES = 256
"""Different states in turn, so that no cache of a single one is measured."""

CARD_S = 11.5e-3
"""Time of an 8 B model on the card for each output token, s: about what the cycle model says."""


_STAGES = (Stage.GENERATION, Stage.REWARD, Stage.REFERENCE, Stage.ACTOR_TRAIN)


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
    models = {stage: model_shape("8b", scalar_head=stage is Stage.REWARD) for stage in _STAGES}
    gpu, card = load_profile("h100_sxm"), load_profile("u55c")
    policy = build_policy(config, gpu, card, DeviceConfig(n_gpus=n_gpus), models)
    rng = np.random.default_rng(seed)
    paths = (
        *(_measured(stage, 1e-1, 400.0 * n_gpus / 32) for stage in _STAGES),
        *(
            _measured(stage, CARD_S, CARD_S * card.value("active_w"), Provenance.MODELLED)
            for stage in (Stage.REWARD, Stage.REFERENCE)
        ),
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


def timed(call: Callable[[int], object], n: int) -> Float64:
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


# ---------------------------------------------------------------- as in a run

GPU_PROFILE, CARD_PROFILE = "h100_sxm", "u55c"
N_BEFORE = 20
"""Iterations that are accounted before the first decision."""

JITTER = 0.05
"""Spread of what a stage costs from iteration to iteration, as a share."""


class RunDecisions:
    """The decisions of one run, in turns those about reward and about reference.

    `prepare` and `decide` are called for 0, 1, 2, ...; only the second is a run's decision.

    Args:
        made: policy, guards, and the states whose lengths, readings and queues come in turn.
    """

    def __init__(self, made: Deciding) -> None:
        self._made = made
        self._energy = RunEnergy(EdiMatrix())
        self._levels = {(c.stage, c.on_card): c for c in made.states[0].paths}
        self._rng = np.random.default_rng(0)
        self._iterations = OpenIterations()
        n_gpus = len(made.states[0].gpu_power_share)
        self._devices = tuple(
            DeviceInfo(f"gpu{i}", DeviceKind.GPU, Provenance.MEASURED, "memory", GPU_PROFILE)
            for i in range(n_gpus)
        )
        self._lanes: dict[Role, OffloadLane] = {
            stage: _lane(stage) for stage in (Stage.REWARD, Stage.REFERENCE)
        }
        self._reader = StateReader(
            made.states[0].algorithm, lambda: self._now, made.tdp_w, self._lanes
        )
        self._now, self._handle = NodePower(), Iteration(0, 0, 0)
        self._others: list[PendingBatch] = []
        self._own: list[PendingBatch] = []
        for number in range(N_BEFORE):
            self._account(number)

    def prepare(self, i: int) -> None:
        """Bring the run to its i-th decision: executions accounted, readings and queues moved on.

        Args:
            i: number of the decision.
        """
        state = self._made.states[i % len(self._made.states)]
        self._now = self._read(state)
        if i % 2:
            return
        number = N_BEFORE + i // 2
        self._account(number)
        self._handle = new_iteration(number + 1, number)
        lane = self._lanes[Stage.REWARD]
        for pending in self._own:
            self._lanes[pending.batch.sample_ids[0]].forget(pending)
        self._own.clear()
        for pending in self._others:
            lane.forget(pending)
        self._others[:] = [lane.submit(_batch(Stage.REWARD)) for _ in range(state.fpga_queue)]

    def decide(self, i: int) -> Placement:
        """Take the i-th decision as `ecorl.runtime.scheduling.StageScheduler.start_stage` does.

        Args:
            i: number of the decision.
        """
        work = self._made.batches[i % len(self._made.batches)]
        of = self._iterations.of(self._handle, self._paths)
        of.decided.setdefault(Stage.GENERATION, Action.GPU)
        state = self._reader.state(of, work)
        placement = place(state, self._made.policy, self._made.guards)
        of.decided[work.role] = placement.action
        return placement

    def follow(self, placement: Placement) -> None:
        """Send a batch that was placed on the cards.

        Args:
            placement: the decision.
        """
        if placement.action is not Action.GPU:
            self._own.append(self._lanes[placement.role].submit(_batch(placement.role)))

    def _paths(self, batch: int) -> tuple[PathCost, ...]:
        return self._energy.path_costs(GPU_PROFILE, {}, CARD_PROFILE, batch)

    def _read(self, state: SchedulerState) -> NodePower:
        """Return the readings that a state was made of, as new as in a run."""
        known = zip(self._devices, state.gpu_power_share, state.gpu_utilisation, strict=True)
        smoothed = [
            SmoothedPower(
                device.device_id, 0.0, None if share is None else share * self._made.tdp_w, used,
                0.1, Provenance.MEASURED,
            )
            for device, share, used in known
        ]  # fmt: skip
        return NodePower(self._devices, tuple(smoothed))

    def _account(self, number: int) -> None:
        """Account one iteration, reward and reference in turns on either path."""
        for stage in _STAGES:
            on_card = number % 2 == 1 and (stage, True) in self._levels
            level = self._levels[stage, on_card]
            factor = float(math.exp(JITTER * self._rng.standard_normal()))
            self._energy.add(_result(number + 1, level, factor), batch=number)


def _result(iteration: int, level: PathCost, factor: float) -> StageResult:
    """One execution of 64 rows of 600 tokens at a cost for each token."""
    n_sequences, n_output = 64, 64 * 600
    time_s = level.time_s_per_token * factor * n_output
    device = CARD_PROFILE if level.on_card else GPU_PROFILE
    energy = None
    if level.energy_j_per_token is not None:
        energy_j = level.energy_j_per_token * factor * n_output
        energy = StageEnergy(
            ("device0",), 0.0, time_s, energy_j, energy_j / time_s, energy_j, None, 100, 1.0,
            EnergyMethod.COUNTER, level.provenance,
        )  # fmt: skip
    action = Action.CONCURRENT if level.on_card else Action.GPU
    return StageResult(
        iteration, level.stage, action, ("device0",), device, 0.0, time_s, time_s,
        level.provenance, time_s, 0.0, n_sequences, n_output, n_output, energy,
    )  # fmt: skip


def _lane(stage: Stage) -> OffloadLane:
    """A lane to a card that takes batches and does not answer."""
    engine = SimpleNamespace(stage=stage, available=True, submit=lambda batch: Future())
    return OffloadLane(cast(AsyncEngine, engine), 3, LanePlace("here", ("fpga0",)))


def _batch(role: Role) -> ScoreBatch:
    return ScoreBatch((str(role),), (np.zeros(4, np.int64),), (2,))


def timed_decisions(run: RunDecisions, first: int, n: int) -> Float64:
    """Time each of n decisions, s ``[n] float64``; what lies between them is not timed.

    Args:
        run: the run.
        first: number of the first decision, even.
        n: decisions.
    """
    clock, times = time.perf_counter_ns, np.empty(n)
    for i in range(n):
        run.prepare(first + i)
        start = clock()
        placement = run.decide(first + i)
        times[i] = clock() - start
        run.follow(placement)
    return times * 1e-9

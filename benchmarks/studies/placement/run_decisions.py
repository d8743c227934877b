"""Placement decisions as they come in a run, with all that a run does from snapshot to placement.

Each iteration has its generation, reward, reference and training accounted in the EDI matrix, and
begins with what the roles have cost so far. Reward and reference are then placed one after the
other: the scheduler's own `StateReader` collects the state from lanes, readings and the iteration,
and Algorithm 1 asks the learned policy. Readings come from memory, and the cards never answer.
"""

from __future__ import annotations

import math
import time
from concurrent.futures import Future
from types import SimpleNamespace
from typing import cast

import numpy as np
import numpy.typing as npt

from benchmarks.studies.placement.decision import Deciding
from ecorl.edi import EdiMatrix
from ecorl.engines.lanes.threaded import AsyncEngine
from ecorl.engines.protocol import ScoreBatch
from ecorl.records import (
    Action,
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
)
from ecorl.runtime.energy.run_energy import RunEnergy
from ecorl.runtime.handles import Iteration
from ecorl.runtime.monitor import NodePower
from ecorl.runtime.scheduling.iterations import OpenIterations, StateReader, new_iteration
from ecorl.runtime.scheduling.offload import LanePlace, OffloadLane, PendingBatch
from ecorl.scheduler import place
from ecorl.telemetry.sources.specs import DeviceInfo

GPU_PROFILE, CARD_PROFILE = "h100_sxm", "u55c"
N_BEFORE = 20
"""Iterations that are accounted before the first decision."""

JITTER = 0.05
"""Spread of what a stage costs from iteration to iteration, as a share."""

_STAGES = (Stage.GENERATION, Stage.REWARD, Stage.REFERENCE, Stage.ACTOR_TRAIN)


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


def timed_decisions(run: RunDecisions, first: int, n: int) -> npt.NDArray[np.float64]:
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

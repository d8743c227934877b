"""Collects the state that a stage is placed by: iteration, devices, engines and costs so far."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ecorl.records import (
    Action,
    Algorithm,
    DeviceKind,
    PathCost,
    SchedulerState,
    Stage,
    StageWork,
)
from ecorl.runtime.offload import OffloadLane
from ecorl.telemetry.sampling.sampler import Sampler

OCCUPANCY_AGE_S = 60.0
"""Age beyond which a reported occupancy of a card is ignored, s; invented."""


@dataclass(slots=True)
class IterationProgress:
    """The iteration under way, as far as placements depend on it.

    Attributes:
        number: 1-based, as the trainer's step.
        batch: 0-based number of the rollout batch that is generated in it.
        paths: mean cost of each stage on the GPU path, from earlier iterations.
        decided: action of each stage that was placed in it, by stage.
        t_barrier_s: when its first wait at the completion barrier began, monotonic s, or None.
    """

    number: int = 0
    batch: int = 0
    paths: tuple[PathCost, ...] = ()
    decided: dict[Stage, Action] = field(default_factory=dict)
    t_barrier_s: float | None = None

    def time_left_s(self, deadline_s: float) -> float:
        """Time left of the iteration's deadline, s, which runs from its first wait.

        Stages that run beside each other are waited for one after the other; two hung engines
        must not cost two deadlines.

        Args:
            deadline_s: longest wait of the whole iteration, s.
        """
        now_s = time.monotonic()
        if self.t_barrier_s is None:
            self.t_barrier_s = now_s
        return max(0.0, self.t_barrier_s + deadline_s - now_s)


class GpuReadings:
    """The devices of the GPU path, and what telemetry reads of them.

    Args:
        sampler: reads all devices of the run.
        tdp_w: design power of one device of the GPU path, W; None where it is not known.
    """

    def __init__(self, sampler: Sampler, tdp_w: float | None) -> None:
        self._sampler, self._tdp_w = sampler, tdp_w

    def device_ids(self) -> list[str]:
        """Ids of the devices so far; the sampler may learn of them late."""
        return [d.device_id for d in self._sampler.devices if d.kind is not DeviceKind.FPGA]

    def load(self) -> tuple[tuple[float | None, ...], tuple[float | None, ...]]:
        """Smoothed power as a share of the design power, and utilisation; one each a device."""
        tdp_w, shares, utilisation = self._tdp_w, [], []
        for device_id in self.device_ids():
            now = self._sampler.smoothed(device_id)
            share = now.power_w / tdp_w if now.power_w is not None and tdp_w else None
            shares.append(share)
            utilisation.append(now.utilisation)
        return tuple(shares), tuple(utilisation)


class StateReader:
    """Collects the scheduler's state as it is now.

    Args:
        algorithm: the algorithm that is trained with.
        gpus: the devices of the GPU path.
        lanes: the engines by stage; engines may be added later.
    """

    def __init__(
        self, algorithm: Algorithm, gpus: GpuReadings, lanes: Mapping[Stage, OffloadLane]
    ) -> None:
        self._algorithm, self._gpus, self._lanes = algorithm, gpus, lanes

    def state(
        self, progress: IterationProgress, work: StageWork, *, may_offload: bool = True
    ) -> SchedulerState:
        """Collect the state that a stage is placed by.

        Args:
            progress: the iteration under way.
            work: the stage to place, as far as its work is known.
            may_offload: False when only the GPU path can take this call of the stage.
        """
        lane = self._lanes.get(work.stage)
        power, utilisation = self._gpus.load()
        return SchedulerState(
            iteration=progress.number,
            batch=progress.batch,
            algorithm=self._algorithm,
            stage=work.stage,
            gpu_power_share=power,
            gpu_utilisation=utilisation,
            # Batches that were sent and not yet joined. How fast a simulation of the card answers
            # on this host must not decide which rows leave the GPU.
            fpga_queue=sum(lane.n_open for lane in self._lanes.values()),
            fpga_available=may_offload and lane is not None and lane.available,
            fpga_occupancy=occupancy_of(self._lanes.values()),
            work=work,
            paths=progress.paths,
            decided=tuple(progress.decided.items()),
        )


def occupancy_of(lanes: Iterable[OffloadLane]) -> float | None:
    """Mean occupancy of the cards in service, as last reported; None without real cards.

    Each engine reports the share of a card's time that it used itself, so that the shares of
    several engines on one card add up.
    """
    busy: dict[int, float] = {}
    oldest_s = time.monotonic() - OCCUPANCY_AGE_S
    for card in (c for lane in lanes if lane.cards_at_s > oldest_s for c in lane.cards):
        if card.in_service:
            busy[card.index] = min(1.0, busy.get(card.index, 0.0) + card.occupancy)
    return sum(busy.values()) / len(busy) if busy else None

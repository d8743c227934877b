"""The iterations under way: decisions, the barrier, and the state that a policy sees."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ecorl.records import (
    Action,
    Algorithm,
    DeviceKind,
    PathCost,
    Role,
    SchedulerState,
    SmoothedPower,
    StageWork,
    stage_of,
)
from ecorl.runtime.handles import Iteration
from ecorl.runtime.monitor import NodePower
from ecorl.runtime.scheduling.offload import OffloadLane
from ecorl.telemetry.sources.specs import DeviceInfo

_KEPT = 64
"""Iterations whose state is kept. Invented: more than any framework has open at once; a handle that
is older than that finds its iteration anew, with a deadline of its own."""


@dataclass(slots=True)
class IterationState:
    """An iteration under way, as far as placements and its barrier depend on it.

    Attributes:
        handle: number, batch and serial.
        paths: cost of each role on the GPU path and on the card, from earlier iterations.
        decided: action of each role that was placed in it, in the order of the decisions.
        t_barrier_s: when its first wait at the completion barrier began, monotonic s, or None.
    """

    handle: Iteration
    paths: tuple[PathCost, ...] = ()
    decided: dict[Role, Action] = field(default_factory=dict)
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


class OpenIterations:
    """The states of the newest iterations by their handles. Not thread-safe.

    Attributes:
        newest: the iteration that came last; number 0 before the first.
    """

    def __init__(self) -> None:
        self.newest = Iteration(0, 0, 0)
        self._states: dict[int, IterationState] = {}
        self._batches: dict[int, int] = {}

    def of(self, handle: Iteration, paths: Callable[[int], tuple[PathCost, ...]]) -> IterationState:
        """The state of an iteration, which begins when it is asked for first.

        Args:
            handle: from `new_iteration`, perhaps of another process.
            paths: gives what the roles have cost on both paths, for the number of a batch.
        """
        if handle.serial not in self._states:
            self.newest = handle
            self._states[handle.serial] = IterationState(handle, paths(handle.batch))
            self._batches[handle.number] = handle.batch
            for kept in (self._states, self._batches):
                while len(kept) > _KEPT:
                    del kept[next(iter(kept))]
        return self._states[handle.serial]

    def batch(self, number: int) -> int:
        """Number of an iteration's rollout batch; safe to call beside the other methods.

        Args:
            number: 1-based, of the iteration. Of one that is not kept: one batch an iteration.
        """
        return self._batches.get(number, max(number - 1, 0))


def new_iteration(number: int, batch: int | None) -> Iteration:
    """Make the handle of an iteration.

    Args:
        number: 1-based, as the trainer's step.
        batch: 0-based number of its rollout batch; None: one batch an iteration.
    """
    # A time, so that no two are alike, also of several processes and after a start anew.
    return Iteration(number, number - 1 if batch is None else batch, time.monotonic_ns())


OCCUPANCY_AGE_S = 60.0
"""Age beyond which a reported occupancy of a card is ignored, s; invented."""


class StateReader:
    """Collects the scheduler's state as it is now.

    Args:
        algorithm: the algorithm that is trained with.
        power: what the devices of the trainer's machine draw now.
        tdp_w: design power of one device of the GPU path, W; None where it is not known.
        lanes: the engines by role; engines may be added later.
        framework_on: kind of the devices on which the framework computes.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        power: Callable[[], NodePower],
        tdp_w: float | None,
        lanes: Mapping[Role, OffloadLane],
        framework_on: DeviceKind = DeviceKind.GPU,
    ) -> None:
        self._algorithm, self._power, self._tdp_w = algorithm, power, tdp_w
        self._lanes, self._framework_on = lanes, framework_on
        # The devices of the newest readings, and whether a card is among them.
        self._devices: tuple[DeviceInfo, ...] = ()
        self._has_card = False

    def state(
        self, iteration: IterationState, work: StageWork, *, may_offload: bool = True
    ) -> SchedulerState:
        """Collect the state that a stage is placed by.

        Args:
            iteration: the iteration that it belongs to.
            work: the stage to place, as far as its work is known.
            may_offload: False when only the GPU path can take this call of the stage.
        """
        lane = self._lanes.get(work.role)
        shares, utilisation = self._gpu_load()
        return SchedulerState(
            iteration=iteration.handle.number,
            batch=iteration.handle.batch,
            algorithm=self._algorithm,
            stage=work.stage,
            gpu_power_share=shares,
            gpu_utilisation=utilisation,
            # Batches that were sent and not yet joined. How fast a simulation of the card answers
            # on this host must not decide which rows leave the GPU.
            fpga_queue=sum([lane.n_open for lane in self._lanes.values()]),
            fpga_available=may_offload and lane is not None and lane.available,
            fpga_occupancy=occupancy_of(self._lanes.values()),
            work=work,
            paths=iteration.paths,
            decided=tuple([(stage_of(role), done) for role, done in iteration.decided.items()]),
            framework_on=self._framework_on,
        )

    def _gpu_load(self) -> tuple[tuple[float | None, ...], tuple[float | None, ...]]:
        """Smoothed power as a share of the design power, and utilisation; one each a device."""
        power, tdp_w = self._power(), self._tdp_w
        if power.devices is not self._devices:
            self._devices = power.devices
            self._has_card = any(device.kind is DeviceKind.FPGA for device in power.devices)
        readings: Sequence[SmoothedPower] = power.smoothed
        if self._has_card:
            both = zip(power.devices, power.smoothed, strict=True)
            readings = [now for device, now in both if device.kind is not DeviceKind.FPGA]
        utilisation = tuple([now.utilisation for now in readings])
        if not tdp_w:
            return (None,) * len(utilisation), utilisation
        # Nearly always all are known, and a division that fails is cheaper than a test of each.
        try:
            return tuple([now.power_w / tdp_w for now in readings]), utilisation  # type: ignore[operator]
        except TypeError:
            known = [now.power_w for now in readings]
            return tuple([None if w is None else w / tdp_w for w in known]), utilisation


def occupancy_of(lanes: Iterable[OffloadLane]) -> float | None:
    """Mean occupancy of the cards in service, as last reported; None without real cards.

    Each engine reports the share of a card's time that it used itself, so that the shares of
    several engines on one card add up.
    """
    busy: dict[tuple[str, int], float] = {}
    oldest_s = time.monotonic() - OCCUPANCY_AGE_S
    for lane in lanes:
        if lane.cards_at_s <= oldest_s:
            continue
        for card in lane.cards:
            if card.in_service:
                key = (lane.place.node, card.index)
                busy[key] = min(1.0, busy.get(key, 0.0) + card.occupancy)
    return sum(busy.values()) / len(busy) if busy else None

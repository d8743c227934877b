"""Collects the state that a stage is placed by: iteration, devices, engines and costs so far."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from ecorl.records import (
    Algorithm,
    DeviceKind,
    Role,
    SchedulerState,
    SmoothedPower,
    StageWork,
    stage_of,
)
from ecorl.runtime.monitor import NodePower
from ecorl.runtime.scheduling.iterations import IterationState
from ecorl.runtime.scheduling.offload import OffloadLane
from ecorl.telemetry.sources.specs import DeviceInfo

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

"""Reads what this machine's devices draw while nothing runs, by the instruments of the runs."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ecorl.config import Config
from ecorl.records import Provenance
from ecorl.runtime.equipment.hardware import card_power, gpu_path
from ecorl.runtime.training import TrainingSide
from ecorl.telemetry.sampling.sampler import Sampler
from ecorl.telemetry.sources.specs import DeviceInfo

_FIRST_S = 0.5
"""Of the readings left out at the begin, s: a source answers late after it was opened. Invented."""

_BEHIND_S = 1.0
"""Longest time from one reading of a counter that is slow to read to the next, s."""

_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class IdleReading:
    """What one device drew while nothing ran.

    Attributes:
        when: ``before`` the first run or ``after`` the last one.
        power_w: mean, W; None where the instrument gave no reading.
        provenance: of it; None without one.
        source: the instrument, and what it says of itself.
        time_s: over which it was read, s.
    """

    when: str
    device_id: str
    power_w: float | None
    provenance: Provenance | None
    source: str
    time_s: float


def read_idle(
    config: Config, device: str, gpu_uuids: Sequence[str], when: str, time_s: float
) -> list[IdleReading]:
    """Read the power of the runs' devices for a while, with nothing running.

    Args:
        config: of the runs.
        device: where they compute, ``cuda`` or ``cpu``.
        gpu_uuids: of the GPUs that they use.
        when: ``before`` or ``after``.
        time_s: for how long, s.

    Raises:
        UserError: for a source that the config names and that cannot be used.
    """
    place: Literal["cuda", "cpu"] = "cuda" if device == "cuda" else "cpu"
    side = TrainingSide(place, tuple(gpu_uuids), pids=(os.getpid(),))
    cards = card_power(config)
    sources = [*gpu_path(config, side).sources, *([cards] if cards else [])]
    if not sources:
        return []
    with Sampler(
        sources, tau_s=config.telemetry.tau_s, stale_after_s=config.telemetry.stale_after_s
    ) as sampler:
        begin_s = time.monotonic() + _FIRST_S
        end_s = begin_s + time_s
        for edge_s in (begin_s, end_s):
            while time.monotonic() < edge_s:
                time.sleep(_POLL_S)
            sampler.mark_edge()
        # Behind the end, so that the counter is known at the end as well.
        last_s = end_s + _BEHIND_S + 2.5 * max(source.interval_s for source in sources)
        while time.monotonic() < last_s and not _is_read(sampler, end_s):
            time.sleep(_POLL_S)
        return [_reading(sampler, one, when, (begin_s, end_s)) for one in sampler.devices]


def _is_read(sampler: Sampler, t_s: float) -> bool:
    """Whether the energy of all devices is final up to a time."""
    marks = [sampler.watermark_s(device.device_id) for device in sampler.devices]
    return all(mark_s is not None and mark_s > t_s for mark_s in marks)


def _reading(
    sampler: Sampler, device: DeviceInfo, when: str, window: tuple[float, float]
) -> IdleReading:
    """What a device drew in a window."""
    energy = sampler.history.energy(device.device_id, *window)
    return IdleReading(
        when=when,
        device_id=device.device_id,
        power_w=energy.mean_power_w,
        provenance=None if energy.mean_power_w is None else energy.provenance,
        source=f"{device.source}: {device.name}" if device.name else device.source,
        time_s=window[1] - window[0],
    )

"""Where an engine computes, as its executions are booked."""

from __future__ import annotations

from ecorl.config import Config, TorchEngineConfig
from ecorl.engines.lanes.threaded import AsyncEngine
from ecorl.engines.torch.loading import HOST
from ecorl.runtime.equipment.accelerator import AcceleratorPlace
from ecorl.runtime.equipment.hardware import real_card_ids
from ecorl.runtime.scheduling.accounting import HOST_PROCESS_ID, REAL_HOST
from ecorl.runtime.scheduling.offload import LanePlace
from ecorl.telemetry.sources.specs import card_id


def lane_place(
    config: Config,
    node: str,
    engine: AsyncEngine,
    number: int,
    accelerator: AcceleratorPlace | None = None,
) -> LanePlace:
    """Say where an engine computes.

    Args:
        config: the run's configuration.
        node: name of its machine.
        engine: the engine.
        number: of its simulated card on that machine.
        accelerator: the GPU on which torch computes there, where its power is looked for.
    """
    if engine.host == REAL_HOST:
        return LanePlace(node, real_card_ids(config), is_metered=True)
    offload = config.engine.offload
    if not isinstance(offload, TorchEngineConfig):
        return LanePlace(node, (card_id(number),))
    if accelerator is not None and accelerator.device_ids:
        return LanePlace(node, accelerator.device_ids, is_metered=True)
    unread = HOST_PROCESS_ID if offload.device == HOST else offload.device.replace(":", "")
    return LanePlace(node, (unread,))

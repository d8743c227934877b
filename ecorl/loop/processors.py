"""The devices on which a loop trains, and how to wait for them."""

from __future__ import annotations

import logging
import os
import sys
from typing import Any

from ecorl.config import Config, NvmlSourceConfig
from ecorl.errors import ConfigError
from ecorl.runtime.training import TrainingSide

logger = logging.getLogger(__name__)


def check_one_process() -> None:
    """Refuse to measure one of several training processes.

    One that stands still would leave the others waiting in an exchange that may time out.

    Raises:
        ConfigError: when the process is one of several.
    """
    torch = sys.modules.get("torch")
    told = os.environ.get("WORLD_SIZE", "1")
    if torch is not None and torch.distributed.is_available():
        dist = torch.distributed
        told = str(dist.get_world_size()) if dist.is_initialized() else told
    if told != "1":
        allowed = "1: a loop over several processes is not measured yet, a trainer of TRL's is"
        raise ConfigError("WORLD_SIZE", told, allowed)


def training_side(config: Config) -> TrainingSide:
    """Describe the devices on which this process trains.

    It trains on GPUs if PyTorch has begun to use one, or if the config reads their power by NVML
    (a loop without PyTorch); else on the host. A model has to be on its GPU before this is asked.

    Args:
        config: of the run; ``devices.n_gpus`` tells how many GPUs the loop uses.
    """
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        if torch.cuda.is_initialized():
            gpus = _used_gpus(torch, config.devices.n_gpus)
            return TrainingSide("cuda", _uuids(torch, gpus), fence=wait_for_gpus)
        logger.warning(
            "PyTorch has not begun to use a GPU: the loop counts as one on the CPU; move the model "
            "to its GPU before ecorl.measure if it trains there"
        )
    if isinstance(config.telemetry.gpu, NvmlSourceConfig):
        return TrainingSide("cuda", fence=wait_for_gpus)
    return TrainingSide("cpu", fence=wait_for_gpus)


def wait_for_gpus() -> None:
    """Wait until the GPU has done all that PyTorch launched; at once where PyTorch uses none."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _used_gpus(torch: Any, n_gpus: int) -> range:
    """Numbers of the GPUs that the loop uses: the current one, or the first of several."""
    current = int(torch.cuda.current_device())
    if n_gpus == 1:
        return range(current, current + 1)
    return range(min(n_gpus, int(torch.cuda.device_count())))


def _uuids(torch: Any, gpus: range) -> tuple[str, ...]:
    """UUIDs as NVML writes them: CUDA and NVML number GPUs differently."""
    found = [getattr(torch.cuda.get_device_properties(gpu), "uuid", None) for gpu in gpus]
    named = [str(uuid) for uuid in found if uuid is not None]
    return tuple(u if u.startswith(("GPU-", "MIG-")) else f"GPU-{u}" for u in named)

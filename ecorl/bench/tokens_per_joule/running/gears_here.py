"""On which processors a framework trains here, and in which numeric formats they can."""

from __future__ import annotations

from typing import Any

from ecorl.bench.tokens_per_joule.arms import GearChoices
from ecorl.config import Config
from ecorl.control import Gear
from ecorl.errors import ConfigError

_CANDIDATES = (Gear.FP8, Gear.BF16)
"""Formats that may save energy, the lowest first. FP16 is as wide as BF16 and needs more care."""


def processors_here(config: Config) -> dict[str, Any]:
    """Tell where PyTorch computes and which formats act there; brings torch.

    Args:
        config: of the runs.

    Returns:
        Plain data: ``device`` (cuda or cpu), ``gpu_uuids``, and for gears ``gears`` and ``why``.
    """
    import torch

    on_gpu = torch.cuda.is_available()
    uuids = []
    if on_gpu:
        for gpu in range(min(config.devices.n_gpus, torch.cuda.device_count())):
            uuid = str(getattr(torch.cuda.get_device_properties(gpu), "uuid", ""))
            uuids.append(uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}")
    found = gear_choices("cuda" if on_gpu else "cpu")
    return {
        "device": "cuda" if on_gpu else "cpu",
        "gpu_uuids": [uuid for uuid in uuids if uuid != "GPU-"],
        "gears": [str(gear) for gear in found.gears],
        "why": found.why,
    }


def gear_choices(device: str) -> GearChoices:
    """Find the lowest format that a device computes in and that is not the trainer's own.

    Args:
        device: ``cuda`` or ``cpu``; a trainer computes in BF16 on the first, in FP32 on the other.
    """
    import torch

    from ecorl.trainer.gears.formats import supported

    own = Gear.BF16 if device == "cuda" else Gear.FP32
    reasons = []
    for gear in _CANDIDATES:
        if gear is own:
            reasons.append(f"{gear} is what training computes in anyway")
            continue
        try:
            supported([gear], torch.device(device), may_simulate_fp8=False)
        except ConfigError:
            reasons.append(f"the device has no units for {gear}")
            continue
        return GearChoices((gear, own))
    return GearChoices(why=f"gears: none acts here: {', '.join(reasons)}")

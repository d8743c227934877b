"""Which gears a device has, and which of them it could only simulate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ecorl.control import Gear
from ecorl.errors import ConfigError

DTYPES: dict[Gear, torch.dtype] = {
    Gear.FP32: torch.float32,
    Gear.FP16: torch.float16,
    Gear.BF16: torch.bfloat16,
    # FP8 is a format of operands alone: what lies between two matrix products is in BF16.
    Gear.FP8: torch.bfloat16,
}
"""What autocast computes in within a gear."""

_FP8_CAPABILITY = (8, 9)
"""The first compute capability of CUDA devices with FP8 matrix units (Ada, Hopper)."""

_HIP_FP8_CAPABILITY = (9, 4)
"""The same of AMD's devices, whose numbers are their own (gfx942, MI300)."""


@dataclass(frozen=True, slots=True)
class GearSupport:
    """What a device can do of a list of gears.

    Attributes:
        gears: that it has, or simulates, in the order in which they were asked for.
        simulated: those that are rounded as the format rounds, on units of another format: they
            save nothing.
    """

    gears: tuple[Gear, ...]
    simulated: tuple[Gear, ...]


def supported(
    gears: Sequence[Gear], device: torch.device, *, may_simulate_fp8: bool
) -> GearSupport:
    """Check that a device can compute in each of some gears.

    Args:
        gears: that are asked for.
        device: on which the training stage computes.
        may_simulate_fp8: whether FP8 may be simulated where the device has none.

    Raises:
        ConfigError: for a gear that the device lacks.
    """
    simulated = []
    for gear in gears:
        if gear is Gear.FP8 and not computes_fp8(device):
            if not may_simulate_fp8:
                allowed = (
                    "a list without FP8 on this device, which has no units for it, or "
                    "gears.simulate_fp8 = true (rounded as in FP8; it saves nothing)"
                )
                raise ConfigError("gears.allowed", [str(one) for one in gears], allowed)
            simulated.append(gear)
        if gear is Gear.BF16 and not _computes_bf16(device):
            allowed = "a list without BF16: this device has no units for it"
            raise ConfigError("gears.allowed", [str(one) for one in gears], allowed)
    return GearSupport(tuple(gears), tuple(simulated))


def computes_fp8(device: torch.device) -> bool:
    """Whether a device has matrix units for FP8.

    Args:
        device: of the training stage.
    """
    if device.type != "cuda":
        return False
    least = _FP8_CAPABILITY if torch.version.hip is None else _HIP_FP8_CAPABILITY
    return torch.cuda.get_device_capability(device) >= least


def _computes_bf16(device: torch.device) -> bool:
    """Whether a device has units for BF16; one that computes it in float32 saves nothing by it."""
    if device.type != "cuda":
        return True
    with torch.cuda.device(device):
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))

"""The devices that torch computes on, by its own numbers of them. torch is imported inside."""

from __future__ import annotations

from ecorl.errors import ConfigError, MissingToolError

HOST = "cpu"
"""torch's name of the host's processor."""

KEY = "engine.offload.device"


def check_device(device: str) -> None:
    """Check that torch finds a device here.

    Args:
        device: ``cpu``, or a CUDA device such as ``cuda:1``.

    Raises:
        ConfigError: when there is no such device; the message lists those that there are.
        MissingToolError: without torch, where a CUDA device is asked for.
    """
    if device == HOST:
        return
    try:
        import torch
    except ImportError as error:
        raise MissingToolError(f"the torch engine needs torch: {error}") from error
    n_found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if _number(device) < n_found:
        return
    found = ", ".join(f"cuda:{i} ({torch.cuda.get_device_name(i)})" for i in range(n_found))
    there = f"or {found}" if found else "since torch finds no CUDA device here"
    raise ConfigError(KEY, device, f"{HOST}, {there}")


def cuda_uuid(device: str) -> str | None:
    """Find the UUID of a CUDA device, written as NVML writes it.

    By UUID, because CUDA and NVML number GPUs differently (fastest first against bus order).

    Args:
        device: such as ``cuda:1``; it is there.

    Returns:
        The UUID; None where torch does not tell it.
    """
    import torch

    uuid = getattr(torch.cuda.get_device_properties(_number(device)), "uuid", None)
    return None if uuid is None else nvml_name(str(uuid))


def nvml_name(uuid: str) -> str:
    """Write a UUID that torch tells as NVML does.

    Args:
        uuid: as torch tells it.
    """
    return uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"


def _number(device: str) -> int:
    return int(device.partition(":")[2])

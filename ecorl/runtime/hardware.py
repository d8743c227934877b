"""Which device profile stands for the GPU path, and where its power readings come from."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

from ecorl import config as cfg
from ecorl.devices import DeviceProfile, load_profile
from ecorl.drivers.nvml import NvmlDriver
from ecorl.drivers.rapl import find_zones
from ecorl.errors import ConfigError, DriverError
from ecorl.telemetry.specs import JSON, SourceSpec

TrainerDevice = Literal["cuda", "cpu"]

_PROFILE_BY_NAME = {
    "H200": "h200",
    "H100": "h100_sxm",
    "A100": "a100_sxm",
    "L4": "l4",
}
"""NVML's product names by the word that identifies them; longer words are not contained in
shorter ones (``L40S`` would match ``L4``, hence the comparison by whole words)."""


@dataclass(frozen=True, slots=True)
class GpuPath:
    """The device on which the framework itself trains.

    Attributes:
        profile: its profile; the host's CPU when the trainer runs there.
        source: where its power is read.
        note: how both were chosen, one sentence.
    """

    profile: DeviceProfile
    source: SourceSpec
    note: str


def gpu_path(config: cfg.Config, trainer_device: TrainerDevice) -> GpuPath:
    """Resolve ``devices.gpu`` and ``telemetry.gpu`` for a trainer on a GPU or on the CPU.

    Raises:
        ConfigError: when the GPU's model has no profile, or the named profile does not exist.
    """
    profile, why = _profile(config.devices.gpu, trainer_device)
    source, how = _source(config, profile, trainer_device)
    return GpuPath(profile, source, f"{why}; {how}")


def _profile(name: str, trainer_device: TrainerDevice) -> tuple[DeviceProfile, str]:
    if name != "auto":
        return load_profile(name), f"profile {name} as configured"
    if trainer_device == "cpu":
        return load_profile("host_cpu"), "the trainer runs on this host's CPU"
    driver = NvmlDriver()
    try:
        driver.open()
        title = driver.device(0).name
    except DriverError as error:
        raise ConfigError(
            "devices.gpu", name, f"a profile name, since NVML cannot name the GPU ({error})"
        ) from error
    finally:
        driver.close()
    words = title.replace("-", " ").split()
    for word, profile in _PROFILE_BY_NAME.items():
        if word in words:
            return load_profile(profile), f"NVML names a {title}"
    raise ConfigError("devices.gpu", name, f"a profile name or file: none is known for {title}")


def _source(
    config: cfg.Config, profile: DeviceProfile, trainer_device: TrainerDevice
) -> tuple[SourceSpec, str]:
    chosen = config.telemetry.gpu
    device_id = "gpu0" if trainer_device == "cuda" else "cpu0"
    modelled: dict[str, JSON] = {
        "device_id": device_id,
        "idle_w": profile.value("idle_w"),
        "active_w": profile.value("active_w"),
        "pid": os.getpid(),
        # Utilisation is of the whole device: on the host all its cores, else one feeding thread.
        "n_threads": int(profile.get("n_cores") or 1),
    }
    if isinstance(chosen, cfg.AutoSource):
        if trainer_device == "cuda":
            # Not RAPL: the processor's joules are not the GPU's.
            options: dict[str, JSON] = {
                **modelled,
                "interval_s": 0.1,
                "order": ["nvml", "modelled"],
            }
            return SourceSpec("auto", options), "power by NVML, else modelled"
        # NVML would answer for a GPU that this trainer does not use.
        try:
            find_zones()
        except DriverError as error:
            return SourceSpec(
                "modelled", {**modelled, "interval_s": 0.1}
            ), f"power modelled, since RAPL: {error}"
        return SourceSpec("rapl", {"interval_s": 0.1}), "power by RAPL, the whole package"
    options = {"interval_s": chosen.interval_s}
    if isinstance(chosen, cfg.ModelledSource):
        options |= modelled
    elif isinstance(chosen, cfg.RaplSource):
        options |= {"root": str(chosen.root)}
    elif isinstance(chosen, cfg.ReplaySource):
        options |= {"path": str(chosen.path)}
    elif isinstance(chosen, cfg.NullSource):
        options |= {"device_ids": [device_id]}
    return SourceSpec(chosen.type, options), f"power source {chosen.type} as configured"

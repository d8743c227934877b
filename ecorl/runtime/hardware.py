"""Which device profile stands for the GPU path, and where its power readings come from."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ecorl import config as cfg
from ecorl.devices import DeviceProfile, load_profile, profile_names
from ecorl.drivers.nvml import NvmlDevice, NvmlDriver, visible_devices
from ecorl.drivers.rapl import find_zones
from ecorl.errors import ConfigError, DriverError
from ecorl.runtime.training import TrainingSide
from ecorl.telemetry.specs import JSON, SourceSpec

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


def gpu_path(config: cfg.Config, training: TrainingSide) -> GpuPath:
    """Resolve ``devices.gpu`` and ``telemetry.gpu`` for a trainer on a GPU or on the CPU.

    Raises:
        ConfigError: when the GPU's model has no profile, the named profile does not exist or is
            of another kind of device than the trainer's, the trainer's GPUs are not what
            ``devices`` says, or the power source cannot tell this device's power.
    """
    if training.device == "cuda":
        profile, why = _gpu_profile(config.devices, training)
    else:
        profile, why = _host_profile(config.devices)
    source, how = _source(config, profile, training)
    return GpuPath(profile, source, f"{why}; {how}")


def _host_profile(devices: cfg.DeviceConfig) -> tuple[DeviceProfile, str]:
    if devices.gpu == "auto":
        return load_profile("host_cpu"), "the trainer runs on this host's CPU"
    profile = load_profile(devices.gpu) if devices.gpu in profile_names() else None
    if profile is not None and profile.kind != "cpu":
        allowed = "auto or a profile of kind cpu: the trainer runs on this host's CPU"
        raise ConfigError("devices.gpu", devices.gpu, allowed)
    return named_profile("devices.gpu", devices.gpu, "cpu"), f"profile {devices.gpu} as configured"


def _gpu_profile(devices: cfg.DeviceConfig, training: TrainingSide) -> tuple[DeviceProfile, str]:
    n_used = len(training.gpu_uuids)
    if n_used and n_used != devices.n_gpus:
        raise ConfigError("devices.n_gpus", devices.n_gpus, f"{n_used}: the trainer uses so many")
    if devices.gpu != "auto":
        profile = named_profile("devices.gpu", devices.gpu, "gpu")
        return profile, f"profile {devices.gpu} as configured"
    titles = {gpu.name for gpu in _used_gpus(training)}
    if len(titles) > 1:
        raise ConfigError("devices.gpu", "auto", f"GPUs of one model; the run uses {titles}")
    title = titles.pop()
    words = title.replace("-", " ").split()
    for word, name in _PROFILE_BY_NAME.items():
        if word in words:
            return load_profile(name), f"NVML names a {title}"
    raise ConfigError("devices.gpu", "auto", f"a profile name or file: none is known for {title}")


def named_profile(key: str, name: str, kind: str) -> DeviceProfile:
    """A profile that the configuration names, of the kind that is wanted there.

    Raises:
        ConfigError: when there is none of this name, or it is of another kind: seconds of one
            device times the watts of another would be a figure of neither.
    """
    of_kind = ["auto"] if key == "devices.gpu" else []
    of_kind += [known for known in profile_names() if load_profile(known).kind == kind]
    allowed = f'one of {of_kind} or the path of a TOML file with kind = "{kind}"'
    if name not in profile_names() and not Path(name).expanduser().is_file():
        raise ConfigError(key, name, allowed)
    profile = load_profile(name)
    if profile.kind != kind:
        raise ConfigError(key, name, allowed)
    return profile


def _used_gpus(training: TrainingSide) -> tuple[NvmlDevice, ...]:
    driver = NvmlDriver()
    try:
        driver.open()
        wanted = training.gpu_uuids or visible_devices(os.environ)
        found = driver.select(wanted)
        if not found:
            raise DriverError("NVML sees no GPU")
        return found
    except DriverError as error:
        raise ConfigError(
            "devices.gpu", "auto", f"a profile name, since NVML cannot name the GPU ({error})"
        ) from error
    finally:
        driver.close()


def _source(
    config: cfg.Config, profile: DeviceProfile, training: TrainingSide
) -> tuple[SourceSpec, str]:
    chosen, on_gpu = config.telemetry.gpu, training.device == "cuda"
    modelled = _modelled(profile, "gpu0" if on_gpu else "cpu0")
    nvml: dict[str, JSON] = {"devices": list(training.gpu_uuids)} if training.gpu_uuids else {}
    if isinstance(chosen, cfg.AutoSource):
        return _auto_gpu(modelled | nvml) if on_gpu else _auto_host(modelled)
    options: dict[str, JSON] = {"interval_s": chosen.interval_s}
    if isinstance(chosen, cfg.NvmlSource):
        if not on_gpu:
            # Its joules would be those of a GPU that this trainer does not use.
            raise ConfigError("telemetry.gpu.type", "nvml", "not nvml: the trainer runs on the CPU")
        options |= nvml
    elif isinstance(chosen, cfg.RaplSource):
        if on_gpu:
            raise ConfigError("telemetry.gpu.type", "rapl", "not rapl: the trainer runs on a GPU")
        options |= {"root": str(chosen.root)}
    elif isinstance(chosen, cfg.ModelledSource):
        options |= modelled
    elif isinstance(chosen, cfg.ReplaySource):
        options |= {"path": str(chosen.path)}
    elif isinstance(chosen, cfg.NullSource):
        options |= {"device_ids": [str(modelled["device_id"])]}
    return SourceSpec(chosen.type, options), f"power source {chosen.type} as configured"


def _modelled(profile: DeviceProfile, device_id: str) -> dict[str, JSON]:
    return {
        "device_id": device_id,
        "idle_w": profile.value("idle_w"),
        "active_w": profile.value("active_w"),
        "pid": os.getpid(),
        # Utilisation is of the whole device: on the host all its cores, else one feeding thread.
        "n_threads": int(profile.get("n_cores") or 1),
    }


def _auto_gpu(options: dict[str, JSON]) -> tuple[SourceSpec, str]:
    # Not RAPL: the processor's joules are not the GPU's.
    order: list[JSON] = ["nvml", "modelled"]
    spec = SourceSpec("auto", {**options, "interval_s": 0.1, "order": order})
    return spec, "power by NVML, else modelled"


def _auto_host(options: dict[str, JSON]) -> tuple[SourceSpec, str]:
    # Not NVML: it would answer for a GPU that this trainer does not use.
    try:
        find_zones()
    except DriverError as error:
        spec = SourceSpec("modelled", {**options, "interval_s": 0.1})
        return spec, f"power modelled, since RAPL: {error}"
    return SourceSpec("rapl", {"interval_s": 0.1}), "power by RAPL, the whole package"

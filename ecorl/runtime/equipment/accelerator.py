"""The device in the card's place: its profile, whether its engine fits it, where it is metered.

An FPGA's engine is the INT8 kernels, whose cycle model tells time and energy. On any other device
torch computes: its time is measured, and the energy of a GPU is read by NVML. The energy of a
process on the host is not known: its processor is the trainer's too, and cannot be told apart.
"""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import dataclass

from ecorl import config as cfg
from ecorl.devices import DeviceProfile, chosen_profile, load_profile, profile_names
from ecorl.devices.card import missing_card_figures
from ecorl.drivers.nvml import NvmlDriver, visible_devices
from ecorl.engines.torch.loading import HOST, check_device, cuda_uuid
from ecorl.errors import ConfigError, DriverError
from ecorl.records import DeviceKind
from ecorl.runtime.training import TrainingSide
from ecorl.telemetry.sources.specs import MeteredDevice, SourceSpec

KEY = "devices.accelerator"

_UNREAD = (cfg.NullSourceConfig, cfg.ModelledSourceConfig, cfg.ReplaySourceConfig)
"""Power sources that tell nothing of a GPU on which the trainer does not compute."""


@dataclass(frozen=True, slots=True)
class AcceleratorPlace:
    """A GPU of the trainer's machine on which offloaded stages run.

    Attributes:
        profile: of it.
        device_ids: as telemetry names it; empty where its power is not read.
        others: the same, but for a GPU that the trainer computes on as well.
        source: where its power is read that no other source reads.
        gap: why it is not read, one sentence for the report; empty where it is.
    """

    profile: DeviceProfile
    device_ids: tuple[str, ...] = ()
    others: frozenset[str] = frozenset()
    source: SourceSpec | None = None
    gap: str = ""


def accelerator_profile(config: cfg.Config) -> DeviceProfile:
    """Load the profile of the device on which offloaded stages run.

    Args:
        config: the run's configuration.

    Raises:
        ConfigError: when there is none of this name, or the engine does not run on its kind of
            device.
    """
    kinds, why = _kinds(config.engine.offload)
    return chosen_profile(KEY, config.devices.accelerator, *kinds, why=why)


def _kinds(offload: cfg.OffloadEngine) -> tuple[tuple[DeviceKind, ...], str]:
    """The kinds of device that an engine runs on, and why no other will do."""
    if isinstance(offload, cfg.FpgaEngineConfig):
        return (DeviceKind.FPGA,), "engine.offload.type = 'fpga' runs on cards alone"
    if isinstance(offload, cfg.PluginEngineConfig):
        return tuple(DeviceKind), ""
    if offload.device == HOST:
        # A card here is rehearsed: what is decided is decided by its costs.
        why = f"engine.offload.device = '{HOST}' computes on the host's processor"
        return (DeviceKind.CPU, DeviceKind.FPGA), why
    return (DeviceKind.GPU,), f"engine.offload.device = {offload.device!r} is a GPU"


def check_accelerator(config: cfg.Config) -> None:
    """Check that the device is there and that its profile holds what its engine needs.

    Args:
        config: the run's configuration.

    Raises:
        ConfigError: when a figure or the device is missing. A device of another machine is not
            looked for: its worker does that.
    """
    offload, profile = config.engine.offload, accelerator_profile(config)
    if isinstance(offload, cfg.TorchEngineConfig):
        if not isinstance(config.runtime, cfg.RayRuntimeConfig):
            check_device(offload.device)
        return
    missing = missing_card_figures(profile)
    if not isinstance(offload, cfg.FpgaEngineConfig) or not missing:
        return
    profiles = [load_profile(known) for known in profile_names()]
    whole = [p.name for p in profiles if p.kind == DeviceKind.FPGA and not missing_card_figures(p)]
    allowed = (
        f"one of {whole} or the path of a TOML file with all figures that the card's engine "
        f"needs; here {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing"
    )
    raise ConfigError(KEY, config.devices.accelerator, allowed)


def accelerator_place(config: cfg.Config, training: TrainingSide) -> AcceleratorPlace | None:
    """Find where the power of the GPU is read on which offloaded stages run.

    Args:
        config: the run's configuration; `check_accelerator` has passed it.
        training: the training process.

    Returns:
        The GPU; None for any other device, and for one of a machine of the cluster.
    """
    offload = config.engine.offload
    if not isinstance(offload, cfg.TorchEngineConfig) or offload.device == HOST:
        return None
    profile, source = accelerator_profile(config), config.telemetry.gpu
    told = f"offloaded stages ran on {offload.device}"
    if isinstance(config.runtime, cfg.RayRuntimeConfig):
        return AcceleratorPlace(profile, gap=f"{told} of a worker, whose power is not read")
    if isinstance(source, _UNREAD):
        gap = f"{told}, whose power telemetry.gpu.type = {source.type!r} does not tell"
        return AcceleratorPlace(profile, gap=gap)
    uuid = cuda_uuid(offload.device)
    if uuid is None:
        return AcceleratorPlace(profile, gap=f"{told}, whose UUID torch does not tell")
    try:
        return _metered(profile, uuid, config, training)
    except DriverError as error:
        return AcceleratorPlace(profile, gap=f"{told}, which NVML cannot read ({error})")


def _metered(
    profile: DeviceProfile, uuid: str, config: cfg.Config, training: TrainingSide
) -> AcceleratorPlace:
    """The place of a GPU that NVML reads.

    Raises:
        DriverError: when it does not.
    """
    with closing(NvmlDriver()) as driver:
        driver.open()
        gpu = driver.find(uuid)
        if gpu.fault is not None:
            raise gpu.fault
        ids = (f"gpu{gpu.index}",)
        own = training.gpu_uuids or (visible_devices(os.environ) if training.on_gpu else ())
        # Without names the trainer's source reads all GPUs, this one among them.
        is_cudas = not training.gpu_uuids
        read = _ids(driver, own, as_cuda=is_cudas) if own is not None else ids
        trained_on = _ids(driver, training.gpu_uuids)
    source = None
    if not set(ids) <= set(read):
        chosen = config.telemetry.gpu
        nvml = chosen if isinstance(chosen, cfg.NvmlSourceConfig) else cfg.NvmlSourceConfig()
        source = SourceSpec((nvml,), MeteredDevice(gpus=(uuid,)))
    return AcceleratorPlace(profile, ids, frozenset(ids) - frozenset(trained_on), source)


def _ids(driver: NvmlDriver, names: tuple[str, ...], *, as_cuda: bool = False) -> tuple[str, ...]:
    found = driver.select(names, as_cuda=as_cuda) if names else ()
    return tuple(f"gpu{device.index}" for device in found)

"""Chooses the device profile that stands for the GPU path, and where its power is read."""

from __future__ import annotations

import logging
import os
from contextlib import closing
from dataclasses import dataclass, field, replace

from ecorl import config as cfg
from ecorl.devices import DeviceProfile, load_profile, titled_profile
from ecorl.drivers.instruments import NvmlDevice
from ecorl.drivers.nvml import NvmlDriver, visible_devices
from ecorl.drivers.rapl import find_zones
from ecorl.engines.registry import real_cards
from ecorl.errors import ConfigError, DriverError
from ecorl.records import Action, DeviceKind, Stage
from ecorl.runtime.equipment.accelerator import (
    AcceleratorPlace,
    accelerator_place,
    check_accelerator,
)
from ecorl.runtime.equipment.role_places import (
    RolePlaces,
    named_profile,
    nameless_profile,
    role_places,
)
from ecorl.runtime.training import TrainerMachine, TrainingSide
from ecorl.telemetry.sources.specs import (
    MeteredDevice,
    PowerModel,
    SourceConfig,
    SourceSpec,
    card_id,
)

logger = logging.getLogger(__name__)

_NAMELESS = "a GPU whose name NVML does not tell"


@dataclass(frozen=True, slots=True)
class GpuPath:
    """The device on which the framework itself trains.

    Attributes:
        profile: its profile; the host's CPU when the trainer runs there.
        source: where its power is read; None where the trainer's process has no device.
        note: how both were chosen, one sentence.
        roles: the devices of roles that run elsewhere.
        accelerator: the GPU of this machine on which offloaded stages run, if that is one.
    """

    profile: DeviceProfile
    source: SourceSpec | None
    note: str
    roles: RolePlaces = field(default_factory=RolePlaces)
    accelerator: AcceleratorPlace | None = None

    @property
    def sources(self) -> list[SourceSpec]:
        """Where power is read of all its devices, of roles elsewhere and of the accelerator."""
        found = [self.source, self.roles.source]
        found += [self.accelerator.source] if self.accelerator is not None else []
        return [source for source in found if source is not None]

    @property
    def others(self) -> frozenset[str]:
        """Ids of GPUs on the trainer's machine that are not its own."""
        own = self.accelerator
        return self.roles.others | (own.others if own is not None else frozenset())

    @property
    def other_profiles(self) -> dict[str, DeviceProfile]:
        """Profiles of these, by their ids."""
        own = self.accelerator
        found = dict.fromkeys(own.others, own.profile) if own is not None else {}
        return found | self.roles.metered_profiles

    @property
    def gaps(self) -> list[str]:
        """Why the power of some devices is not read, one sentence each."""
        own = self.accelerator
        return self.roles.gaps + ([own.gap] if own is not None and own.gap else [])


def gpu_path(config: cfg.Config, training: TrainingSide) -> GpuPath:
    """Resolve ``devices.gpu`` and ``telemetry.gpu`` for a trainer on a GPU, the CPU, or neither.

    Args:
        config: the run's configuration.
        training: the training process.

    Raises:
        ConfigError: when the GPU's model has no profile and the run needs its figures, the named
            profile does not exist or is of another kind of device than the trainer's, the
            trainer's GPUs are not what ``devices`` says, the power source cannot tell this
            device's power, or the accelerator is not there or its profile lacks what its engine
            needs.
    """
    accelerator = None
    if training.frozen and not _all_on_gpu(config.placement.policy):
        check_accelerator(config)
        accelerator = accelerator_place(config, training)
    if training.device == "none":
        note = "the trainer's process computes on no device: [places] names those of the roles"
        profile = _driver_profile(config, training.gpu_title)
        return GpuPath(profile, None, note, role_places(config, training), accelerator)
    if training.on_gpu:
        profile, why = _gpu_profile(config, training)
    else:
        profile, why = _host_profile(config.devices)
    source, how = _source(config, profile, training)
    roles = role_places(config, training)
    return GpuPath(profile, source, f"{why}; {how}", roles, accelerator)


def card_power(config: cfg.Config) -> SourceSpec | None:
    """Where the power of real cards is read, or None where there are none.

    It is read in the sampler's process: pyxrt's waits hold the interpreter's lock, and a thread
    that samples beside them would stand still.
    """
    cards = real_cards(config.engine)
    if not cards or _all_on_gpu(config.placement.policy):
        return None
    return SourceSpec((cfg.XrtSourceConfig(),), MeteredDevice(cards=tuple(cards)))


def real_card_ids(config: cfg.Config) -> tuple[str, ...]:
    """Ids of the real cards of a run, as telemetry names them."""
    offload = config.engine.offload
    cards = offload.cards if isinstance(offload, cfg.FpgaEngineConfig) else (0,)
    return tuple(map(card_id, cards))


def gpu_ids(gpu_uuids: tuple[str, ...]) -> tuple[str, ...] | None:
    """Ids of GPUs as telemetry names them; None where NVML cannot tell.

    Args:
        gpu_uuids: their UUIDs.
    """
    try:
        with closing(NvmlDriver()) as driver:
            driver.open()
            return tuple(f"gpu{device.index}" for device in driver.select(gpu_uuids))
    except DriverError as error:
        logger.warning("the GPUs of this process cannot be named: %s", error)
        return None


def source_elsewhere(
    config: cfg.Config, path: GpuPath, training: TrainingSide, machine: TrainerMachine
) -> SourceSpec:
    """Where the power of a trainer's devices on another of its machines is read.

    Args:
        config: the run's configuration.
        path: the GPU path on the trainer's own machine, whose profile counts there too.
        training: the training process.
        machine: the other machine.

    Raises:
        ConfigError: when the power source cannot tell this device's power.
    """
    there = replace(training, pids=machine.pids, gpu_uuids=machine.gpu_uuids)
    return _source(config, path.profile, there)[0]


def _driver_profile(config: cfg.Config, title: str) -> DeviceProfile:
    """The profile that stands for the devices of a driver's stages; it has none itself to ask."""
    if config.devices.gpu != "auto":
        return named_profile("devices.gpu", config.devices.gpu, DeviceKind.GPU)
    if not title:
        allowed = "the name or path of a profile: the trainer's process has no GPU to ask"
        raise ConfigError("devices.gpu", "auto", allowed)
    known = titled_profile(title)
    if known is None and _needs_figures(config):
        raise _no_profile(title)
    return known or nameless_profile(title)


def _no_profile(title: str) -> ConfigError:
    allowed = (
        f'the path of a TOML profile with kind = "gpu": none is known for {title or _NAMELESS}, '
        "and modelled costs or power need its figures"
    )
    return ConfigError("devices.gpu", "auto", allowed)


def _host_profile(devices: cfg.DeviceConfig) -> tuple[DeviceProfile, str]:
    if devices.n_gpus != 1:
        # The cost model would price as many hosts.
        allowed = "1: the trainer runs on this host's CPU"
        raise ConfigError("devices.n_gpus", devices.n_gpus, allowed)
    if devices.gpu == "auto":
        return load_profile("host_cpu"), "the trainer runs on this host's CPU"
    why = "the trainer runs on this host's processor, on no GPU"
    profile = named_profile("devices.gpu", devices.gpu, DeviceKind.CPU, why)
    return profile, f"profile {devices.gpu} as configured"


def _gpu_profile(config: cfg.Config, training: TrainingSide) -> tuple[DeviceProfile, str]:
    devices, others = config.devices, training.machines.values()
    n_used = len(training.gpu_uuids) + sum(len(machine.gpu_uuids) for machine in others)
    if n_used and n_used != devices.n_gpus:
        raise ConfigError("devices.n_gpus", devices.n_gpus, f"{n_used}: the trainer uses so many")
    if devices.gpu != "auto":
        why = "the trainer runs on a GPU"
        profile = named_profile("devices.gpu", devices.gpu, DeviceKind.GPU, why)
        return profile, f"profile {devices.gpu} as configured"
    titles = {gpu.name for gpu in _used_gpus(training) if gpu.name} or {""}
    if len(titles) > 1:
        raise ConfigError("devices.gpu", "auto", f"GPUs of one model; the run uses {titles}")
    title = titles.pop()
    known = titled_profile(title)
    if known is not None:
        return known, f"NVML names a {title}"
    if _needs_figures(config):
        raise _no_profile(title)
    logger.warning(
        "no profile is known for %s: its power is measured or missing, never modelled; "
        "devices.gpu may name a profile file",
        title or _NAMELESS,
    )
    why = f"NVML names a {title}" if title else "NVML does not name the GPU"
    return nameless_profile(title), f"{why}, for which no profile is known"


def _needs_figures(config: cfg.Config) -> bool:
    """Whether something in the run is computed from the figures of the GPU's profile."""
    placement = config.placement
    if isinstance(config.telemetry.gpu, cfg.ModelledSourceConfig):
        return True
    if _all_on_gpu(placement.policy):
        return False  # no guard is ever asked
    by_rule = isinstance(placement.policy, cfg.StaticPolicyConfig | cfg.ThresholdPolicyConfig)
    return placement.energy_margin is not None or not by_rule


def stays_on_gpu(policy: cfg.Policy, stage: Stage) -> bool:
    """Whether a policy that is fixed in the configuration keeps a stage on the GPU path.

    Args:
        policy: the configured policy.
        stage: a stage of inference.
    """
    if not isinstance(policy, cfg.StaticPolicyConfig):
        return False
    fixed = {Stage.REWARD: policy.reward, Stage.REFERENCE: policy.reference}
    return fixed.get(stage, Action.GPU) is Action.GPU


def _all_on_gpu(policy: cfg.Policy) -> bool:
    return all(stays_on_gpu(policy, stage) for stage in (Stage.REWARD, Stage.REFERENCE))


def _used_gpus(training: TrainingSide) -> tuple[NvmlDevice, ...]:
    try:
        with closing(NvmlDriver()) as driver:
            driver.open()
            wanted = training.gpu_uuids or visible_devices(os.environ)
            found = driver.select(wanted, as_cuda=not training.gpu_uuids)
        if not found:
            raise DriverError("NVML sees no GPU")
        if not any(gpu.answers for gpu in found):
            raise DriverError("; ".join(f"gpu{gpu.index}: {gpu.fault}" for gpu in found))
        return found
    except DriverError as error:
        allowed = f"a profile name, since NVML cannot name the GPU ({error})"
        raise ConfigError("devices.gpu", "auto", allowed) from error


def _source(
    config: cfg.Config, profile: DeviceProfile, training: TrainingSide
) -> tuple[SourceSpec, str]:
    chosen, on_gpu = config.telemetry.gpu, training.on_gpu
    # Its joules would be those of a device that this trainer does not use.
    if isinstance(chosen, cfg.NvmlSourceConfig) and not on_gpu:
        raise ConfigError("telemetry.gpu.type", "nvml", "not nvml: the trainer runs on the CPU")
    if isinstance(chosen, cfg.RaplSourceConfig) and on_gpu:
        raise ConfigError("telemetry.gpu.type", "rapl", "not rapl: the trainer runs on a GPU")
    device = MeteredDevice(
        "gpu0" if on_gpu else "cpu0",
        DeviceKind.GPU if on_gpu else DeviceKind.CPU,
        gpus=training.gpu_uuids,
        n_gpus=config.devices.n_gpus,
        model=_power_model(profile, training),
    )
    if isinstance(chosen, cfg.AutoSourceConfig):
        return _auto_gpu(device) if on_gpu else _auto_host(profile, device)
    if isinstance(chosen, cfg.ModelledSourceConfig):
        _check_power_figures(profile)
    else:
        device = replace(device, model=None)
    return SourceSpec((chosen,), device), f"power source {chosen.type} as configured"


def _check_power_figures(profile: DeviceProfile) -> None:
    """Refuse a profile without the figures of a power model; the message names the file."""
    for key in ("idle_w", "active_w"):
        profile.figure(key)


def _power_model(profile: DeviceProfile, training: TrainingSide) -> PowerModel | None:
    """The model of a device's power, or None where its profile holds no power."""
    idle_w, active_w = profile.get("idle_w"), profile.get("active_w")
    if idle_w is None or active_w is None:
        return None
    return PowerModel(
        idle_w=idle_w,
        active_w=active_w,
        pids=training.pids or (os.getpid(),),
        # Utilisation is of the whole device: on the host all its cores, else one feeding thread.
        n_threads=int(profile.get("n_cores") or 1),
    )


def _auto_gpu(device: MeteredDevice) -> tuple[SourceSpec, str]:
    # Not RAPL: the processor's joules are not the GPU's.
    candidates: tuple[SourceConfig, ...] = (cfg.NvmlSourceConfig(),)
    if device.model is None:
        spec = SourceSpec(candidates, device, asked="auto")
        return spec, "power by NVML, else missing: the profile holds no power to model it from"
    candidates = (*candidates, cfg.ModelledSourceConfig())
    return SourceSpec(candidates, device, asked="auto"), "power by NVML, else modelled"


def _auto_host(profile: DeviceProfile, device: MeteredDevice) -> tuple[SourceSpec, str]:
    # Not NVML: it would answer for a GPU that this trainer does not use.
    try:
        find_zones()
    except DriverError as error:
        _check_power_figures(profile)
        spec = SourceSpec((cfg.ModelledSourceConfig(),), device)
        return spec, f"power modelled, since RAPL: {error}"
    rapl = SourceSpec((cfg.RaplSourceConfig(),), replace(device, model=None))
    return rapl, "power by RAPL, the whole package"

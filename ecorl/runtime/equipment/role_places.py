"""Finds the devices of roles that do not run on the trainer's own, such as generation by a server.

A framework's adapter says which roles these are (`TrainingSide.elsewhere`), and ``[places.<role>]``
of the config names their devices. Executions of such a role are charged to those devices alone, all
others to the trainer's. Where nobody names them such an execution has no energy.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ecorl import config as cfg
from ecorl.devices import DeviceProfile
from ecorl.drivers.instruments import NvmlDevice
from ecorl.drivers.nvml import NvmlDriver, visible_devices
from ecorl.errors import ConfigError, DriverError
from ecorl.records import DeviceKind, Role
from ecorl.runtime.equipment.profiles import named_profile, nameless_profile, titled_profile
from ecorl.runtime.handles import Span
from ecorl.runtime.training import TrainingSide
from ecorl.telemetry.sources.specs import MeteredDevice, SourceSpec

_UNREAD = (cfg.NullSourceConfig, cfg.ModelledSourceConfig)
"""Power sources that tell nothing of devices on which other processes compute."""


@dataclass(frozen=True, slots=True)
class RolePlace:
    """The devices that serve a role in place of the trainer's.

    Attributes:
        profile: of one of them.
        device_ids: as telemetry names them; empty where their power is not read.
        n_gpus: how many they are.
        gap: why their power is not read, one sentence for the report; empty where it is.
    """

    profile: DeviceProfile
    device_ids: tuple[str, ...] = ()
    n_gpus: int = 1
    gap: str = ""


@dataclass(frozen=True, slots=True)
class RolePlaces:
    """The devices of all roles that the trainer's own do not serve.

    Attributes:
        by_role: by role; none where the trainer's devices serve all.
        others: ids of those devices that are not the trainer's.
        source: where the power of those is read that the trainer's source does not read.
    """

    by_role: Mapping[Role, RolePlace] = field(default_factory=dict)
    others: frozenset[str] = frozenset()
    source: SourceSpec | None = None

    @property
    def profile_names(self) -> dict[Role, str]:
        """Names of the profiles by role: columns of the EDI matrix."""
        return {role: place.profile.name for role, place in self.by_role.items()}

    @property
    def metered_profiles(self) -> dict[str, DeviceProfile]:
        """Profiles of the devices that are not the trainer's, by their ids."""
        places = self.by_role.values()
        return {i: p.profile for p in places for i in p.device_ids if i in self.others}

    @property
    def gaps(self) -> list[str]:
        """Why the power of some of the roles is not read, one sentence each."""
        return [place.gap for place in self.by_role.values() if place.gap]

    def charged(self, role: Role, spans: Sequence[Span]) -> list[Span]:
        """When an execution held the devices that serve its role.

        Args:
            role: of the execution.
            spans: when it ran, with the trainer's devices.
        """
        place = self.by_role.get(role)
        if place is None:
            return list(spans)
        return [replace(span, device_ids=place.device_ids) for span in spans]


def role_places(config: cfg.Config, training: TrainingSide) -> RolePlaces:
    """Find the devices of the roles that run elsewhere.

    Args:
        config: the run's configuration.
        training: the training process.

    Raises:
        ConfigError: when a device or a profile that the config names is not there.
    """
    named = {role: _named_here(config, training, role) for role in training.elsewhere}
    asked = {name: role for role, names in named.items() for name in names}
    by_number = isinstance(config.telemetry.gpu, cfg.ReplaySourceConfig)
    found = _Found(training, asked) if asked and not by_number else None
    by_role = {role: _place(config, training, role, names, found) for role, names in named.items()}
    ids = frozenset(i for place in by_role.values() for i in place.device_ids)
    if found is None or found.own_ids is None:
        # The trainer's source reads them too: a recording, or all GPUs of the machine.
        return RolePlaces(by_role, ids)
    others = ids - found.own_ids
    chosen = config.telemetry.gpu
    nvml = chosen if isinstance(chosen, cfg.NvmlSourceConfig) else cfg.NvmlSourceConfig()
    uuids = tuple(found.uuid_of[device_id] for device_id in sorted(others))
    source = SourceSpec((nvml,), MeteredDevice(gpus=uuids)) if uuids else None
    return RolePlaces(by_role, others, source)


def _place(
    config: cfg.Config,
    training: TrainingSide,
    role: Role,
    names: tuple[str, ...],
    found: _Found | None,
) -> RolePlace:
    """Describe the devices of one role by their names, as far as they have any."""
    place = config.place(role)
    title, ids = "", tuple(f"gpu{name}" for name in names)
    if found is not None and names:
        gpus = found.of(names)
        title, ids = gpus[0].name, tuple(_id(gpu) for gpu in gpus)
    profile = titled_profile(title) or nameless_profile(title)
    if place is not None and place.profile is not None:
        profile = named_profile(f"places.{role}.profile", place.profile, DeviceKind.GPU)
    n_gpus = len(ids) or (place.count if place is not None else None) or 1
    return RolePlace(profile, ids, n_gpus, "" if ids else _gap(config, training, role))


def _named_here(config: cfg.Config, training: TrainingSide, role: Role) -> tuple[str, ...]:
    """Names of a role's devices on the trainer's machine whose power can be read there."""
    place = config.place(role)
    if place is None or place.node not in (None, training.home):
        return ()
    if isinstance(config.telemetry.gpu, _UNREAD):
        return ()
    wrong = [name for name in place.devices if not name.isdecimal()]
    if isinstance(config.telemetry.gpu, cfg.ReplaySourceConfig) and wrong:
        allowed = "numbers, as the recording counts GPUs"
        raise ConfigError(f"places.{role}.devices", list(place.devices), allowed)
    return place.devices


def _gap(config: cfg.Config, training: TrainingSide, role: Role) -> str:
    what, place = training.elsewhere[role], config.place(role)
    if place is None or not place.devices:
        return f"{role} ran on {what} whose GPUs are not named: [places.{role}] devices"
    if place.node not in (None, training.home):
        return f"{role} ran on {what} on {place.node}, a machine whose power is not read"
    source = config.telemetry.gpu.type
    return f"{role} ran on {what} whose power telemetry.gpu.type = {source!r} does not tell"


class _Found:
    """What NVML says of the named GPUs and of the trainer's.

    Raises:
        ConfigError: when it does not know one of them.
    """

    def __init__(self, training: TrainingSide, named: Mapping[str, Role]) -> None:
        self._by_name: dict[str, NvmlDevice] = {}
        self.own_ids: set[str] | None = None
        driver = NvmlDriver()
        try:
            driver.open()
            for name, role in named.items():
                self._by_name[name] = _find(driver, name, role)
            own = training.gpu_uuids or (visible_devices(os.environ) if training.on_gpu else ())
            if own is not None:
                # None: the trainer's source reads all GPUs, those of the roles among them.
                self.own_ids = {_id(gpu) for gpu in driver.select(own)}
        except DriverError as error:
            role = next(iter(named.values()))
            allowed = f"GPUs that NVML finds here ({error})"
            raise ConfigError(f"places.{role}.devices", sorted(named), allowed) from error
        finally:
            driver.close()
        self.uuid_of = {_id(gpu): gpu.uuid for gpu in self._by_name.values()}

    def of(self, names: tuple[str, ...]) -> list[NvmlDevice]:
        """The GPUs behind some names, each once, in the order of their numbers."""
        found = {gpu.index: gpu for gpu in (self._by_name[name] for name in names)}
        return [found[index] for index in sorted(found)]


def _find(driver: NvmlDriver, name: str, role: Role) -> NvmlDevice:
    try:
        return driver.find(name)
    except DriverError as error:
        allowed = f"a GPU that NVML finds here, by index or UUID ({error})"
        raise ConfigError(f"places.{role}.devices", name, allowed) from error


def _id(gpu: NvmlDevice) -> str:
    return f"gpu{gpu.index}"

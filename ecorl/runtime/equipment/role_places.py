"""Finds the devices of roles that do not run on the trainer's own, such as generation by a server.

A framework's adapter says which roles these are (`TrainingSide.elsewhere`), and ``[places.<role>]``
of the config names their devices. Executions of such a role are charged to those devices alone, all
others to the trainer's. Where nobody names them such an execution has no energy.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
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
        node: name of their machine; empty: the trainer's.
        gap: why their power is not read, one sentence for the report; empty where it is.
    """

    profile: DeviceProfile
    device_ids: tuple[str, ...] = ()
    n_gpus: int = 1
    node: str = ""
    gap: str = ""


@dataclass(frozen=True, slots=True)
class RolePlaces:
    """The devices of all roles that the trainer's own do not serve.

    Attributes:
        by_role: by role; none where the trainer's devices serve all.
        others: ids of those devices on the trainer's machine that are not its own.
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

    def node_of(self, role: Role) -> str:
        """Name of the machine that serves a role; empty where it is the trainer's.

        Args:
            role: the role.
        """
        place = self.by_role.get(role)
        return place.node if place is not None else ""

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
    named = {role: _named_here(config, training, role) for role in training.served_elsewhere}
    asked = {name: role for role, names in named.items() for name in names}
    by_number = isinstance(config.telemetry.gpu, cfg.ReplaySourceConfig)
    found = _Found(training, asked) if asked and not by_number else None
    by_role = {}
    for role, names in named.items():
        title, ids = "", tuple(f"gpu{name}" for name in names)
        if found is not None and names:
            title, ids = found.gpus.title_and_ids(names)
        place = _place(config, role, title, ids)
        by_role[role] = place if ids else replace(place, gap=_gap(config, training, role))
    known = frozenset(i for place in by_role.values() for i in place.device_ids)
    if found is None or found.own_ids is None:
        # The trainer's source reads them too: a recording, or all GPUs of the machine.
        return RolePlaces(by_role, known)
    others = known - found.own_ids
    return RolePlaces(by_role, others, found.gpus.source(config, others))


def far_roles(config: cfg.Config, training: TrainingSide) -> dict[str, dict[Role, tuple[str, ...]]]:
    """Find the roles whose devices are named on machines other than the trainer's.

    Args:
        config: the run's configuration.
        training: the training process.

    Returns:
        Names of devices by machine and role; none where ``telemetry.gpu`` tells nothing of them.
    """
    found: dict[str, dict[Role, tuple[str, ...]]] = {}
    if isinstance(config.telemetry.gpu, (*_UNREAD, cfg.ReplaySourceConfig)):
        return found
    for role in training.served_elsewhere:
        place = config.place(role)
        if place is not None and place.devices and place.node not in (None, training.home):
            found.setdefault(str(place.node), {})[role] = place.devices
    return found


def far_places(
    config: cfg.Config,
    node: str,
    roles: Mapping[Role, tuple[str, ...]],
    gpus: NamedGpus,
    trainers: Collection[str] = (),
) -> RolePlaces:
    """Describe the devices of roles on a machine other than the one where the run was started.

    Args:
        config: the run's configuration.
        node: name of the machine.
        roles: names of each role's devices.
        gpus: what NVML says of them there.
        trainers: UUIDs of GPUs there that the trainer uses: they are read already.

    Raises:
        ConfigError: when a profile that the config names is not there.
    """
    by_role = {
        role: replace(_place(config, role, *gpus.title_and_ids(names)), node=node)
        for role, names in roles.items()
    }
    others = frozenset(_id(gpu) for gpu in gpus.by_name.values() if gpu.uuid not in trainers)
    return RolePlaces(by_role, others, gpus.source(config, others))


def _place(config: cfg.Config, role: Role, title: str, ids: tuple[str, ...]) -> RolePlace:
    """Describe the devices of one role by their model and their ids, as far as these are known."""
    place = config.place(role)
    profile = titled_profile(title) or nameless_profile(title)
    if place is not None and place.profile is not None:
        profile = named_profile(f"places.{role}.profile", place.profile, DeviceKind.GPU)
    n_gpus = len(ids) or (place.count if place is not None else None) or 1
    return RolePlace(profile, ids, n_gpus)


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
    what, place = training.served_elsewhere[role], config.place(role)
    if place is None or not place.devices:
        return f"{role} ran on {what} whose GPUs are not named: [places.{role}] devices"
    if place.node not in (None, training.home):
        return f"{role} ran on {what} on {place.node}, a machine whose power is not read"
    source = config.telemetry.gpu.type
    return f"{role} ran on {what} whose power telemetry.gpu.type = {source!r} does not tell"


@dataclass(frozen=True, slots=True)
class NamedGpus:
    """What NVML says of GPUs that the config names.

    Attributes:
        by_name: each GPU by the name that the config gives it, without its handle.
    """

    by_name: Mapping[str, NvmlDevice]

    def title_and_ids(self, names: Sequence[str]) -> tuple[str, tuple[str, ...]]:
        """The model of some GPUs, and their ids, each once, in the order of their numbers.

        Args:
            names: of the GPUs, at least one.
        """
        found = {gpu.index: gpu for gpu in (self.by_name[name] for name in names)}
        gpus = [found[index] for index in sorted(found)]
        return gpus[0].name, tuple(_id(gpu) for gpu in gpus)

    def source(self, config: cfg.Config, ids: Collection[str]) -> SourceSpec | None:
        """Where the power of some of the GPUs is read; None for none.

        Args:
            config: the run's configuration.
            ids: of the GPUs.
        """
        chosen = config.telemetry.gpu
        nvml = chosen if isinstance(chosen, cfg.NvmlSourceConfig) else cfg.NvmlSourceConfig()
        uuid_of = {_id(gpu): gpu.uuid for gpu in self.by_name.values()}
        uuids = tuple(uuid_of[device_id] for device_id in sorted(ids))
        return SourceSpec((nvml,), MeteredDevice(gpus=uuids)) if uuids else None


def named_gpus(named: Mapping[str, Role], where: str = "here") -> NamedGpus:
    """Ask this machine's NVML for GPUs by name.

    Args:
        named: names of GPUs, each with a role that they serve, for messages.
        where: the machine, for messages.

    Raises:
        ConfigError: when NVML does not know one of them.
    """
    driver = NvmlDriver()
    try:
        driver.open()
        found = {name: _find(driver, name, role, where) for name, role in named.items()}
        return NamedGpus({name: replace(gpu, handle=None) for name, gpu in found.items()})
    except DriverError as error:
        role = next(iter(named.values()))
        allowed = f"GPUs that NVML finds {where} ({error})"
        raise ConfigError(f"places.{role}.devices", sorted(named), allowed) from error
    finally:
        driver.close()


class _Found:
    """What NVML says of the named GPUs and of the trainer's.

    Raises:
        ConfigError: when it does not know one of them.
    """

    def __init__(self, training: TrainingSide, named: Mapping[str, Role]) -> None:
        self.gpus = named_gpus(named)
        self.own_ids: set[str] | None = None
        own = training.gpu_uuids or (visible_devices(os.environ) if training.on_gpu else ())
        if own is None:
            return  # the trainer's source reads all GPUs, those of the roles among them
        driver = NvmlDriver()
        try:
            driver.open()
            self.own_ids = {_id(gpu) for gpu in driver.select(own)}
        except DriverError as error:
            role = next(iter(named.values()))
            allowed = f"GPUs that NVML finds here ({error})"
            raise ConfigError(f"places.{role}.devices", sorted(named), allowed) from error
        finally:
            driver.close()


def _find(driver: NvmlDriver, name: str, role: Role, where: str) -> NvmlDevice:
    try:
        return driver.find(name)
    except DriverError as error:
        allowed = f"a GPU that NVML finds {where}, by index or UUID ({error})"
        raise ConfigError(f"places.{role}.devices", name, allowed) from error


def _id(gpu: NvmlDevice) -> str:
    return f"gpu{gpu.index}"

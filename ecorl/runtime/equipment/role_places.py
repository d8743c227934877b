"""Finds the devices of roles that do not run on the trainer's own, such as generation by a server.

A framework's adapter says which roles these are (`TrainingSide.elsewhere`), and ``[places.<role>]``
of the config names their devices, or else the adapter does (`TrainingSide.places`), on several
machines where they are. Executions of such a role are charged to those devices alone, all others to
the trainer's. Where nobody names them such an execution has no energy.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace

from ecorl import config as cfg
from ecorl.devices import DeviceProfile, chosen_profile, titled_profile
from ecorl.drivers.instruments import NvmlDevice
from ecorl.drivers.nvml import NvmlDriver, visible_devices
from ecorl.errors import ConfigError, DriverError
from ecorl.records import DeviceKind, Role, stage_of
from ecorl.runtime.handles import Span
from ecorl.runtime.training import MachineDevices, TrainingSide
from ecorl.telemetry.sources.specs import MeteredDevice, SourceSpec


def nameless_profile(title: str) -> DeviceProfile:
    """Make a profile of which nothing is known but the title: every figure is missing.

    Args:
        title: NVML's name of the product; empty where nobody tells.
    """
    words = re.findall("[a-z0-9]+", title.lower().replace("nvidia", " "))
    # The prefix keeps it apart from the profiles that travel with the package.
    return DeviceProfile("_".join(["nvidia", *(words or ["gpu"])]), title or "GPU", DeviceKind.GPU)


def named_profile(key: str, name: str, kind: DeviceKind, why: str = "") -> DeviceProfile:
    """Load a profile that the configuration names, of the kind that is wanted there.

    Args:
        key: the configuration's key, for the message.
        name: a profile's name or the path of a file.
        kind: the kind of device that the key stands for.
        why: the reason why only this kind will do, for the message.

    Raises:
        ConfigError: when there is none of this name, or it is of another kind.
    """
    words = ("auto",) if key == "devices.gpu" else ()
    return chosen_profile(key, name, kind, words=words, why=why)


_UNREAD = (cfg.NullSourceConfig, cfg.ModelledSourceConfig)
"""Power sources that tell nothing of devices on which other processes compute."""


@dataclass(frozen=True, slots=True)
class RolePlace:
    """The devices of one machine that serve a role in place of the trainer's.

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

    def held(self, spans: Sequence[Span]) -> list[Span]:
        """When an execution of the role held these devices.

        Args:
            spans: when it ran, with the trainer's devices.
        """
        return [replace(span, device_ids=self.device_ids) for span in spans]


@dataclass(frozen=True, slots=True)
class RolePlaces:
    """The devices of all roles that the trainer's own do not serve.

    Attributes:
        by_role: by role, each machine once; no role where the trainer's devices serve all.
        others: ids of those devices on the trainer's machine that are not its own.
        source: where the power of those is read that the trainer's source does not read.
    """

    by_role: Mapping[Role, tuple[RolePlace, ...]] = field(default_factory=dict)
    others: frozenset[str] = frozenset()
    source: SourceSpec | None = None

    @property
    def devices(self) -> dict[Role, tuple[DeviceProfile, int]]:
        """What prices each role: the profile of most of its devices, and how many these are.

        Where machines have unlike devices those that are read speak for all.
        """
        found = {}
        for role, places in self.by_role.items():
            most = max(places, key=lambda place: len(place.device_ids))
            found[role] = most.profile, sum(place.n_gpus for place in places)
        return found

    @property
    def profile_names(self) -> dict[Role, str]:
        """Names of the profiles by role: columns of the EDI matrix."""
        return {role: profile.name for role, (profile, _) in self.devices.items()}

    @property
    def metered_profiles(self) -> dict[str, DeviceProfile]:
        """Profiles of the devices that are not the trainer's, by their ids."""
        return {i: p.profile for p in self._all for i in p.device_ids if i in self.others}

    @property
    def gaps(self) -> list[str]:
        """Why the power of some of the roles is not read, one sentence each."""
        return [place.gap for place in self._all if place.gap]

    @property
    def _all(self) -> list[RolePlace]:
        return [place for places in self.by_role.values() for place in places]

    def with_far(self, far: Mapping[str, RolePlaces]) -> RolePlaces:
        """The same with the devices of other machines, as they are known there.

        Args:
            far: by the name of the machine; what is not among them stays as it is.
        """

        def known(role: Role, place: RolePlace) -> tuple[RolePlace, ...]:
            there = far.get(place.node)
            return there.by_role.get(role, (place,)) if there is not None else (place,)

        by_role = {
            role: tuple(found for place in places for found in known(role, place))
            for role, places in self.by_role.items()
        }
        return replace(self, by_role=by_role)


def role_places(config: cfg.Config, training: TrainingSide) -> RolePlaces:
    """Find the devices of the roles that run elsewhere.

    Args:
        config: the run's configuration.
        training: the training process.

    Raises:
        ConfigError: when a device or a profile that the config names is not there.
    """
    named = {role: _named(config, training, role) for role in training.served_elsewhere}
    asked = {
        name: role
        for role, parts in named.items()
        for part in parts
        for name in _read_here(config, training, role, part)
    }
    by_number = isinstance(config.telemetry.gpu, cfg.ReplaySourceConfig)
    gpus = named_gpus(asked) if asked and not by_number else None
    own_ids = None if gpus is None else _own_ids(training, asked)
    by_role = {
        role: tuple(_place_here(config, training, role, part, gpus) for part in parts)
        for role, parts in named.items()
    }
    places = RolePlaces(by_role)
    known = frozenset(i for here in by_role.values() for place in here for i in place.device_ids)
    if gpus is None or own_ids is None:
        # The trainer's source reads them too: a recording, or all GPUs of the machine.
        return replace(places, others=known)
    others = known - own_ids
    return replace(places, others=others, source=gpus.source(config, others))


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
        for part in _named(config, training, role):
            if part.devices and part.node != training.home:
                found.setdefault(part.node, {})[role] = part.devices
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
    by_role = {}
    for role, names in roles.items():
        title, ids = gpus.title_and_ids(names)
        by_role[role] = (RolePlace(_profile(config, role, title), ids, len(ids), node),)
    others = frozenset(_id(gpu) for gpu in gpus.by_name.values() if gpu.uuid not in trainers)
    return RolePlaces(by_role, others, gpus.source(config, others))


def _named(config: cfg.Config, training: TrainingSide, role: Role) -> tuple[MachineDevices, ...]:
    """A role's devices by machine: those that the config names, else those that the adapter does.

    At least one machine, whose name is empty where nobody tells anything.
    """
    place = config.place(role)
    if place is not None and place.devices:
        return (MachineDevices(place.node or training.home, place.devices),)
    told = training.places.get(role) or training.places.get(stage_of(role))
    count = place.count if place is not None else None
    return told or (MachineDevices("", count=count or 1),)


def _read_here(
    config: cfg.Config, training: TrainingSide, role: Role, part: MachineDevices
) -> tuple[str, ...]:
    """Names of a role's devices on a machine, where that is the trainer's and reads their power."""
    if part.node != training.home or isinstance(config.telemetry.gpu, _UNREAD):
        return ()
    wrong = [name for name in part.devices if not name.isdecimal()]
    if isinstance(config.telemetry.gpu, cfg.ReplaySourceConfig) and wrong:
        allowed = "numbers, as the recording counts GPUs"
        raise ConfigError(f"places.{role}.devices", list(part.devices), allowed)
    return part.devices


def _place_here(
    config: cfg.Config,
    training: TrainingSide,
    role: Role,
    part: MachineDevices,
    gpus: NamedGpus | None,
) -> RolePlace:
    """Describe a role's devices on one machine, as far as the trainer's machine knows them."""
    names = _read_here(config, training, role, part)
    title, ids = "", tuple(f"gpu{name}" for name in names)
    if gpus is not None and names:
        title, ids = gpus.title_and_ids(names)
    profile = _profile(config, role, title)
    if ids:
        return RolePlace(profile, ids, len(ids))
    node = "" if part.node == training.home else part.node
    return RolePlace(profile, (), part.n_gpus, node, _gap(config, training, role, part))


def _profile(config: cfg.Config, role: Role, title: str) -> DeviceProfile:
    """The profile of a role's devices: the one that the config names, else their model's."""
    place = config.place(role)
    if place is not None and place.profile is not None:
        return named_profile(f"places.{role}.profile", place.profile, DeviceKind.GPU)
    return titled_profile(title) or nameless_profile(title)


def _gap(config: cfg.Config, training: TrainingSide, role: Role, part: MachineDevices) -> str:
    what = training.served_elsewhere[role]
    if not part.node:
        return f"{role} ran on {what} whose GPUs are not named: [places.{role}] devices"
    if not part.devices:
        return f"{role} ran on {what} on {part.node}, where NVML does not tell their GPUs"
    if part.node != training.home:
        return f"{role} ran on {what} on {part.node}, a machine whose power is not read"
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
        title = next((gpu.name for gpu in gpus if gpu.name), "")
        return title, tuple(_id(gpu) for gpu in gpus)

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
    with _nvml(named, where) as driver:
        found = {name: _find(driver, name, role, where) for name, role in named.items()}
    return NamedGpus({name: replace(gpu, handle=None) for name, gpu in found.items()})


@contextmanager
def _nvml(named: Mapping[str, Role], where: str) -> Iterator[NvmlDriver]:
    """NVML, open; where it fails, the named GPUs cannot be used."""
    try:
        with closing(NvmlDriver()) as driver:
            driver.open()
            yield driver
    except DriverError as error:
        role = next(iter(named.values()))
        allowed = f"GPUs that NVML finds {where} ({error})"
        raise ConfigError(f"places.{role}.devices", sorted(named), allowed) from error


def _own_ids(training: TrainingSide, named: Mapping[str, Role]) -> set[str] | None:
    """Ids of the trainer's GPUs; None where its source reads all, those of the roles among them.

    Raises:
        ConfigError: when NVML does not know one of them.
    """
    own = training.gpu_uuids or (visible_devices(os.environ) if training.on_gpu else ())
    if own is None:
        return None
    with _nvml(named, "here") as driver:
        return {_id(gpu) for gpu in driver.select(own, as_cuda=not training.gpu_uuids)}


def _find(driver: NvmlDriver, name: str, role: Role, where: str) -> NvmlDevice:
    try:
        return driver.find(name)
    except DriverError as error:
        allowed = f"a GPU that NVML finds {where}, by index or UUID ({error})"
        raise ConfigError(f"places.{role}.devices", name, allowed) from error


def _id(gpu: NvmlDevice) -> str:
    return f"gpu{gpu.index}"

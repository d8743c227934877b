"""Facts of the training process that the runtime serves, given by a framework's adapter."""

from __future__ import annotations

import functools
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from ecorl.ledger import node_name
from ecorl.records import NO_ABILITIES, Abilities, ModelShape, Role, Stage, stage_of

TrainerDevice = Literal["cuda", "cpu", "none"]
"""Where a process trains. ``none``: a driver that computes on no device, while other processes do
the work of all stages."""


def _nothing_to_wait_for() -> None:
    """Return at once: on a CPU work is done when the call returns."""


@functools.cache
def this_node() -> str:
    """Name of this machine, as device ids and files of a run's record spell it."""
    return node_name(platform.node())


@dataclass(frozen=True, slots=True)
class FrozenModel:
    """A frozen model on disk, as the trainer's own is in memory.

    Attributes:
        folder: Hugging Face checkpoint folder.
        dtype: floating-point type in which the trainer computes with it, e.g. ``float32``; an
            exact engine computes in the same one.
        name: what its user calls it; empty: by the folder's name.
    """

    folder: Path
    dtype: str = "float32"
    name: str = ""

    def kept(self, reason: str) -> KeptModel:
        """The model as one that has no engine.

        Args:
            reason: why, as a clause.
        """
        return KeptModel(reason, self.name or self.folder.name)


def plain_name(name: str) -> str:
    """What a user reads of a model: its name on the hub, or the last part of its path.

    Args:
        name: a path or the hub's name, as the framework takes it.
    """
    path = Path(name).expanduser()
    return path.name if path.is_dir() else name


@dataclass(frozen=True, slots=True)
class KeptModel:
    """A frozen model that the policy might offload, and that has no engine.

    Attributes:
        reason: why, as a clause.
        name: what its user calls it; empty where it has no name.
    """

    reason: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class TrainerMachine:
    """The processes of a trainer on one machine, and their GPUs by UUID."""

    pids: tuple[int, ...] = ()
    gpu_uuids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MachineDevices:
    """The devices of a role on one machine.

    Attributes:
        node: name of the machine.
        devices: its GPUs by index or UUID, as NVML names them there; empty where it tells none.
        count: how many they are, where they are not named.
    """

    node: str
    devices: tuple[str, ...] = ()
    count: int = 1

    @property
    def n_gpus(self) -> int:
        """How many they are."""
        return len(self.devices) or self.count


@dataclass(frozen=True, slots=True)
class TrainingSide:
    """Facts of one training process, given by the framework's adapter.

    Attributes:
        device: where the framework trains.
        gpu_uuids: UUIDs of the GPUs that it uses; empty when it cannot tell, then NVML's
            ``CUDA_VISIBLE_DEVICES`` rule decides.
        models: shape of the model of every role, for the cost model; unknown ones may be absent.
        frozen: the frozen model of each role that may leave the GPU.
        fence: waits until the device has done all that was launched. A stage's borders lie
            behind it: without it a stage on a GPU would end when its kernels are queued, and its
            seconds and joules would count for the stage that happens to wait for them.
        elsewhere: roles that devices other than the trainer's serve, and what these are, in words
            for the report, e.g. ``a vLLM server``.
        places: devices of roles that the trainer's do not serve, each machine once; they count
            where the config names none for the role.
        pids: its processes on this machine, where it has several; empty: this one.
        node: name of the machine on which it trains; empty: this one.
        machines: further machines on which processes of this trainer run, by their host names.
        gpu_title: NVML's name of the GPUs of a driver's processes (device ``none``); empty: it
            cannot tell.
        abilities: what the framework's training loop lets ecorl do beyond moving whole batches.
        cards: Ray's placement groups that reserve a card for a role's accelerator worker; a role
            without one takes any card of the cluster.
        kept: frozen models that might be offloaded and cannot be handed to an engine at all.
    """

    device: TrainerDevice = "cpu"
    gpu_uuids: tuple[str, ...] = ()
    models: Mapping[Role, ModelShape] = field(default_factory=dict)
    frozen: Mapping[Role, FrozenModel] = field(default_factory=dict)
    fence: Callable[[], None] = _nothing_to_wait_for
    elsewhere: Mapping[Role, str] = field(default_factory=dict)
    places: Mapping[Role, tuple[MachineDevices, ...]] = field(default_factory=dict)
    pids: tuple[int, ...] = ()
    node: str = ""
    machines: Mapping[str, TrainerMachine] = field(default_factory=dict)
    gpu_title: str = ""
    abilities: Abilities = NO_ABILITIES
    cards: Mapping[Role, Any] = field(default_factory=dict)
    kept: Mapping[Role, KeptModel] = field(default_factory=dict)

    @property
    def served_elsewhere(self) -> Mapping[Role, str]:
        """Roles that devices other than this process's serve, and what these are, in words."""
        if self.device != "none":
            return self.elsewhere
        roles = [*self.models, *self.places]
        return {**dict.fromkeys(roles, "processes of their own"), **self.elsewhere}

    @property
    def home(self) -> str:
        """Name of the machine on which it trains."""
        return self.node or this_node()

    def without_fence(self) -> TrainingSide:
        """The same facts for another process, which cannot wait for this one's device."""
        return replace(self, fence=_nothing_to_wait_for)

    @property
    def on_gpu(self) -> bool:
        """Whether the framework trains on a GPU."""
        return self.device == "cuda"


def models_by_stage(models: Mapping[Role, ModelShape]) -> dict[Stage, ModelShape]:
    """The shape that stands for each stage where costs are computed: that of its first model.

    Args:
        models: shapes by role.
    """
    found: dict[Stage, ModelShape] = {}
    for role, shape in models.items():
        found.setdefault(stage_of(role), shape)
    return found

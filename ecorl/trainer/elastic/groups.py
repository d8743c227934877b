"""Process groups that are made beside each other, kept, and given up when a collective fails.

torch.distributed keeps one default group a process, and its public functions go by that group.
Here the classes below it are used, so that the next group can be made while training uses the last.

What gloo does when a peer is lost (seen with torch 2.13): a killed process on a machine that lives
closes its connections, and the collectives of all others raise at once. A process that is stopped,
or on a machine that went away, says nothing, and they raise after the group's time-out. ``abort``
and ``shutdown`` of a gloo group end no collective under way; whoever waits for one here waits in
short turns and leaves when told. Such a collective may still write into its tensors, so those are
never used again, and neither is the group.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from ecorl.errors import ConfigError, EcorlError, MissingToolError

Backend = Literal["gloo", "nccl"]

_dist: Any = dist
"""torch.distributed, whose stores and groups are documented and have no complete annotations."""

_TURN = timedelta(milliseconds=50)
"""How long one turn of waiting for a collective takes; invented: who aborts waits that long, and
waking up that often costs nothing."""

_POLL_S = 2e-4
"""How often is looked whether a collective of NCCL is over, s; invented: far below its duration."""


class CollectiveFailed(EcorlError):
    """A collective did not complete: a peer is lost, slow beyond the time-out, or told to stop."""


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """A process group to make.

    Attributes:
        members: names of its members, by rank; groups are kept under this.
        serial: number of the group, higher than that of all made before it.
        host: address of the store at which they meet.
        port: its port.
        timeout_s: after this time without its peers a collective fails, s; None: as the members'
            options say.
    """

    members: tuple[str, ...]
    serial: int
    host: str
    port: int
    timeout_s: float | None = None

    @property
    def name(self) -> str:
        """Unlike that of any other group of the run, these members' earlier ones included."""
        return f"group-{self.serial}"


@dataclass(frozen=True, slots=True)
class GroupOptions:
    """How groups are made.

    With ``nccl`` no training has been run yet: what happens to its groups when a peer is lost is
    written after torch's documentation and not seen.

    Attributes:
        backend: ``gloo`` for models on the CPU, ``nccl`` for models on GPUs.
        timeout_s: after this time without its peers a collective fails, s; the making of a
            group, too.
    """

    backend: Backend = "gloo"
    timeout_s: float = 30.0

    def __post_init__(self) -> None:
        if self.backend not in ("gloo", "nccl"):
            raise ConfigError("backend", self.backend, "gloo or nccl")
        if not self.timeout_s > 0:
            raise ConfigError("timeout_s", self.timeout_s, "a time in seconds, above 0")


class MeetingPlace:
    """The store at which members meet; it lives in the process that drives them.

    Args:
        host: address of this machine, as members on other machines know it.

    Attributes:
        host: the same.
        n_groups: groups that have been named, and so the serial of the newest.
    """

    def __init__(self, host: str) -> None:
        self.host = host
        self.n_groups = 0
        self._store = _dist.TCPStore(host, 0, None, is_master=True, wait_for_workers=False)

    def spec(self, members: Sequence[str], timeout_s: float | None = None) -> GroupSpec:
        """Name a new group of these members.

        Args:
            members: their names, by rank.
            timeout_s: of its collectives, s; None: as the members' options say.
        """
        self.n_groups += 1
        port: int = self._store.port
        return GroupSpec(tuple(members), self.n_groups, self.host, port, timeout_s)


class ProcessGroup:
    """One member's end of a group; the constructor returns when all members have met.

    Args:
        spec: the group.
        rank: of this member.
        options: how it is made.
        host: address under which the other members reach this process.

    Raises:
        CollectiveFailed: when the others do not come within the time-out.
        MissingToolError: when this torch was built without the back-end.
    """

    def __init__(self, spec: GroupSpec, rank: int, options: GroupOptions, host: str) -> None:
        self.spec, self.rank, self._backend = spec, rank, options.backend
        self._aborted = threading.Event()
        self._is_broken = False
        self._last: Any = None
        try:
            self._group = _make(spec, rank, options, host)
        except (RuntimeError, dist.DistError) as error:
            raise CollectiveFailed(f"{spec.name} was not made: {_first_line(error)}") from error

    @property
    def is_usable(self) -> bool:
        """Whether every collective so far has completed and nobody has aborted the group."""
        return not (self._is_broken or self._aborted.is_set())

    def abort(self) -> None:
        """Make whoever waits for a collective of this group leave; from any thread."""
        self._aborted.set()
        if self._backend == "nccl":
            # NCCL's collectives do end by this; there was no GPU to try it on.
            self._group.abort()

    @property
    def is_idle(self) -> bool:
        """Whether no collective is under way, so that deleting the group waits for nothing."""
        return self._last is None or bool(self._last.is_completed())

    def check(self) -> None:
        """Raise when the group is no good any more.

        Raises:
            CollectiveFailed: if so.
        """
        if not self.is_usable:
            raise CollectiveFailed(f"{self.spec.name} was given up")

    def all_reduce(self, tensor: Tensor) -> None:
        """Sum a tensor over all members, in place.

        Raises:
            CollectiveFailed: when it does not complete; the tensor must not be used again.
        """
        self._run(lambda: self._group.allreduce([tensor]))

    def broadcast(self, tensor: Tensor, root: int) -> None:
        """Copy a tensor of one member to all others, in place.

        Args:
            tensor: contiguous, of the same size and kind on each member; any kind.
            root: rank of the member whose tensor it is.

        Raises:
            CollectiveFailed: when it does not complete; the tensor must not be used again.
        """
        # As bytes: gloo knows neither short nor unsigned integers, nor floats of 8 bits.
        self._run(lambda: self._group.broadcast(tensor.view(-1).view(torch.uint8), root))

    def _run(self, collective: Any) -> None:
        """Start a collective and wait for it."""
        self.check()
        try:
            self._last = collective()
            wait = self._poll if self._backend == "nccl" else self._wait
            wait(self._last)
        except RuntimeError as error:  # what torch raises for whatever went wrong
            self._is_broken = True
            raise CollectiveFailed(f"{self.spec.name}: {_first_line(error)}") from error

    def _wait(self, work: Any) -> None:
        """Wait for a collective in turns, until it is over or the group is aborted."""
        while not work.is_completed():
            # A turn raises when it is over and when the collective has failed, and a collective
            # can complete after its turn: the wait behind the loop tells what became of it.
            with suppress(RuntimeError):
                work.wait(_TURN)
            if self._aborted.is_set() and not work.is_completed():
                self._is_broken = True
                raise CollectiveFailed(f"{self.spec.name} was aborted")
        work.wait()

    def _poll(self, work: Any) -> None:
        """Wait for a collective of NCCL, for which a wait with a time-out ends the whole group."""
        while not work.is_completed():
            if self._aborted.is_set():
                self._is_broken = True
                raise CollectiveFailed(f"{self.spec.name} was aborted")
            time.sleep(_POLL_S)
        work.wait()


def _make(spec: GroupSpec, rank: int, options: GroupOptions, host: str) -> Any:
    """Meet the other members."""
    timeout = timedelta(seconds=spec.timeout_s or options.timeout_s)
    # A connection of its own: a store's client serves one thread at a time, and waits in it.
    client = _dist.TCPStore(
        spec.host, spec.port, None, is_master=False, timeout=timeout, wait_for_workers=False
    )
    store, size = _dist.PrefixStore(spec.name, client), len(spec.members)
    if options.backend == "gloo":
        gloo = _dist.ProcessGroupGloo
        made = gloo._Options()
        made._timeout = timeout
        # Without an address gloo takes the one to which the host's name resolves, which on many
        # machines is a loopback address that no other machine reaches.
        made._devices = [gloo.create_device(hostname=host)]
        return gloo(store, rank, size, made)
    nccl = getattr(_dist, "ProcessGroupNCCL", None)
    if nccl is None:
        raise MissingToolError('backend = "nccl" needs a torch that was built with NCCL')
    # The same calls serve for NCCL; they have not been tried on GPUs.
    made = nccl.Options()
    made._timeout = timeout
    return nccl(store, rank, size, made)


class GroupCache:
    """The groups of one member, by their members; from any thread.

    Args:
        member: name of the member.
        options: how groups are made.
        host: address under which other members reach this process.
    """

    def __init__(self, member: str, options: GroupOptions, host: str) -> None:
        self._member, self._options, self._host = member, options, host
        self._lock = threading.Lock()
        self._groups: dict[tuple[str, ...], ProcessGroup] = {}
        # Kept, because to delete a group with a collective under way waits for its time-out.
        self._given_up: list[ProcessGroup] = []

    def join(self, spec: GroupSpec) -> None:
        """Make a group and keep it under its members.

        Raises:
            CollectiveFailed: when the others do not come.
        """
        made = ProcessGroup(spec, spec.members.index(self._member), self._options, self._host)
        with self._lock:
            before = self._groups.get(spec.members)
            # A meeting that was given up can end after the one that has replaced it.
            is_newer = before is None or before.spec.serial < spec.serial
            if is_newer:
                self._groups[spec.members] = made
        if not is_newer:
            self._give_up(made)
        elif before is not None:
            self._give_up(before)

    def get(self, members: Sequence[str]) -> ProcessGroup:
        """The group of these members.

        Raises:
            CollectiveFailed: when there is none that can be used.
        """
        with self._lock:
            group = self._groups.get(tuple(members))
        if group is None:
            raise CollectiveFailed(f"{self._member} has no group of {', '.join(members)}")
        group.check()
        return group

    def abort(self, members: Sequence[str], newest: int | None = None) -> None:
        """Give up the group of these members, if there is one.

        Args:
            members: their names, by rank.
            newest: serial of the newest group that is meant: one of the same members that was made
                since stays. None: whichever there is.
        """
        with self._lock:
            group = self._groups.get(tuple(members))
            if group is None or (newest is not None and group.spec.serial > newest):
                return
            del self._groups[tuple(members)]
        self._give_up(group)

    def forget(self, member: str) -> None:
        """Give up all groups of a member that is gone."""
        with self._lock:
            gone = [members for members in self._groups if member in members]
        for members in gone:
            self.abort(members)

    def _give_up(self, group: ProcessGroup) -> None:
        """Abort a group, and delete those given up earlier that have come to rest."""
        group.abort()
        with self._lock:
            self._given_up = [one for one in [*self._given_up, group] if not one.is_idle]


def _first_line(error: BaseException) -> str:
    """The first line of an error's message."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def device_of(module: torch.nn.Module) -> torch.device:
    """The device on which a module's parameters lie; the CPU for one without any."""
    first = next(module.parameters(), None)
    return torch.device("cpu") if first is None else first.device

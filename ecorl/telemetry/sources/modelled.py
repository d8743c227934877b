"""Power modelled from CPU time, for machines that cannot be measured.

power = idle + (active - idle) x utilisation: a straight line between two figures of a device
profile. Real power is not linear in utilisation; the figure is tagged ``modelled`` for that.

On a processor the CPU time is that of the processes with all that descend from them. A modelled GPU
is taken to be busy while the processes that feed it are, and their children feed none.

The power of a reading is the mean since the reading before; held until the next one, as readings
of an instrument are, it would count one interval late. So the energy is summed here as well,
interval by interval, and stands in the samples as a counter does.

`ProcessTree` adds up the processor time as far as the kernel tells. A process's line in ``/proc``
has its own time, and that of the children for which it has waited, with theirs. Where a child ends
its time moves from its own line to its parent's, so each second that is gained counts once. Some
time stands in no line of the tree and is missing: that of a process for which no parent waits,
between the last reading of it and its end, and that of a process whose parent ended before the
process was seen. A control group that holds nothing but the tree tells it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ecorl.child_process import SIMULATOR
from ecorl.devices.host import cgroup_folders
from ecorl.errors import ConfigError, DeviceLost, LibraryNotFound
from ecorl.records import MAX_POWER_W, DeviceKind, PowerSample, Provenance
from ecorl.telemetry.sources.specs import DeviceInfo, MeteredDevice

PROC = "/proc"


class ProcessStat(NamedTuple):
    """A process's line in ``/proc``; times of the processor in ticks of the kernel's clock."""

    name: str
    parent: int
    own: int
    waited: int
    started: int


def read_stat(pid: int) -> ProcessStat | None:
    """Read a process's name, parent and times; None where it does not exist or is hidden.

    Args:
        pid: the process.

    Raises:
        DeviceLost: the system refuses to read it now, which does not tell that it has gone.
    """
    try:
        fd = os.open(f"{PROC}/{pid}/stat", os.O_RDONLY)
        try:
            text = os.read(fd, 4096).decode(errors="replace")
        finally:
            os.close(fd)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    except OSError as error:
        raise DeviceLost(f"process {pid} cannot be read: {error}") from error
    # The name in parentheses may hold spaces and parentheses: fields count from the last one.
    head, _, rest = text.rpartition(")")
    fields = rest.split()
    if len(fields) < 20:
        return None
    own, waited = int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14])
    return ProcessStat(head.partition("(")[2], int(fields[1]), own, waited, int(fields[19]))


def list_pids() -> list[int]:
    """Process ids of all processes of the machine that this one can see.

    Raises:
        DeviceLost: the system refuses to list them now.
    """
    try:
        names = os.listdir(PROC)  # noqa: PTH208  # ten times as fast as a path for each
    except OSError as error:
        raise DeviceLost(f"processes cannot be listed: {error}") from error
    return [int(name) for name in names if name.isdigit()]


@dataclass(slots=True)
class _Member:
    """A process of the tree as it was read last."""

    started: int
    parent: int
    own: int = 0
    waited: int = 0
    simulates: bool = False


class ProcessTree:
    """Processes and all that descend from them.

    A process that was seen once stays in the tree where its parent ends before it. The simulation
    of a card is left out: what the card would draw is modelled of its own.

    Args:
        pids: the processes at its roots; one may descend from another.

    Attributes:
        cgroup: the control group that holds nothing but the tree, or None.
    """

    def __init__(self, pids: Sequence[int]) -> None:
        self._roots = tuple(pids)
        self._members: dict[int, _Member] = {}
        self._strangers: set[int] = set()
        # Ticks gained so far, and of those what the next scan may find in a parent's line again.
        self._ticks = self._owed = 0
        self._lead = _CgroupLead()
        self.cgroup: Path | None = None

    def open(self) -> None:
        """Take the first reading; the control group is chosen then, and no other one later.

        Raises:
            DeviceLost: a process at a root does not exist.
        """
        for pid in self._roots:
            stat = read_stat(pid)
            if stat is None:
                raise DeviceLost(f"process {pid} has gone")
            self._members[pid] = _Member(stat.started, stat.parent)
        self.cpu_time_s()
        folders = cgroup_folders(self._roots[0])
        own = (one for one in folders if self._owns(one) and _usage_s(one) is not None)
        self.cgroup = next(own, None)

    @property
    def n_processes(self) -> int:
        """How many processes there are now."""
        return len(self._members)

    def cpu_time_s(self) -> float:
        """User and system time of the processor of all, s; it counts from anywhere and never falls.

        Raises:
            DeviceLost: a process at a root has gone.
        """
        usage_s = _usage_s(self.cgroup) if self.cgroup is not None else None
        self._discover()
        counted, simulated = self._gain()
        self._ticks += counted
        if self.cgroup is not None:
            whole_s = usage_s if usage_s is not None and self._owns(self.cgroup) else None
            self._lead.add(whole_s, (counted + simulated) * tick_s())
        return self._ticks * tick_s() + self._lead.most_s

    def _discover(self) -> None:
        """Add what has been born, parents before their children."""
        found: dict[int, ProcessStat] = {}
        pids = set(list_pids())
        self._strangers &= pids  # also keeps the set as small as the machine
        for pid in pids - self._strangers - self._members.keys():
            stat = read_stat(pid)
            if stat is None:
                self._strangers.add(pid)  # hidden: another user's
            else:
                found[pid] = stat
        while joining := [pid for pid, stat in found.items() if stat.parent in self._members]:
            for pid in joining:
                stat = found.pop(pid)
                self._members[pid] = _Member(stat.started, stat.parent)
        # A parent that was born behind the listing is looked at next time, and its child again.
        self._strangers |= {pid for pid, s in found.items() if not s.parent or s.parent in pids}

    def _gain(self) -> tuple[int, int]:
        """Ticks gained since the last scan: counted, and those of simulations.

        Parents are read before their children, so that a child that is still there cannot be in its
        parent's line as well.
        """
        own = waited = simulated = 0
        gone: dict[int, _Member] = {}
        for pid, member in list(self._members.items()):
            stat = read_stat(pid)
            if stat is None or stat.started != member.started:
                if pid in self._roots:
                    raise DeviceLost(f"process {pid} has gone")
                gone[pid] = self._members.pop(pid)
                continue
            parent = self._members.get(stat.parent)
            if (parent and parent.simulates) or (stat.name == SIMULATOR and pid not in self._roots):
                member.simulates = True  # for good: Ray names its processes anew
            own_gain, waited_gain = stat.own - member.own, stat.waited - member.waited
            if member.simulates:
                simulated += own_gain + waited_gain
            else:
                own += own_gain
                waited += waited_gain
            member.own, member.waited, member.parent = stat.own, stat.waited, stat.parent
        # What was counted of those that are gone comes in the lines of those that waited for them:
        # in this scan, in the next one where the line was read before they went, or never.
        owed = sum(one.own + one.waited for one in gone.values() if self._is_awaited(one, gone))
        settled = min(self._owed, waited)
        paid = min(owed, waited - settled)
        self._owed = owed - paid
        return own + waited - settled - paid, simulated

    def _is_awaited(self, member: _Member, gone: Mapping[int, _Member]) -> bool:
        """Whether the time of a process that is gone may come in a line that counts."""
        pid = member.parent
        while pid in gone:
            pid = gone[pid].parent
        return pid in self._members and not self._members[pid].simulates

    def _owns(self, folder: Path) -> bool:
        """Whether a control group holds all roots and nothing that is not of the tree."""
        absent = set(self._roots)
        for pid in _pids(folder):
            # One that is hidden may be of the tree; its parent's line will tell of it then.
            if pid not in self._members and (pid in self._strangers or read_stat(pid) is None):
                return False
            absent.discard(pid)
        return not absent


class _CgroupLead:
    """What a control group has counted beyond the lines of its processes, s."""

    def __init__(self) -> None:
        self.most_s = 0.0
        self._lead_s = 0.0
        self._usage_s: float | None = None

    def add(self, usage_s: float | None, lines_s: float) -> None:
        """Add a step; steps at whose begin or end it held something else do not count.

        Lines lag by ticks, and by a scan where a process is new, so only the most counts.

        Args:
            usage_s: of the group, s; None where it holds something else.
            lines_s: gained by the lines, s.
        """
        if usage_s is not None and self._usage_s is not None:
            self._lead_s += usage_s - self._usage_s - lines_s
            self.most_s = max(self.most_s, self._lead_s)
        self._usage_s = usage_s


def _pids(folder: Path) -> Iterator[int]:
    """Processes of a control group and of all below it; 0 is one of another PID namespace."""
    for group, _, _ in os.walk(folder):
        with suppress(OSError):
            yield from map(int, (Path(group) / "cgroup.procs").read_text().split())


def _usage_s(folder: Path) -> float | None:
    """Processor time of all that ever ran in a control group, s; None where it does not tell."""
    try:
        with suppress(FileNotFoundError):  # the first version has a file of its own
            return int((folder / "cpuacct.usage").read_text()) / 1e9
        words = (folder / "cpu.stat").read_text().split()
        return int(words[words.index("usage_usec") + 1]) / 1e6
    except (OSError, ValueError, IndexError):
        return None


def tick_s() -> float:
    """Length of a tick of the kernel's clock, s."""
    return 1.0 / os.sysconf("SC_CLK_TCK")


CPU_TIME = "modelled:cpu_time"
"""Source of figures from the CPU time of the model's processes alone."""

TREE_CPU_TIME = f"{CPU_TIME}:tree"
"""Source of figures from their CPU time with that of all that descend from them."""

CGROUP_CPU_TIME = f"{CPU_TIME}:tree+cgroup"
"""The same, and a control group that holds nothing else tells what the processes' lines do not."""

MIN_STEP_S = 0.03
"""Shortest time over which utilisation is measured, s: three ticks of the kernel's CPU clock."""

ROUNDING_TICKS = 2
"""Ticks of CPU time of a process that may be counted in the step after the one in which they were
counted: user and system time are rounded to a tick each. Without it full use would come out too
low."""

MAX_SHARE = 0.005
"""Largest share of a core that reading CPU time may take: with many processes it is read more
seldom, and the next reading has the energy in between."""

LONGEST_STEP_S = 1.0
"""CPU time is read this often, s, whatever it takes."""


class ModelledSource:
    """Power of the device on which processes compute, from their CPU time.

    Utilisation is the CPU time (user and system, all threads) that the processes gained since the
    last reading, over the time that passed times `n_threads`, clipped to 0..1. ``energy_j`` is the
    running integral since `open` of ``idle x dt + (active - idle) x dCPU / n_threads``: modelled,
    like the power, and not an instrument's counter.

    Args:
        device: the modelled device, with the figures of its model; on a processor what descends
            from the model's processes counts as they do, see `ProcessTree`.
        interval_s: polling interval, s.

    Raises:
        ConfigError: a figure of the model is missing or not acceptable.
    """

    name = "modelled"
    provenance = Provenance.MODELLED

    def __init__(self, device: MeteredDevice, interval_s: float = 0.1) -> None:
        model = device.model
        if model is None:
            raise ConfigError("telemetry option idle_w", None, "a number (it is required)")
        idle_w, active_w = model.idle_w, model.active_w
        if not 0 <= active_w <= MAX_POWER_W:
            raise ConfigError("telemetry option active_w", active_w, f"0 to {MAX_POWER_W:.0f} W")
        if not 0 <= idle_w <= active_w:
            raise ConfigError("telemetry option idle_w", idle_w, f"between 0 and {active_w} W")
        if model.n_threads < 1:
            raise ConfigError("telemetry option n_threads", model.n_threads, "at least 1")
        self.interval_s = self._polled_s = interval_s
        self._device_id, self._kind = device.device_id, device.kind
        self._idle_w, self._active_w = idle_w, active_w
        self._pids, self._n_threads = model.pids, model.n_threads
        self._tree = ProcessTree(model.pids) if device.kind is DeviceKind.CPU else None
        self._source = CPU_TIME if self._tree is None else TREE_CPU_TIME
        self._shortest_s = MIN_STEP_S
        self._clock: Callable[[], float] = time.monotonic
        self._last: tuple[float, float] | None = None
        self._utilisation: float | None = None
        self._energy_j = self._carried_s = 0.0

    def open(self) -> None:
        """Take the first reading of CPU time, the baseline.

        Raises:
            LibraryNotFound: there is no ``/proc`` on this system.
            DeviceLost: the process does not exist.
        """
        if not Path("/proc/self/stat").exists():
            raise LibraryNotFound("this system has no /proc")
        if self._tree is not None:
            self._tree.open()
            self._source = TREE_CPU_TIME if self._tree.cgroup is None else CGROUP_CPU_TIME
        self._last = (self._clock(), self._cpu_time_s())

    def describe(self) -> tuple[DeviceInfo, ...]:
        """The one modelled device, with the parameters of its line."""
        what = f"{self._idle_w:g} W idle, {self._active_w:g} W active, {self._n_threads} threads"
        return (DeviceInfo(self._device_id, self._kind, self.provenance, self._source, what),)

    def read(self) -> tuple[PowerSample, ...]:
        """One sample; figures are None before the first step and after the process has gone."""
        now_s = self._clock()
        try:
            stepped = self._step(now_s)
        except DeviceLost as error:
            self._last = self._utilisation = None
            return (self._sample(now_s, None, type(error).__name__),)
        # Between two steps the energy is not known; the next step has it.
        return (self._sample(now_s, self._energy_j if stepped else None, None),)

    def close(self) -> None:
        """Forget the baseline."""
        self._last = None

    def _cpu_time_s(self) -> float:
        if self._tree is not None:
            return self._tree.cpu_time_s()
        return sum(process_cpu_time_s(pid) for pid in self._pids)

    def _step(self, now_s: float) -> bool:
        """Bring utilisation and energy up to now; False when the last step is too recent."""
        if self._last is not None and now_s - self._last[0] < self._shortest_s:
            for pid in self._pids:
                process_cpu_time_s(pid)  # one that has gone is told at once
            return False
        begin_s = time.thread_time()
        cpu_s = self._cpu_time_s()
        least_s = (time.thread_time() - begin_s) / MAX_SHARE
        self.interval_s = max(self._polled_s, min(least_s, LONGEST_STEP_S))
        # Polls jitter by half: one between two steps would tell a power without an energy.
        self._shortest_s = max(MIN_STEP_S, 0.5 * min(least_s, LONGEST_STEP_S))
        if self._last is not None:
            step_s = now_s - self._last[0]
            gained_s = max(0.0, cpu_s - self._last[1]) + self._carried_s
            busy_s = min(gained_s, step_s * self._n_threads)
            n = len(self._pids) if self._tree is None else self._tree.n_processes
            self._carried_s = min(gained_s - busy_s, ROUNDING_TICKS * tick_s() * n)
            self._utilisation = busy_s / (step_s * self._n_threads)
            range_w = self._active_w - self._idle_w
            self._energy_j += self._idle_w * step_s + range_w * busy_s / self._n_threads
        self._last = (now_s, cpu_s)
        return True

    def _sample(self, now_s: float, energy_j: float | None, error: str | None) -> PowerSample:
        power_w = None
        if self._utilisation is not None:
            power_w = self._idle_w + (self._active_w - self._idle_w) * self._utilisation
        figures = (power_w, energy_j, self._utilisation)
        return PowerSample(self._device_id, now_s, *figures, self.provenance, self._source, error)


def process_cpu_time_s(pid: int) -> float:
    """User and system CPU time of a process with all its threads, s.

    Raises:
        DeviceLost: the process does not exist.
    """
    stat = read_stat(pid)
    if stat is None:
        raise DeviceLost(f"process {pid} has gone")
    return stat.own * tick_s()

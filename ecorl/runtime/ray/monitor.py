"""`MonitorActor`: the monitor of one machine, in an actor on it."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
import uuid
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ecorl.config import TelemetryConfig
from ecorl.devices import DeviceProfile
from ecorl.engines.lanes.threaded import Fault, error_of, fault_of
from ecorl.engines.validate import EngineBoundary
from ecorl.ledger import DeviceRecord, FileReader, Ledger
from ecorl.records import DeviceKind, EventKind, Role, StageResult
from ecorl.runtime.equipment.role_places import RolePlaces
from ecorl.runtime.handles import Span
from ecorl.runtime.monitor import NodeEnergy, NodeMonitor, NodePower
from ecorl.telemetry.sources.specs import SourceSpec

NOTED_WITHIN_S = 1.0
"""How long after its begin an execution is noted here at the latest, s. Invented: a message takes
milliseconds, through two actors."""

Settled = tuple[int, StageResult]
"""Serial number of an execution, and the execution with its energy."""

ExecutionKey = tuple[object, ...]
"""Iteration, role, begin, end and rows of an execution: no two of one machine have all alike."""


@dataclass(frozen=True, slots=True)
class MonitorPlan:
    """All that a monitor has to know; it may be started anew from it.

    Attributes:
        node: name of the machine.
        node_id: Ray's id of it.
        sources: where power is read.
        telemetry: how readings are smoothed.
        path: the machine's ledger.
        run_id: of the run.
        attempt: number of the attempt in the head's record.
        raw_samples: length of the ring of raw readings.
        profiles: by kind of metered device.
        roles: devices on it of roles that the trainer's own do not serve.
    """

    node: str
    node_id: str
    sources: tuple[SourceSpec, ...]
    telemetry: TelemetryConfig
    path: Path
    run_id: str
    attempt: int
    raw_samples: int
    profiles: Mapping[DeviceKind, DeviceProfile]
    roles: RolePlaces = field(default_factory=RolePlaces)


@dataclass(frozen=True, slots=True)
class MonitorNews:
    """What a monitor tells when it is asked.

    Attributes:
        life: tells a monitor that was started anew from the one before.
        power: what its devices draw now.
        drawn: what they have drawn; without a figure once the monitor was started anew.
        settled: executions that got their energy, since the last news that were taken. The
            machine's file holds them: a kill of the monitor loses none that was told of.
        faults: device, error and time of readings that went missing or came back.
        n_told: number of executions told of in this life; the next question names it.
    """

    life: str
    power: NodePower
    drawn: NodeEnergy
    settled: tuple[Settled, ...]
    faults: tuple[tuple[str, str | None, float], ...]
    n_told: int


class MonitorActor:
    """The monitor of one machine, in an actor on it.

    Args:
        plan: what it monitors.
    """

    def __init__(self, plan: MonitorPlan) -> None:
        self._plan = plan
        self._monitor: NodeMonitor | None = None
        self._ledger: Ledger | None = None
        self._life = uuid.uuid4().hex
        self._lock = threading.Lock()
        self._seen: set[int] = set()
        self._serials: dict[ExecutionKey, int] = {}
        self._settled: list[Settled] = []
        # Settled, and not known to be in the file: with the number of the note behind each.
        self._unkept: deque[tuple[int, Settled]] = deque()
        self._n_noted = self._n_taken = 0
        self._faults: list[tuple[str, str | None, float]] = []
        # What the machine's ledger held when this process, or a new scheduler, read it.
        self._recorded: dict[ExecutionKey, StageResult] = {}
        self._is_anew = False

    def clock(self) -> float:
        """Monotonic time of this machine, s."""
        return time.monotonic()

    def start(self) -> Fault | None:
        """Start reading, unless it has begun; what went wrong, or None."""
        if self._monitor is not None:
            return None
        plan, ledger = self._plan, None
        with EngineBoundary() as boundary:
            ledger = self._open_ledger()
            monitor = NodeMonitor(
                plan.node,
                plan.sources,
                plan.telemetry,
                ledger,
                self._on_settled,
                self._on_fault,
                plan.roles.others,
            )
            monitor.start()
            monitor.record_devices(plan.profiles, plan.roles.metered_profiles)
            self._monitor, self._ledger = monitor, ledger
            return None
        if ledger is not None:
            ledger.close()
        return fault_of(boundary.caught())

    def device(self, record: DeviceRecord) -> None:
        """Record a device whose power is not read. See `ecorl.runtime.monitor.Monitor`."""
        self._running().device(record)

    def hold(self, serial: int, spans: Sequence[Span], role: Role | None = None) -> None:
        """Note which devices an execution has held so far. See `ecorl.runtime.monitor.Monitor`."""
        if serial not in self._seen:
            self._running().hold(serial, spans, role)

    def add(self, serial: int, result: StageResult, spans: Sequence[Span]) -> None:
        """Account a finished execution, once. See `ecorl.runtime.monitor.Monitor`."""
        monitor, key = self._running(), key_of(result)
        if serial in self._seen:
            return
        self._seen.add(serial)
        with self._lock:
            recorded = self._recorded.get(key)
            if recorded is not None:  # by this monitor before it was started anew
                self._settled.append((serial, recorded))
                return
            self._serials[key] = serial
        monitor.add(serial, result, spans)

    def settle(self) -> None:
        """Take the time up to now as told of: what held no device in it was idle."""
        self._running().settle(time.monotonic() - NOTED_WITHIN_S)

    def drop(self, serial: int) -> None:
        """Note that an execution will never be accounted."""
        self._running().drop(serial)

    def adopt(self) -> tuple[MonitorNews, list[StageResult]]:
        """Meet a new scheduler: tell it of all that the machine has recorded in this attempt.

        Returns:
            The news, without the executions that are recorded; and these.
        """
        self._running()
        if self._ledger is not None:
            self._ledger.flush()
        with self._lock:
            # An execution may be in the file and on its way into the list of those to be told.
            self._recorded = self._read_recorded()
            self._take_kept()
            left = [one for one in self._settled if key_of(one[1]) not in self._recorded]
            self._n_taken += len(self._settled) - len(left)
            self._settled = left
            taken = self._n_taken
            recorded = list(self._recorded.values())
        news = self.news(self._life, taken)
        return news, recorded

    def news(self, life: str, n_taken: int) -> MonitorNews:
        """Tell what has happened since the caller asked last.

        Args:
            life: of the news that the caller took last.
            n_taken: executions that it has taken over, as it was told.
        """
        monitor = self._running()
        with self._lock:
            # What the caller has not confirmed is told again: an answer may have been lost.
            if life == self._life:
                del self._settled[: max(0, n_taken - self._n_taken)]
                self._n_taken = max(self._n_taken, n_taken)
            self._take_kept()
            settled = tuple(self._settled)
            faults, self._faults = tuple(self._faults), []
            n_told = self._n_taken + len(settled)
        drawn = monitor.drawn(all_noted=False)
        if self._is_anew:  # what was drawn before, and meanwhile, is missing from the sums
            drawn = replace(drawn, drawn_j=None, beside_j=None)
        return MonitorNews(self._life, monitor.power(), drawn, settled, faults, n_told)

    def finish(self, life: str, n_taken: int) -> MonitorNews:
        """Account what is left, stop reading and close the machine's ledger.

        Args:
            life: as for `news`.
            n_taken: as for `news`.
        """
        self._running().close()
        if self._ledger is not None:
            self._ledger.flush()
        with self._lock:
            self._take_kept(at_any_rate=True)
        news = self.news(life, n_taken)
        if self._ledger is not None:
            self._ledger.event(EventKind.STOP, "the machine's monitor has ended")
            self._ledger.close()
        return news

    def fetch(self, path: Path) -> bytes | None:
        """Read a ledger of this machine, which nobody writes any more; None when there is none.

        Args:
            path: its file.
        """
        if not path.is_file():
            return None
        with (
            contextlib.suppress(sqlite3.Error),
            contextlib.closing(sqlite3.connect(path)) as connection,
        ):
            # What a killed process has written last is in a file beside it.
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        with contextlib.suppress(OSError):
            return path.read_bytes()
        return None

    def remove(self, path: Path) -> None:
        """Remove a ledger of this machine that was fetched, and folders that it leaves empty.

        Args:
            path: its file, in a folder of the run.
        """
        with contextlib.suppress(OSError):
            for file in path.parent.glob(f"{path.name}*"):
                file.unlink()
            for folder in (path.parent, path.parent.parent):
                folder.rmdir()

    # ------------------------------------------------------------ inside

    def _running(self) -> NodeMonitor:
        if self._monitor is None:  # started anew by Ray
            fault = self.start()
            if fault is not None:
                raise error_of(fault)
        if self._monitor is None:
            raise RuntimeError("the monitor has not started")
        return self._monitor

    def _open_ledger(self) -> Ledger:
        plan = self._plan
        if not plan.path.exists():
            return Ledger.create(
                plan.path,
                run_id=plan.run_id,
                config_toml="",
                meta={},
                raw_samples=plan.raw_samples,
                node=plan.node,
                attempt=plan.attempt,
            )
        # It was begun by this monitor before it was started anew.
        self._recorded, self._is_anew = self._read_recorded(), True
        return Ledger.reopen(plan.path, raw_samples=plan.raw_samples)

    def _read_recorded(self) -> dict[ExecutionKey, StageResult]:
        with FileReader(self._plan.path) as reader:
            return {key_of(row.result): row.result for row in reader.executions()}

    def _on_settled(self, result: StageResult) -> None:
        key = key_of(result)
        with self._lock:
            serial = self._serials.pop(key, 0)
            if key in self._recorded:  # a new scheduler has read it
                return
            if self._ledger is None:
                self._settled.append((serial, result))
                return
            # The execution was recorded just before: once this note is in the file, so is it.
            self._n_noted += 1
            self._unkept.append((self._n_noted, (serial, result)))
            with self._ledger.note(self._life, self._n_noted):
                pass

    def _take_kept(self, *, at_any_rate: bool = False) -> None:
        """Let the executions be told of that the file holds by now, or all; under the lock."""
        kept = 0 if self._ledger is None else self._ledger.kept(self._life)
        while self._unkept and (at_any_rate or self._unkept[0][0] <= kept):
            _, one = self._unkept.popleft()
            if key_of(one[1]) not in self._recorded:
                self._settled.append(one)

    def _on_fault(self, device_id: str, error: str | None, t_s: float) -> None:
        with self._lock:
            self._faults.append((device_id, error, t_s))


def key_of(result: StageResult) -> ExecutionKey:
    """What tells an execution from all others of its machine, also in its record.

    Args:
        result: the execution.
    """
    return (result.iteration, result.role, result.t_start_s, result.t_end_s, result.n_sequences)

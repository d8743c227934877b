"""The records of a run's machines: their clocks, and their files, which the head fetches."""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ray.exceptions import RayError

from ecorl.files import write_whole
from ecorl.ledger import FileReader, Ledger, NodeRecord, node_file
from ecorl.ledger.rows import NodeRow
from ecorl.runtime.ray.monitor_link import RemoteMonitor


@dataclass(frozen=True, slots=True)
class LeftOver:
    """A machine's record of an earlier attempt, which was killed before it was fetched.

    Attributes:
        row: the machine in the head's record.
        source: the file on the machine.
    """

    row: NodeRow
    source: Path


class NodeRecords:
    """Notes the machines of an attempt in the head's record, and brings their files there.

    Args:
        ledger: the head's record.
        attempt: number of the attempt.
        monitors: of the machines, by name.
        home: name of this machine, whose processes have one clock.
        on_lost: called with a machine and one sentence when its record is lost.
    """

    def __init__(
        self,
        ledger: Ledger,
        attempt: int,
        monitors: Mapping[str, RemoteMonitor],
        home: str,
        on_lost: Callable[[str, str], None],
    ) -> None:
        self._ledger, self._attempt, self._monitors = ledger, attempt, monitors
        self._on_lost = on_lost
        self._home, self._clocks = home, {home: (0.0, 0.0)}

    def measure_clocks(self) -> None:
        """Note how far each machine's clock is from this one's."""
        for node, monitor in self._monitors.items():
            if node != self._home:
                with contextlib.suppress(RayError):
                    self._clocks[node] = monitor.measure_clock()
            self._note(node, None)

    def finish(self, node: str, path: Path) -> None:
        """End a machine's monitor and bring its file to the run folder, unless it lies there.

        Args:
            node: the machine.
            path: its file on it.
        """
        monitor = self._monitors[node]
        why_open = monitor.finish()
        target = self._folder / node_file(node, self._attempt)
        why = None
        if path != target or not target.is_file():
            why = _fetch(monitor, path, target)
            if why is None and why_open is None:
                monitor.remove(path)
        if why is not None and why_open is not None:
            why = f"its monitor is out of reach ({why_open})"
        if why is not None:
            self._on_lost(node, why)
            self._note(node, why)

    def fetch_left_over(self, found: Sequence[LeftOver]) -> None:
        """Fetch what machines have kept of earlier attempts.

        Args:
            found: the files.
        """
        for one in found:
            node, monitor = one.row.node, self._monitors.get(one.row.node)
            why: str | None = "the machine is not of the run any more"
            if monitor is not None:
                why = _fetch(monitor, one.source, self._folder / (one.row.file or ""))
                if why is None:
                    monitor.remove(one.source)
                    self._ledger.found(one.row.attempt, node)
            if why is not None:
                self._on_lost(node, f"of attempt {one.row.attempt}, {why}")

    @property
    def _folder(self) -> Path:
        return self._ledger.path.parent

    def _note(self, node: str, lost: str | None) -> None:
        offset_s, error_s = self._clocks.get(node, (None, None))
        record = NodeRecord(
            node=node,
            file=node_file(node, self._attempt),
            offset_s=offset_s,
            offset_error_s=error_s,
            t_s=time.monotonic(),
            lost=lost,
        )
        self._ledger.node(record)


def _fetch(monitor: RemoteMonitor, source: Path, target: Path) -> str | None:
    """Copy a machine's file into the run folder; why it cannot be, or None."""
    content = monitor.fetch(source)
    if content is None:
        return f"{source} cannot be read there"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_whole(target, content)
    except OSError as error:
        return f"{target} cannot be written ({error})"
    return None


def left_over(path: Path, attempt: int) -> tuple[LeftOver, ...]:
    """The machines' records of earlier attempts that are not in the run folder.

    Args:
        path: the head's ledger.
        attempt: number of the attempt under way.
    """
    folder = node_folder(run_token(path))
    with FileReader(path) as reader:
        rows = [row for row in reader.nodes() if row.attempt < attempt and row.file is not None]
    return tuple(
        LeftOver(row, folder / str(row.file))
        for row in rows
        if not (path.parent / str(row.file)).exists()
    )


def run_token(path: Path) -> str:
    """What tells a run from all others on any machine, and is the same after a resume.

    Args:
        path: the head's ledger.
    """
    with FileReader(path) as reader:
        # Not the path alone: what an earlier run in the same folder has left is none of this one.
        told = f"{path.absolute()} {reader.run().created_unix_s!r}"
    return hashlib.sha256(told.encode()).hexdigest()[:16]


def node_folder(token: str) -> Path:
    """The folder of a machine for its records of a run, until they are fetched.

    Args:
        token: tells the run from all others.
    """
    return Path(tempfile.gettempdir()) / "ecorl-runs" / token

"""The machines of a run: where their records lie, and how these fit into the record of the head.

The machine on which a run is started, the head, writes ``ledger.sqlite``. Each of the others writes
one file an attempt, so that a killed attempt's file is never touched again. Its times are those of
its own monotonic clock, its devices have the names that they have there: a `Frame` puts its rows
into the head's clock and the machine's name before its devices.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TypeVar

from ecorl.errors import RunError
from ecorl.ledger.rows import (
    AttemptRow,
    BarrierRow,
    CheckpointRow,
    DeviceRow,
    EdiRow,
    EvaluationRow,
    EventRow,
    ExecutionRow,
    FaultRow,
    MetricRow,
    PlacementRow,
    RawSampleRow,
    SampleErrorRow,
)
from ecorl.records import EventKind

NODE = "node"
"""Key in table ``meta`` under which a ledger names the machine that writes it."""

NODES_FOLDER = "nodes"
"""Folder in the run folder where the records of the other machines lie."""

ENDS = frozenset({EventKind.STOP, EventKind.FAILURE, EventKind.FINISH})
"""Events with which a machine's record says that the machine leaves the run."""

COURSE = ENDS | {EventKind.START, EventKind.RESUME}
"""Events that tell how the run stands, where the head records them."""

_NAME = re.compile(r"[A-Za-z0-9._-]+")

_Moved = TypeVar("_Moved", EventRow, EvaluationRow, EdiRow, RawSampleRow)
_Kept = TypeVar("_Kept", PlacementRow, BarrierRow, CheckpointRow)


def check_node(node: str) -> str:
    """Check that a machine's name may be part of a file's name and of a device's id.

    Raises:
        RunError: when it is empty or holds other characters than letters, digits, ``.``, ``_``
            and ``-``.
    """
    if not _NAME.fullmatch(node):
        raise RunError(f"node = {node!r}: allowed are letters, digits, '.', '_' and '-'")
    return node


def node_name(host: str) -> str:
    """Make a machine's name of what its system calls it, with ``-`` for what no name may hold.

    Args:
        host: as `platform.node` tells it, which may be empty.
    """
    return re.sub(r"[^A-Za-z0-9._-]+", "-", host) or "unnamed"


def node_file(node: str, attempt: int) -> str:
    """The ledger of a machine that is not the head, relative to the run folder.

    Args:
        node: the machine's name.
        attempt: number of the attempt in the head's record.

    Raises:
        RunError: when the name may not be part of a file's name.
    """
    return f"{NODES_FOLDER}/{check_node(node)}-{int(attempt)}.sqlite"


def qualified(node: str | None, device_id: str) -> str:
    """The id of a device with its machine before it, ``node/gpu0``.

    Args:
        node: the machine's name; None leaves the id as it is.
        device_id: an id that names a machine already stays as it is.
    """
    return device_id if node is None or "/" in device_id else f"{node}/{device_id}"


def offset_by_wall_clock(own: AttemptRow, head: AttemptRow) -> float:
    """A machine's monotonic clock minus the head's, s, as far as their wall clocks agree.

    Args:
        own: the attempt in the machine's record.
        head: the same attempt in the head's.
    """
    passed_s = own.unix_anchor_s - head.unix_anchor_s
    return own.monotonic_anchor_s - head.monotonic_anchor_s - passed_s


@dataclass(frozen=True, slots=True)
class Frame:
    """Puts the rows of one file into the frame of the run.

    Attributes:
        node: the machine that wrote the file; None where the file names none.
        offset_s: its monotonic clock minus the head's, s.
        resumes: the head's later attempts, which may have thrown work of this file away; a
            machine's file is never written again after its attempt. Empty for the head's own
            file, whose rows are marked.
        short: whether devices go by their bare names.
    """

    node: str | None = None
    offset_s: float = 0.0
    resumes: tuple[AttemptRow, ...] = ()
    short: bool = False

    @property
    def offset_seconds(self) -> int:
        """The offset in whole seconds, for roll-ups.

        A roll-up is of one second of its own machine's clock, and its joules cannot be split
        between two of the head's: it is moved as a whole, by less than half a second too far or
        too little. Its energy stays exact.
        """
        return round(self.offset_s)

    def device(self, device_id: str, node: str | None = None) -> str:
        """The id under which the run knows a device of the file.

        Args:
            device_id: as it stands in the file.
            node: the machine that the row names; None: the one that wrote the file.
        """
        if not self.short:
            return qualified(node or self.node, device_id)
        return device_id.rpartition("/")[2]

    def is_own(self, device_id: str) -> bool:
        """Whether a device, as it stands in the file, is one of the machine that wrote it."""
        return "/" not in device_id or device_id.partition("/")[0] == self.node

    def superseded(self, attempt: int, iteration: int | None) -> bool:
        """Whether a later attempt went on from before this iteration."""
        return iteration is not None and any(
            later.attempt > attempt and later.from_step < iteration for later in self.resumes
        )

    # ------------------------------------------------------------ rows

    def execution(self, row: ExecutionRow) -> ExecutionRow:
        """Put an execution and its energy into the frame, and name its machine."""
        r = row.result
        energy = r.energy
        if energy is not None:
            energy = replace(
                energy,
                device_ids=tuple(self.device(i, r.node) for i in energy.device_ids),
                t_start_s=energy.t_start_s - self.offset_s,
                t_end_s=energy.t_end_s - self.offset_s,
            )
        result = replace(
            r,
            node=r.node or self.node,
            device_ids=tuple(self.device(i, r.node) for i in r.device_ids),
            t_start_s=r.t_start_s - self.offset_s,
            t_end_s=r.t_end_s - self.offset_s,
            energy=energy,
        )
        gone = row.superseded or self.superseded(row.attempt, r.iteration)
        return replace(row, superseded=gone, result=result)

    def placement(self, row: PlacementRow) -> PlacementRow:
        """Put a decision into the frame."""
        return self._kept(row, row.placement.iteration)

    def barrier(self, row: BarrierRow) -> BarrierRow:
        """Put a wait at the barrier into the frame."""
        return self._kept(row, row.iteration)

    def checkpoint(self, row: CheckpointRow) -> CheckpointRow:
        """Put a checkpoint into the frame."""
        return self._kept(row, row.iteration)

    def fault(self, row: FaultRow) -> FaultRow:
        """Put a fault into the frame, and name the machine that recorded it."""
        gone = row.superseded or self.superseded(row.attempt, row.iteration)
        t_s = row.t_s - self.offset_s
        return replace(row, superseded=gone, t_s=t_s, node=self.node)

    def metric(self, row: MetricRow) -> MetricRow:
        """Put a scalar of the trainer into the frame; it has no time."""
        gone = row.superseded or self.superseded(row.attempt, row.iteration)
        return replace(row, superseded=gone)

    def event(self, row: EventRow) -> EventRow:
        """Put a note into the frame, and name the machine that recorded it."""
        return replace(self.moved(row), node=self.node)

    def device_row(self, row: DeviceRow) -> DeviceRow:
        """Name the machine of a recorded device."""
        return replace(row, device_id=self.device(row.device_id))

    def raw_sample(self, row: RawSampleRow) -> RawSampleRow:
        """Put a raw reading into the frame."""
        return replace(self.moved(row), device_id=self.device(row.device_id))

    def sample_error(self, row: SampleErrorRow) -> SampleErrorRow:
        """Put a count of failed readings into the frame."""
        return replace(
            row,
            device_id=self.device(row.device_id),
            first_t_s=row.first_t_s - self.offset_s,
            last_t_s=row.last_t_s - self.offset_s,
        )

    def moved(self, row: _Moved) -> _Moved:
        """A row with its time in the head's clock."""
        return replace(row, t_s=row.t_s - self.offset_s)

    def _kept(self, row: _Kept, iteration: int) -> _Kept:
        gone = row.superseded or self.superseded(row.attempt, iteration)
        return replace(row, superseded=gone, t_s=row.t_s - self.offset_s)

"""The machines of a run: where their records lie, and how these fit into the record of the head.

The machine on which a run is started, the head, writes ``ledger.sqlite``. Each of the others writes
one file an attempt, so that a killed attempt's file is never touched again. Its times are those of
its own monotonic clock, its devices have the names that they have there: a `Frame` puts its rows
into the head's clock and the machine's name before its devices.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from ecorl.errors import RunError
from ecorl.ledger.rows import AttemptRow, ExecutionRow
from ecorl.records import EventKind, StageEnergy, StageResult

NODE = "node"
"""Key in table ``meta`` under which a ledger names the machine that writes it."""

NODES_FOLDER = "nodes"
"""Folder in the run folder where the records of the other machines lie."""

ENDS = frozenset({EventKind.STOP, EventKind.FAILURE, EventKind.FINISH})
"""Events with which a machine's record says that the machine leaves the run."""

COURSE = ENDS | {EventKind.START, EventKind.RESUME}
"""Events that tell how the run stands, where the head records them."""

_NAME = re.compile(r"[A-Za-z0-9._-]+")

_Row = TypeVar("_Row")
_Spanned = TypeVar("_Spanned", StageResult, StageEnergy)


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

    def put(self, row: _Row) -> _Row:
        """Put a row of the file into the frame: times, devices, machine, and whether it counts."""
        found: Any = row
        names = [name for name in ("t_s", "first_t_s", "last_t_s") if hasattr(found, name)]
        changes: dict[str, Any] = {name: getattr(found, name) - self.offset_s for name in names}
        if isinstance(row, ExecutionRow):
            changes["result"] = self._result(row.result)
        if hasattr(found, "superseded"):
            changes["superseded"] = self._is_gone(found)
        if hasattr(found, "device_id"):
            changes["device_id"] = self.device(found.device_id)
        if hasattr(found, "node"):
            changes["node"] = self.node
        moved: _Row = replace(found, **changes)
        return moved

    def _is_gone(self, row: Any) -> bool:
        """Whether a later attempt went on from before the row's iteration."""
        iteration = getattr(row, "result", getattr(row, "placement", row)).iteration
        later = [one for one in self.resumes if one.attempt > row.attempt]
        is_redone = iteration is not None and any(one.from_step < iteration for one in later)
        return bool(row.superseded or is_redone)

    def _result(self, r: StageResult) -> StageResult:
        """Put an execution and its energy into the frame, and name its machine."""
        return replace(
            self._spanned(r, r.node),
            node=r.node or self.node,
            energy=None if r.energy is None else self._spanned(r.energy, r.node),
        )

    def _spanned(self, part: _Spanned, node: str | None) -> _Spanned:
        return replace(
            part,
            device_ids=tuple(self.device(i, node) for i in part.device_ids),
            t_start_s=part.t_start_s - self.offset_s,
            t_end_s=part.t_end_s - self.offset_s,
        )

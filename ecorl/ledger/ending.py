"""How a run stands by its record, and by whether somebody writes that just now."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from enum import StrEnum

from ecorl.ledger.file_reader import FileReader
from ecorl.ledger.ledger import WRITER_HOST
from ecorl.ledger.lock import is_being_written
from ecorl.ledger.nodes import COURSE
from ecorl.ledger.reader import LedgerReader
from ecorl.ledger.rows import EventRow
from ecorl.records import EventKind


class RunEnding(StrEnum):
    """How a run stands by its last start, resume, stop or finish."""

    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"  # an exception ended it
    RUNNING = "running"  # a process of this machine writes its record just now
    KILLED = "killed"  # nobody writes its record, which tells of no end
    NO_END = "no end recorded"  # and it cannot be told from here whether it is still running


_ENDINGS: dict[EventKind, RunEnding] = {
    EventKind.FINISH: RunEnding.FINISHED,
    EventKind.STOP: RunEnding.STOPPED,
    EventKind.FAILURE: RunEnding.FAILED,
}
_LONGEST = 200
"""Characters of a text that are shown of what ended a run. Invented: two lines of a terminal."""


def ending_of(
    reader: LedgerReader, events: Sequence[EventRow] | None = None
) -> tuple[RunEnding, str | None]:
    """Tell how a run stands; its writer is not disturbed.

    Args:
        reader: of the run's record.
        events: of the record, where they are read already.

    Returns:
        How it stands, and what ended it: of a failed run the exception with its first line, of a
        stopped one by whom, of one whose end is not known why that is so; None: nothing is known.
    """
    last = _last(reader.events() if events is None else events)
    if last is not None and last.kind in _ENDINGS:
        return _ending_by(last)
    writing = is_being_written(reader.path)
    if writing:
        return RunEnding.RUNNING, None
    if writing is None:
        why = "whether it is still running cannot be told: its lock cannot be asked"
        return RunEnding.NO_END, why
    host = _foreign_host(reader)
    if host is not None:
        why = f"whether it is still running is not known from here: {host} writes its record"
        return RunEnding.NO_END, why
    # Since the reader was opened the run may have ended as it should.
    with FileReader(reader.path) as fresh:
        last = _last(fresh.events())
    if last is None:
        return RunEnding.NO_END, "its record tells of no start of training, and nobody writes it"
    if last.kind in _ENDINGS:
        return _ending_by(last)
    return RunEnding.KILLED, None


def _last(events: Sequence[EventRow]) -> EventRow | None:
    return next((e for e in reversed(events) if e.kind in COURSE), None)


def _ending_by(event: EventRow) -> tuple[RunEnding, str | None]:
    words = " ".join(event.detail.split())
    if len(words) > _LONGEST:
        words = words[: _LONGEST - 1].rstrip() + "…"
    return _ENDINGS[event.kind], words or None


def _foreign_host(reader: LedgerReader) -> str | None:
    """The machine that wrote the record last, where that is not this one."""
    meta = reader.run().meta
    host = meta.get(WRITER_HOST, meta.get("host"))
    return host if host and host != platform.node() else None

"""How a run stands: read from its record, and from whether somebody writes that just now."""

from __future__ import annotations

import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ecorl.config import Config
from ecorl.ledger import EventRow, ExecutionRow, FileReader, LedgerReader, is_being_written
from ecorl.ledger.ledger import WRITER_HOST
from ecorl.ledger.nodes import COURSE
from ecorl.records import EventKind
from ecorl.report.energy.causes import cause_of
from ecorl.report.energy.model import Cause
from ecorl.report.model import RunEnding
from ecorl.report.run_config import is_attached, read_config

_BEGINNINGS = (EventKind.START, EventKind.RESUME)
_ENDINGS: dict[EventKind | str, RunEnding] = {
    EventKind.FINISH: RunEnding.FINISHED,
    EventKind.STOP: RunEnding.STOPPED,
    EventKind.FAILURE: RunEnding.FAILED,
}
_PLAN = re.compile(r"training from step \d+ of (\d+)")
_LONGEST = 200
"""Characters of a text that are shown of what ended a run. Invented: two lines of a terminal."""


@dataclass(frozen=True, slots=True)
class RunState:
    """How a run stands, and how far it came.

    Attributes:
        ending: how it ended, or that it is running now.
        ended_by: what ended it: of a failed run the exception with its first line, of a stopped
            one by whom, of one whose end is not known why that is so; None: nothing is known.
        n_steps_done: steps that were trained or logged and that no resume threw away; at least
            those that the newest checkpoint holds.
        n_steps_planned: None where the record does not tell.
        checkpoint_step: last step that the newest checkpoint holds; None without one.
    """

    ending: RunEnding
    ended_by: str | None
    n_steps_done: int
    n_steps_planned: int | None
    checkpoint_step: int | None


def run_state(folder: Path) -> RunState:
    """Tell how a run stands; nothing is written and its writer is not disturbed.

    Args:
        folder: the run folder, or the head's ledger.

    Raises:
        RunError: when there is no such run.
        LedgerError: when its ledger cannot be read.
    """
    with LedgerReader(folder) as reader:
        run = reader.run()
        config = None if is_attached(run) else read_config(run, reader.path.parent).config
        return state_of(reader, config, reader.executions())


def state_of(
    reader: LedgerReader, config: Config | None, executions: Sequence[ExecutionRow]
) -> RunState:
    """Tell how a run stands of which a reader is open.

    Args:
        reader: the run's ledger.
        config: the run's own; None where it tells nothing of the steps that are planned.
        executions: of the whole run.
    """
    events = reader.events()
    saved = [c.iteration for c in reader.checkpoints() if not c.superseded]
    ending, ended_by = _ending(reader, events)
    return RunState(
        ending,
        ended_by,
        # What was killed may have saved a step of which nothing else was written yet.
        n_steps_done=max(_done(reader, executions), *saved, 0),
        n_steps_planned=_planned(config, events),
        checkpoint_step=max(saved, default=None),
    )


def _done(reader: LedgerReader, executions: Sequence[ExecutionRow]) -> int:
    """Number of steps that were trained or logged and that no resume threw away."""
    done = {
        e.result.iteration
        for e in executions
        if not e.superseded and cause_of(e.result) is Cause.TRAINING
    }
    done |= {m.iteration for m in reader.metrics() if not m.superseded}
    return len({step for step in done if step > 0})  # an evaluation may come before the first


def _planned(config: Config | None, events: Sequence[EventRow]) -> int | None:
    """Steps by the config, or by what the trainer said when it began to train."""
    if config is not None:
        return config.trainer.steps
    for event in reversed(events):
        told = _PLAN.fullmatch(event.detail) if event.kind in _BEGINNINGS else None
        if told:
            return int(told[1])
    return None


def _ending(reader: LedgerReader, events: Sequence[EventRow]) -> tuple[RunEnding, str | None]:
    """Find how the run stands by its last start, resume or end, and what ended it."""
    last = _last(events)
    if last is not None and last.kind in _ENDINGS:
        return _ending_by(last)
    writing = is_being_written(reader.path)
    if writing:
        return RunEnding.RUNNING, None
    host = _foreign_host(reader)
    if writing is None:
        return (
            RunEnding.NO_END,
            "whether it is still running cannot be told: its lock is unreadable",
        )
    if host is not None:
        return RunEnding.NO_END, (
            f"whether it is still running is not known from here: {host} writes its record"
        )
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

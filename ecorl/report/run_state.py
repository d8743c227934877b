"""How a run stands, and how far it came."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ecorl.config import Config
from ecorl.ledger import EventRow, ExecutionRow, LedgerReader, RunEnding, ending_of
from ecorl.records import EventKind
from ecorl.report.energy.causes import cause_of
from ecorl.report.energy.model import Cause

_BEGINNINGS = (EventKind.START, EventKind.RESUME)
_PLAN = re.compile(r"training from step \d+ of (\d+)")


@dataclass(frozen=True, slots=True)
class RunStanding:
    """How a run stands, and how far it came.

    Attributes:
        ending: how it ended, or that it is running now.
        ended_by: what ended it; see `ecorl.ledger.ending_of`.
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


def state_of(
    reader: LedgerReader, config: Config | None, executions: Sequence[ExecutionRow]
) -> RunStanding:
    """Tell how a run stands of which a reader is open.

    Args:
        reader: the run's ledger.
        config: the run's own; None where it tells nothing of the steps that are planned.
        executions: of the whole run.
    """
    events = reader.events()
    saved = [c.iteration for c in reader.checkpoints() if not c.superseded]
    ending, ended_by = ending_of(reader, events)
    return RunStanding(
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

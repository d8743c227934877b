"""Finds the windows of time in which steps of a run were trained."""

from __future__ import annotations

from collections.abc import Sequence

from ecorl.ledger import ExecutionRow, LedgerReader
from ecorl.records import EVALUATION_ROLE, EventKind
from ecorl.report.energy.spans import Span, merged, minus
from ecorl.report.energy.windows.seconds import Window


def step_windows(
    reader: LedgerReader, after_step: int = 0, until_s: float | None = None
) -> list[Window]:
    """Find when a run trained some of its steps, without the evaluations among them.

    Args:
        reader: the run's ledger.
        after_step: steps at the begin that are left out, as a warm-up.
        until_s: where to end, monotonic s; None: where training ended.

    Returns:
        Windows in the order of time; none where no such step was recorded.
    """
    rows = reader.executions()
    ends = {e.attempt: e.t_s for e in reader.events() if e.kind is EventKind.TRAINING_END}
    found: list[Window] = []
    for attempt in sorted({row.attempt for row in rows}):
        own = [row for row in rows if row.attempt == attempt]
        span = _trained(own, after_step, ends.get(attempt))
        if span is None:
            continue
        end_s = span[1] if until_s is None else min(span[1], until_s)
        whole = [(span[0], end_s)] if end_s > span[0] else []
        found += [(attempt, part) for part in minus(whole, evaluation_spans(own))]
    return found


def evaluation_spans(rows: Sequence[ExecutionRow]) -> list[Span]:
    """When the framework evaluated its policy, disjoint and in order.

    Args:
        rows: executions of one attempt.
    """
    return merged(
        (row.result.t_start_s, row.result.t_end_s)
        for row in rows
        if row.result.role == EVALUATION_ROLE
    )


def _trained(rows: Sequence[ExecutionRow], after_step: int, end_s: float | None) -> Span | None:
    """From the begin of the first step that counts to the end of training."""
    counted = [
        row.result
        for row in rows
        if row.result.role != EVALUATION_ROLE and row.result.iteration > after_step
    ]
    if not counted:
        return None
    begin_s = min(result.t_start_s for result in counted)
    last_s = max(result.t_end_s for result in counted)
    return begin_s, last_s if end_s is None or end_s < begin_s else end_s
